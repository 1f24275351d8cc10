"""Reports are functions of the record: what each holds, and that nothing in a record can be markup.

record.json is a run of six cases, five subjects and two dtypes; one subject is a plug-in whose window misses
a key and which refuses head size 12. Every status occurs.
"""

import copy
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from parity import record as records
from parity.cli import app
from parity.evidence import EDGES
from parity.report import KINDS, html, renderer
from parity.runner import STATUSES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORD = json.loads((HERE / "record.json").read_text())
SCHEMA = (ROOT / "parity" / "report" / "SCHEMA.md").read_text()
VOID = {"meta", "link", "br", "wbr", "input"}
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&{{ 7 * 7 }}|`\x1b[31m\n# "


class Page(HTMLParser):
    """Every tag with its attributes, in order. Raises where an element is not closed, or by another tag."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def with_cells(cells, complete=True):
    """The record with these cells only, and a summary of them."""
    return RECORD | {"cells": cells, "summary": records.summary(cells, 12.0, complete)}


def hostile():
    """The record with every text that a plug-in or a catalogue can choose replaced."""
    record = copy.deepcopy(RECORD)
    new = {name: f"{name}{HOSTILE}" for name in record["cases"]}
    record["cases"] = {new[name]: case | {"catches": HOSTILE} for name, case in record["cases"].items()}
    for subject in record["subjects"]:
        subject["name"] += HOSTILE
        subject["diverges"] = [each | {"says": HOSTILE, "source": HOSTILE} for each in subject["diverges"]]
    for cell in record["cells"]:
        cell |= {"case": new[cell["case"]], "subject": cell["subject"] + HOSTILE}
        cell["reason"] = HOSTILE if cell["reason"] else ""
    record["command"] = [HOSTILE]
    record["environments"] = {HOSTILE: record["environments"]["torch"]}
    return record


def test_the_stored_record_has_every_status():
    assert {cell["status"] for cell in RECORD["cells"]} == set(STATUSES)
    assert RECORD["levels"] == list(EDGES)


# ---- HTML


def test_the_page_holds_every_cell_once_in_the_matrix():
    found = [
        attrs["data-cell"]
        for tag, attrs in Page(html.render(RECORD)).tags
        if "aria-label" in attrs and "data-cell" in attrs
    ]
    assert sorted(map(int, found)) == list(range(len(RECORD["cells"])))


def test_each_device_has_columns_of_its_own():
    both = [cell | {"device": device} for device in ("cpu", "cuda") for cell in RECORD["cells"]]
    page = Page(html.render(with_cells(both)))
    titles = [attrs["title"] for tag, attrs in page.tags if attrs.get("scope") == "col" and "title" in attrs]
    assert titles[:4] == ["float32 on cpu", "bfloat16 on cpu", "float32 on cuda", "bfloat16 on cuda"]
    assert len(titles) == 4 * len(RECORD["subjects"])


def test_the_page_says_what_the_record_does():
    text = html.render(RECORD)
    assert "5 of 48 failed" in text
    for name in (
        *RECORD["cases"],
        "float32-direct",
        "2026-01-31 12:00 UTC",
        "commit 0123456789",
        "no tpu here",
    ):
        assert name in text
    for subject in RECORD["subjects"]:
        assert f'data-value="{subject["name"]}"' in text
        assert all(
            each["source"] in text for each in subject["diverges"] if each["name"] == "NaN in empty rows"
        )


def test_the_page_fetches_nothing():
    page = Page(html.render(RECORD))
    addresses = [attrs[name] for _, attrs in page.tags for name in ("src", "href") if name in attrs]
    assert addresses == ["data:,"]
    assert "default-src 'none'" in next(attrs["content"] for _, attrs in page.tags if "http-equiv" in attrs)
    assert "url(" not in html.render(RECORD)
    assert "@import" not in html.render(RECORD)


def test_nothing_of_a_record_is_markup_in_the_page():
    text = html.render(hostile())
    tags = [tag for tag, _ in Page(text).tags]
    assert "img" not in tags
    assert tags.count("script") == 2
    assert "49" not in re.findall(r"onerror=alert\(1\)&gt;&#34;&#39;&amp;(.{2})", text)


def test_the_data_of_the_page_is_the_records():
    text = html.render(RECORD)
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])
    for cell, found in zip(RECORD["cells"], data["cells"], strict=True):
        tensors = [dict(zip(data["tensor"], values, strict=True)) for values in found["tensors"]]
        kept = [{name: x for name, x in tensor.items() if x is not None} for tensor in tensors]
        was = [
            {name: x for name, x in tensor.items() if name in data["tensor"] and x is not None}
            for tensor in cell.get("tensors", ())
        ]
        assert kept == was
        assert found | {"tensors": 0} == cell | {"tensors": 0}


# ---- JUnit


def test_junit_counts_what_the_summary_counts():
    root = ET.fromstring(renderer("junit")(RECORD))
    s = RECORD["summary"]
    want = {"tests": 60, "failures": s["failed"], "errors": s["error"]}
    want["skipped"] = s["unsupported"] + s["no_evidence"]
    assert {name: int(root.get(name)) for name in want} == want
    for name in want:
        assert sum(int(suite.get(name)) for suite in root) == want[name]
    tags = {"failures": "failure", "errors": "error", "skipped": "skipped", "tests": "testcase"}
    assert {name: len(root.findall(f".//{tag}")) for name, tag in tags.items()} == want


def test_junit_says_why():
    root = ET.fromstring(renderer("junit")(RECORD))
    failed = root.find(
        ".//testcase[@name='window-left'][@classname='planted.py:off_by_one float32 cpu']/failure"
    )
    assert failed.get("message").startswith("out: 9.94e+05 of the bound at (1, 1, 5, 6): got ")
    assert len(failed.text.splitlines()) == 5
    error = root.find(".//testcase[@name='causal-top-left']/error")
    assert error.get("message") == "ValueError: a head size of 12 & <none> else (planted.py:7)"


def test_junit_of_control_characters_is_xml():
    root = ET.fromstring(renderer("junit")(hostile()))
    assert "\x1b" not in "".join(root.itertext())
    assert any("onerror" in (each.get("message") or "") for each in root.iter("error"))


# ---- Markdown and the badge


def test_the_markdown_summary():
    assert renderer("markdown")(RECORD) == (HERE / "summary.md").read_text()


def test_nothing_of_a_record_is_markup_in_the_summary():
    text = renderer("markdown")(hostile())
    assert "<img" not in text.replace("\\<", "")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {12, 5}


@pytest.mark.parametrize(
    "statuses, complete, message, color",
    [
        (["passed", "diverges", "unsupported"], True, "all 2 hold", "brightgreen"),
        (["passed", "no_evidence"], True, "1 of 2 hold", "brightgreen"),
        (["passed", "failed", "error"], True, "2 of 3 failed", "red"),
        (["passed"], False, "all 1 hold, stopped", "yellow"),
        (["unsupported"], True, "nothing was judged", "yellow"),
        ([], False, "nothing was judged, stopped", "yellow"),
    ],
)
def test_the_badge(statuses, complete, message, color):
    cells = [next(cell for cell in RECORD["cells"] if cell["status"] == status) for status in statuses]
    badge = json.loads(renderer("badge")(with_cells(cells, complete)))
    assert badge == {"schemaVersion": 1, "label": "parity", "message": message, "color": color} | (
        {"isError": True} if color == "red" else {}
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_run_that_was_stopped_has_every_report(kind, count):
    assert renderer(kind)(with_cells(RECORD["cells"][:count], complete=False))


# ---- the schema


def documented(value, free=()):
    """Every key of a record that is not a name of something: a case, a package, a flag."""
    if isinstance(value, list):
        return set().union(*(documented(each) for each in value))
    if not isinstance(value, dict):
        return set()
    names = (
        "versions",
        "flags",
        "environments",
        "absent",
        "cases",
        "claims",
        "options",
        "precision",
        "reasons",
    )
    found = set() if free else set(value)
    for key, each in value.items():
        found |= documented(each, free=key in names and not free)
    return found


def test_every_key_of_a_record_is_documented(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = (
        "--case",
        "window-left",
        "--case",
        "block",
        "--dtype",
        "float32",
        "--subject",
        "attn_torch[reference]",
    )
    files = {kind: f"out/report.{kind}" for kind in KINDS}
    options = [word for kind, file in files.items() for word in (f"--{kind}", file)]
    assert CliRunner().invoke(app, ["run", *words, *options]).exit_code == 0
    run = json.loads(Path("parity-report.json").read_text())
    keys = documented(run)
    assert {key for key in keys if f"`{key}`" not in SCHEMA} == set()
    assert keys - documented(RECORD) == set(), "record.json is out of date"
    for kind, file in files.items():
        assert Path(file).read_text() == renderer(kind)(run)


# ---- the command


def report(*words):
    result = CliRunner().invoke(app, ["report", *map(str, words)])
    return result.exit_code, result.output


def test_a_stored_record_is_rendered_again(tmp_path):
    options = [word for kind in KINDS for word in (f"--{kind}", tmp_path / kind)]
    assert report(HERE / "record.json", *options) == (0, "")
    for kind in KINDS:
        assert (tmp_path / kind).read_text() == renderer(kind)(RECORD)


def test_a_stored_record_is_shown_where_no_file_is_named():
    code, printed = report(HERE / "record.json")
    assert code == 0
    assert printed.splitlines()[-1].startswith("60 cells: 38 passed, 4 differ as declared")


@pytest.mark.parametrize(
    "text, wrong",
    [("{", "is not a report"), ("[]", "is not a report"), ('{"schema": 99}', "has schema 99, wanted 1")],
)
def test_what_is_no_record_exits_2(tmp_path, text, wrong):
    (tmp_path / "other.json").write_text(text)
    code, printed = report(tmp_path / "other.json", "--badge", tmp_path / "badge")
    assert code == 2
    assert wrong in " ".join(printed.split())
    assert not (tmp_path / "badge").exists()


def test_without_jinja2_html_exits_2_before_anything_runs(tmp_path):
    program = "import sys; sys.modules['jinja2'] = None; from parity.cli import main; main()"
    words = ["run", "--case", "normal", "--subject", "torch.sdpa", "--html", "page.html"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stdout + done.stderr == "parity: --html needs jinja2: pip install 'attn-parity[report]'\n"
    assert list(tmp_path.iterdir()) == []
