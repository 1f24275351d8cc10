"""A badge: the JSON that shields.io reads from an address (https://shields.io/badges/endpoint-badge)."""

import json

from parity.report import words

COLORS = {0: "brightgreen", 1: "red"}


def render(record: dict) -> str:
    """A run that was stopped is never green."""
    s = record["summary"]
    message = words.verdict(record) + ("" if s["complete"] else ", stopped")
    color = COLORS.get(s["exit_code"], "yellow")
    color = "yellow" if color == "brightgreen" and not s["complete"] else color
    badge = {"schemaVersion": 1, "label": "parity", "message": message, "color": color}
    return json.dumps(badge | ({"isError": True} if s["exit_code"] == 1 else {})) + "\n"
