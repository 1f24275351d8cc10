"""The record as one HTML page that needs nothing else: no network, no fonts, no other file.

The matrix and the tables are in the markup; the details of a cell are drawn by page.js from the data beside.
"""

import re
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from parity.report import words

SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
STATUS = {
    "passed": "passed",
    "diverges": "differs as declared",
    "no_evidence": "no evidence",
    "unsupported": "unsupported",
    "failed": "failed",
    "error": "did not run",
}
MARKS = {"unsupported": "–", "no_evidence": "?", "failed": "FAIL", "error": "ERR"}
TENSOR = (
    *("name", "status", "reason", "max_share", "p99_share", "worst", "expected", "got", "bound"),
    *("nan", "inf", "lost", "vacuous", "atol", "rtol", "heat", "heat_of", "histogram"),
)
SHOWN_CELLS = 24


class Column(NamedTuple):
    """A column of the matrix."""

    subject: str
    dtype: str
    device: str


class Face(NamedTuple):
    """What the matrix shows of a cell: its number, a class of page.css, a text, and the same in words."""

    n: int
    look: str
    text: str
    label: str


def render(record: dict) -> str:
    """It shows the matrix without its script too: only the filters and the details need that."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        autoescape=True, loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment.get_template("page.html.jinja").render(view(record))


def view(record: dict) -> dict:
    """What the template needs."""
    columns, rows = matrix(record)
    groups = defaultdict(list)
    for column in columns:
        groups[column.subject].append(column)
    return {
        "record": record,
        "words": words,
        "short": SHORT,
        "when": datetime.fromisoformat(record["generated"]),
        "groups": groups,
        "firsts": [n == 0 or column.subject != columns[n - 1].subject for n, column in enumerate(columns)],
        "parts": parts,
        "diverged": divergences(record),
        "rows": rows,
        "filters": filters(record, columns),
        "failures": failures(record),
        "shown_cells": SHOWN_CELLS,
        "looks": looks(record["levels"]),
        "data": data(record),
    }


def matrix(record: dict) -> tuple[list[Column], list[tuple[str, list[Face | None]]]]:
    """The columns, and for each case its name and a face per column; None where a cell was not reached."""
    known: dict[tuple[Column, str], Face] = {}
    for n, cell in enumerate(record["cells"]):
        known[Column(cell["subject"], cell["dtype"], cell["device"]), cell["case"]] = face(
            n, cell, record["levels"]
        )
    order = {subject["name"]: n for n, subject in enumerate(record["subjects"])}
    dtypes = {dtype: n for n, dtype in enumerate(record["dtypes"])}
    columns = sorted(
        {column for column, _ in known}, key=lambda c: (order[c.subject], c.device, dtypes[c.dtype])
    )
    return columns, [(case, [known.get((column, case)) for column in columns]) for case in record["cases"]]


def face(n: int, cell: dict, edges: list[float]) -> Face:
    status, share = cell["status"], words.share(cell)
    number = "0" if share == 0.0 else words.short(share)
    if status in MARKS:
        return Face(n, status, MARKS[status], STATUS[status])
    if status == "diverges":
        return Face(n, status, f"~{number}", f"{STATUS[status]}, {number} of the bound then")
    return Face(n, f"l{level(share, edges)}", number, f"passed, {number} of the bound")


def level(share: float, edges: list[float]) -> int:
    """As in the heat maps: 0 for nothing, n + 1 for a share up to edges[n]; of what passes, at most 1."""
    above = sum(share > edge for edge in edges if edge < 1.0)
    return 0 if share == 0.0 else above + 1


def looks(edges: list[float]) -> list[tuple[str, str]]:
    """(class, text) of each level."""
    texts = ["0", *(f"≤ {edge:g}" for edge in edges), f"> {edges[-1]:g}"]
    return [(f"l{n}", text.replace("0.", ".")) for n, text in enumerate(texts)]


def failures(record: dict) -> dict[tuple[str, str], list[int]]:
    """(subject, what is wrong) -> the numbers of the cells that failed so."""
    found = defaultdict(list)
    for n, cell in enumerate(record["cells"]):
        if cell["status"] in ("failed", "error"):
            outside = [tensor["name"] for tensor in cell.get("tensors", ()) if tensor["status"] == "failed"]
            wrong = f"outside the bound: {', '.join(outside)}" if outside else ""
            found[cell["subject"], "; ".join(filter(None, (cell["reason"], wrong)))].append(n)
    return found


def divergences(record: dict) -> dict[tuple[str, str], list[tuple[str, int]]]:
    """(what differs, its source) -> (subject, in how many cells it showed) of each that declares it."""
    found = defaultdict(list)
    for subject, each, count in words.shown_divergences(record):
        found[each["says"], each["source"]].append((subject, count))
    return found


def filters(record: dict, columns: list[Column]) -> dict[str, dict[str, tuple[str, int]]]:
    """What can be chosen: name -> value -> (how it is called, how many cells it has)."""
    count: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for cell in record["cells"]:
        for name in ("status", "dtype", "device", "subject"):
            count[name][cell[name]] += 1
    known = {
        "status": list(STATUS),
        "dtype": record["dtypes"],
        "device": list(dict.fromkeys(column.device for column in columns)),
        "subject": list(dict.fromkeys(column.subject for column in columns)),
    }
    return {
        name: {
            value: (STATUS.get(value, value), count[name][value]) for value in values if value in count[name]
        }
        for name, values in known.items()
    }


def parts(name: str) -> list[str]:
    """A name where a line may break in it."""
    return [part for part in re.split(r"(?<=[/_:])|(?=[.\[])|(?<=[a-z])(?=[A-Z])", name) if part]


def data(record: dict) -> dict:
    """What page.js draws a cell's details from. A tensor is a list of what the names in "tensor" say."""
    cells = [
        cell | {"tensors": [[tensor.get(name) for name in TENSOR] for tensor in cell.get("tensors", ())]}
        for cell in record["cells"]
    ]
    return {
        "tensor": TENSOR,
        "cells": cells,
        "cases": record["cases"],
        "subjects": {subject["name"]: subject for subject in record["subjects"]},
        "levels": [text for _, text in looks(record["levels"])],
        "status": STATUS,
        "seed": record["seed"],
    }
