"""Markdown for the page that a CI system shows of a job: the outcome, counts, what failed, what differs."""

import re

from parity.report import words

MARKS = {"held": "✅", "broke": "❌", "open": "⚠️"}
SHOWN_FAILURES = 20
LONGEST = 300  # characters of one reason


def render(record: dict) -> str:
    """Tables as GitHub and GitLab draw them."""
    parts = [heading(record), subjects(record), failures(record), divergences(record), about(record)]
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(record: dict) -> str:
    return f"## {MARKS[words.outcome(record)]} parity: {words.verdict(record)}\n\n{words.sentence(record)}."


def subjects(record: dict) -> str:
    headings = ("subject", "dtype", "device", "claim", "passed", "differs", "no evidence", "cannot", "failed")
    rows = [[text(str(x)) for x in line] for line in words.by_subject(record)]
    return table((*headings, "median", "max"), rows, right=7)


def failures(record: dict) -> str:
    broken = words.broken(record)
    if not broken:
        return ""
    lines = ["### What failed", ""]
    for cell in broken[:SHOWN_FAILURES]:
        where = text(f"{cell['subject']} {cell['case']} {cell['dtype']} {cell['device']}")
        lines.append(f"- **{where}** {cell['status']}")
        lines += [f"  - {text(line)}" for line in words.cell_lines(cell)]
    if len(broken) > SHOWN_FAILURES:
        lines.append(f"- and {len(broken) - SHOWN_FAILURES:,} more")
    return "\n".join(lines)


def divergences(record: dict) -> str:
    rows = [
        (text(subject), str(count), text(each["says"]), text(each["source"]))
        for subject, each, count in words.shown_divergences(record)
    ]
    if not rows:
        return ""
    return "### Where libraries differ as declared\n\n" + table(("subject", "cells", "what", "source"), rows)


def about(record: dict) -> str:
    devices = {
        f"{device['kind']} {device['name']}"
        for found in record["environments"].values()
        for device in found["devices"]
    }
    lines = [
        " ".join(record["command"]),
        f"{record['generated']}, seed {record['seed']}, commit {record['git']['sha'] or 'unknown'}",
        ", ".join(f"{name} {version}" for name, version in words.versions(record).items()),
        f"{', '.join(sorted(devices))}; Python {record['python']}, {record['platform']}",
        *words.absences(record),
    ]
    listed = "\n".join(f"- {text(line)}" for line in lines)
    return f"<details><summary>environment</summary>\n\n{listed}\n\n</details>"


def table(headings, rows, right: int = 0) -> str:
    """The last `right` columns are aligned to the right."""
    left = len(headings) - right
    rule = ["---"] * left + ["--:"] * right
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, rule, *rows))


def text(plain: str) -> str:
    """On one line, and nothing in it is markup."""
    short = plain if len(plain) <= LONGEST else plain[: LONGEST - 1] + "…"
    return re.sub(r"([\\`*_{}\[\]<>|~&#])", r"\\\1", " ".join(short.split()))
