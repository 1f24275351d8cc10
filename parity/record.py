"""The record of a run: what parity-report.json holds and the reports read. Described in report/SCHEMA.md."""

import json
import math
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, fields
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import numpy as np

from parity import devices, evidence, inputs
from parity.blocks import BlockCase
from parity.cases import Case
from parity.cases.reports import REPORTS
from parity.runner import BROKEN, STATUSES, Run
from parity.verdict import Judgement

SCHEMA = 1
INTERRUPTED = 130  # as shells say it: 128, and 2 for SIGINT
PICTURE = (40, 64)  # the largest mask that is drawn whole, queries x keys


def header(run: Run, command: list[str], budget: str) -> dict:
    """Everything about a started run but its cells and their summary."""
    plan = run.plan
    return {
        "schema": SCHEMA,
        "generated": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "git": git(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: devices.installed(name) for name in ("attn-parity", "numpy")},
        "flags": devices.flags(),
        "budget": budget,
        "seed": plan.seed,
        "device": plan.device,
        "timeout": plan.timeout,
        "compilation": "xla_backend_optimization_level 0" if plan.quick_compile else "default",
        "dtypes": list(plan.dtypes),
        "levels": list(evidence.EDGES),
        "environments": run.environments,
        "absent": run.absent,
        "subjects": [describe_subject(subject) for subject in run.subjects],
        "cases": {case.name: describe_case(case) for case in plan.cases},
    }


def describe_subject(subject) -> dict:
    diverges = {d.name: {"name": d.name, "says": d.says, "source": d.source} for d in subject.diverges}
    return {
        "name": subject.name,
        "framework": subject.framework,
        "claims": dict(subject.claims),
        "exposes_lse": subject.exposes_lse,
        "forward_only": list(subject.forward_only),
        "constants": list(subject.constants),
        "diverges": list(diverges.values()),
    }


def describe_case(case: Case | BlockCase) -> dict:
    if isinstance(case, BlockCase):
        return asdict(case)
    return {
        "catches": case.catches,
        "origin": REPORTS.get(case.origin, case.origin),
        "q": list(case.q),
        "kv": list(case.kv),
        "v_dim": case.v_dim,
        "fill": case.fill,
        "layout": case.layout,
        "poison": case.poison,
        "options": {name: repr(value) for name, value in case.options.items()},
        "picture": picture(case),
    }


def picture(case: Case) -> list[str]:
    """What the first head of the first batch entry sees: a line per query, # seen, . hidden."""
    made = inputs.make(case, "float32")
    seen = inputs.visible(case, {"q": made.q, "k": made.k, "v": made.v}, made.options)
    first = np.any(seen.reshape(math.prod(seen.shape[:-2]), *seen.shape[-2:])[:1], axis=0)  # (Tq, Tk)
    return ["".join(".#"[int(x)] for x in row[: PICTURE[1]]) for row in first[: PICTURE[0]]]


def git() -> dict:
    """{"sha", "dirty"} of the working tree this runs from; empty strings without one."""

    def ask(*words: str) -> str:
        where = Path(__file__).resolve().parent.parent
        answer = subprocess.run(["git", *words], cwd=where, capture_output=True, text=True, check=False)
        return answer.stdout.strip() if answer.returncode == 0 else ""

    try:
        return {"sha": ask("rev-parse", "HEAD"), "dirty": bool(ask("status", "--porcelain", "-uno"))}
    except FileNotFoundError:
        return {"sha": "", "dirty": False}


def summary(cells: list[dict], seconds: float, complete: bool) -> dict:
    """Counts by status, time, and the exit code.

    1 something failed; else 130 it was interrupted: what was not judged may fail; 3 nothing was judged; 0 all
    held.
    """
    counts = Counter(cell["status"] for cell in cells)
    judged = counts["passed"] + counts["diverges"]
    broken = any(counts[status] for status in BROKEN)
    code = 1 if broken else INTERRUPTED if not complete else 0 if judged else 3
    return {
        **{status: counts[status] for status in STATUSES},
        "seconds": round(seconds, 1),
        "complete": complete,
        "exit_code": code,
    }


PARTS = (
    *("schema", "generated", "command", "versions", "environments", "absent", "levels", "dtypes", "seed"),
    *("subjects", "cases", "summary", "cells"),
)
CELL = ("subject", "case", "dtype", "device", "status", "reason", "claim")
TENSOR = tuple(field.name for field in fields(Judgement))


def read(path: Path) -> dict:
    """A report that a run wrote. Raises ValueError if it is none, of another schema, or not all there."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        if report["schema"] != SCHEMA:
            problem = f"has schema {report['schema']}, wanted {SCHEMA}"
        elif missing := list(islice(lacking(report), 3)):
            problem = f"is not a whole report of parity: no {', '.join(missing)}"
        else:
            return report
    except (ValueError, KeyError, TypeError, AttributeError):
        problem = "is not a report of parity"
    raise ValueError(f"{path} {problem}")


def lacking(report: dict) -> Iterator[str]:
    """What every report has, and this one has not."""
    yield from (name for name in PARTS if name not in report)
    yield from (f"{name} in summary" for name in ("complete", "exit_code") if name not in report["summary"])
    for cell in report["cells"]:
        yield from (f"{name} in a cell" for name in CELL if name not in cell)
        for tensor in cell.get("tensors", ()):
            yield from (f"{name} in a tensor" for name in TENSOR if name not in tensor)


def command_line() -> list[str]:
    return ["parity", *sys.argv[1:]]


def write(report: dict, path: Path) -> None:
    """A cell a line: small, and grep and diff show whole cells. path is never left half written."""
    head = json.dumps(report | {"cells": []}, indent=1, allow_nan=False).removesuffix("[]\n}")
    cells = ",\n".join(json.dumps(cell, allow_nan=False) for cell in report["cells"])
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(f"{head}[\n{cells}\n]\n}}\n")
    os.replace(beside, path)
