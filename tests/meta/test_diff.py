"""Two records side by side."""

import copy
import io
import json

import pytest
from rich.console import Console
from typer.testing import CliRunner

from parity import record
from parity.cli import app
from parity.report import diff
from parity.verdict import Judgement


def cell(case, status, *, share=0.1, subject="torch.sdpa", diverges=()):
    tensors = [Judgement("out", "passed", max_share=share).record()]
    where = {"subject": subject, "case": case, "dtype": "float32", "device": "cpu"}
    return {
        **where,
        "status": status,
        "reason": "",
        "claim": "float32",
        "diverges": diverges,
        "tensors": tensors,
    }


BEFORE = dict.fromkeys(record.PARTS) | {
    "schema": 1,
    "versions": {"numpy": "2.4"},
    "environments": {"torch": {"versions": {"torch": "2.13"}}},
    "summary": {"complete": True, "exit_code": 1},
    "cells": [
        cell("stays", "passed"),
        cell("breaks", "passed"),
        cell("heals", "error"),
        cell("grows", "passed", share=0.2),
        cell("shrinks", "passed", share=0.9),
        cell("stops", "diverges", diverges=["NaN spreads"]),
        cell("vanishes", "passed"),
    ],
}
AFTER = copy.deepcopy(BEFORE)
AFTER["environments"]["torch"]["versions"]["torch"] = "2.14"
AFTER["cells"] = [
    cell("stays", "passed"),
    cell("breaks", "failed"),
    cell("heals", "passed"),
    cell("grows", "passed", share=0.7),
    cell("shrinks", "passed", share=0.1),
    cell("stops", "failed"),
    cell("appears", "passed"),
]


def cases(changes):
    return [change.key[1] for change in changes]


def test_what_changed_is_told_apart():
    found = diff.compare(BEFORE, AFTER)
    assert cases(found.broken) == ["breaks", "stops"]
    assert cases(found.repaired) == ["heals"]
    assert cases(found.grown) == ["grows"]
    assert found.changed == []
    assert found.gone == {("torch.sdpa", "NaN spreads"): 1}
    assert found.versions == {"torch": ("2.13", "2.14")}
    assert (found.only_before, found.only_after, found.common) == (1, 1, 6)
    assert found.exit_code == 1


def test_a_run_against_itself_changes_nothing():
    found = diff.compare(BEFORE, BEFORE)
    assert (found.exit_code, found.broken, found.grown, found.versions) == (0, [], [], {})


def test_a_share_that_is_infinite_is_no_growth():
    wild = {**BEFORE, "cells": [cell("grows", "no_evidence", share="inf")]}
    assert diff.compare(BEFORE, wild).grown == []


def test_it_reads_well():
    console = Console(width=200, record=True, file=io.StringIO())
    diff.show(diff.compare(BEFORE, AFTER), console)
    printed = console.export_text()
    assert "torch 2.13 -> 2.14" in printed
    assert "torch.sdpa: NaN spreads (1 cells)" in printed
    assert ".20    .70" in printed
    assert printed.strip().endswith("use more of their budget, 1 only before, 1 only after")


def test_the_command(tmp_path):
    for name, text in (("a", BEFORE), ("b", AFTER), ("old", {"schema": 0}), ("list", [])):
        (tmp_path / name).write_text(json.dumps(text))

    def parity(*names):
        return CliRunner().invoke(app, ["diff", *(str(tmp_path / name) for name in names)])

    assert parity("a", "a").exit_code == 0
    assert parity("a", "b").exit_code == 1
    assert "has schema 0, wanted 1" in parity("a", "old").output
    for names in (("a", "list"), ("a", "nowhere"), ("a",)):
        assert parity(*names).exit_code == 2


@pytest.mark.parametrize("status", ["unsupported", "no_evidence"])
def test_another_status_is_shown(status):
    found = diff.compare(BEFORE, {**BEFORE, "cells": [cell("stays", status)]})
    assert cases(found.changed) == ["stays"]
