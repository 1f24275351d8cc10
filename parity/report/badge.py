"""A badge: the JSON that shields.io reads from an address (https://shields.io/badges/endpoint-badge)."""

import json

from parity.report import words

COLORS = {"held": "brightgreen", "broke": "red", "open": "yellow"}


def render(record: dict) -> str:
    """A run that was stopped is never green."""
    outcome = words.outcome(record)
    message = words.verdict(record) + ("" if record["summary"]["complete"] else ", stopped")
    badge = {"schemaVersion": 1, "label": "parity", "message": message, "color": COLORS[outcome]}
    return json.dumps(badge | ({"isError": True} if outcome == "broke" else {})) + "\n"
