"""The parity command: its options are a promise, its exit codes are what scripts read."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from parity import calibrate, runner
from parity.cli import app
from parity.mutants import proof, registry, survey
from parity.runner import STATUSES

PLUGINS = Path(__file__).with_name("plugins.py")
ROOT = Path(__file__).resolve().parents[2]
REPORTS = ("--badge", "--html", "--junit", "--markdown")
COMMANDS = {
    "run": [
        *("--case", "--device", "--dtype", "--fail-fast", "--full"),
        *("--json", "--quick", "--seed", "--subject", "--timeout", *REPORTS),
    ],
    "calibrate": ["--dtype", "--outputs", "--subject"],
    "diff": ["before", "after"],
    "list": ["kind"],
    "mutants": ["--claim", "--dtype", "--framework", "--json"],
    "replay": ["file", "--subject"],
    "report": ["file", *REPORTS],
    "shrink": ["file", "--subject"],
    "show": ["name"],
}


def parity(*words):
    """(exit code, what was printed, the report or None)."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    path = Path("parity-report.json")
    return result.exit_code, result.output, json.loads(path.read_text()) if path.exists() else None


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_options_are_frozen():
    commands = get_command(app).commands
    found = {
        name: sorted(option for parameter in command.params for option in parameter.opts)
        for name, command in commands.items()
    }
    assert found == {name: sorted(options) for name, options in COMMANDS.items()}


def test_a_run_in_which_all_holds_exits_0_and_writes_its_record():
    code, printed, report = parity(
        "run", "--case", "causal", "--case", "mask-b*", "--subject", "torch.sdpa[flash]"
    )
    assert code == 0
    assert report["schema"] == 1
    assert report["summary"]["exit_code"] == 0
    assert report["summary"]["complete"]
    assert {cell["dtype"] for cell in report["cells"]} == {"float32", "float64", "bfloat16"}
    assert report["environments"]["torch"]["precision"]["float32_matmul_precision"] == "highest"
    assert report["environments"]["torch"]["threads"] == 1
    assert report["seed"] == 0
    assert "\ncausal " in printed
    assert "0 failed" in printed.splitlines()[-2]
    assert "no cuda here" in printed


def test_a_failure_exits_1_and_says_where():
    code, printed, report = parity(
        "run", "--case", "normal", "--dtype", "float32", "--subject", f"{PLUGINS}:raises"
    )
    assert code == 1
    assert "these heads are not for me" in printed
    assert report["summary"]["error"] == 1


@pytest.mark.parametrize(
    "words, text",
    [
        (["--case", "nosuch"], "no case matches 'nosuch'"),
        (["--subject", "nosuch"], "no subject matches 'nosuch'"),
        (["--subject", "nofile.py:f"], "nofile.py:f: no file nofile.py"),
        (["--subject", "nopackage.kernels:f"], "nopackage.kernels:f: no package 'nopackage'"),
        (["--json", "."], "cannot write .: it is a folder"),
        (["--json", "/dev/null/report.json"], "cannot write /dev/null/report.json: File exists: /dev/null"),
        (["--html", "/dev/null/page.html"], "cannot write /dev/null/page.html: File exists: /dev/null"),
        (["--dtype", "float8"], "'float8' is not one of"),
        (["--device", "abacus"], "'abacus' is not one of"),
        (["--quick", "--full"], "exclude each other"),
        (["--seed", "-1"], "greater than or equal to 0"),
        (["--what"], "No such option"),
    ],
)
def test_wrong_usage_exits_2_and_runs_nothing(words, text):
    code, printed, report = parity("run", *words)
    assert code == 2
    assert text in " ".join(printed.split())
    assert report is None


def test_a_device_that_is_not_there_exits_2_with_one_line():
    code, printed, report = parity("run", "--device", "tpu", "--subject", "torch.sdpa", "--case", "normal")
    assert (code, report) == (2, None)
    assert printed.strip() == "parity: --device tpu: no tpu here: torch has cpu"


def test_a_run_that_judges_nothing_exits_3():
    code, _, report = parity("run", "--case", "plain", "--subject", "torch.MultiheadAttention")
    assert code == 3
    assert report["summary"]["unsupported"] == 3
    assert {cell["reason"] for cell in report["cells"]} == {"takes (T, B, H * D) only"}


def test_fail_fast_stops_at_the_first_failure():
    words = ("--case", "normal*", "--case", "big*", "--dtype", "float32", "--subject", f"{PLUGINS}:raises")
    code, _, report = parity("run", *words, "--fail-fast")
    assert code == 1
    assert report["summary"]["error"] == 1
    assert not report["summary"]["complete"]


def test_an_interrupt_leaves_a_valid_record(tmp_path):
    words = ("run", "--case", "normal", "--case", "ascending-short", "--subject", f"{PLUGINS}:gets_stuck")
    command = [sys.executable, "-m", "parity", *words, "--dtype", "float32", "--json", "partial.json"]
    reached = tmp_path / "reached"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PARITY_TEST_MARKER": str(reached)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None and not reached.exists():
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    report = json.loads((tmp_path / "partial.json").read_text())
    assert "interrupted" in printed
    assert process.returncode == report["summary"]["exit_code"] == 130  # though all that was judged held
    assert report["summary"]["passed"] > 0
    assert not report["summary"]["complete"]
    assert len(report["cells"]) == sum(report["summary"][status] for status in STATUSES) > 0


def test_an_interrupt_before_the_first_cell_leaves_a_valid_record(monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.Run, "start", interrupted)
    code, printed, report = parity("run", "--case", "normal")
    assert code == 130
    assert "interrupted" in printed
    assert (report["cells"], report["summary"]["complete"]) == ([], False)
    assert parity("report", "parity-report.json", "--html", "page.html")[0] == 0


def test_a_failure_that_was_found_before_an_interrupt_is_a_failure(monkeypatch):
    cells = runner.Run.cells

    def interrupted(self):
        yield from cells(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.Run, "cells", interrupted)
    words = ("run", "--case", "normal", "--dtype", "float32", "--subject")
    assert parity(*words, f"{PLUGINS}:raises")[0] == 1
    assert parity(*words, "torch.sdpa[math]")[0] == 130


def test_the_judge_of_the_judge_interrupted_does_not_exit_0(monkeypatch):
    def interrupted(*given):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(proof.Proof, "run", interrupted)
    monkeypatch.setattr(calibrate, "calibrate", interrupted)
    assert parity("mutants", "--framework", "numpy", "--dtype", "float32")[0] == 130
    assert parity("calibrate", "--dtype", "float32")[0] == 130


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "is not a report of parity"),
        ("[1]", "is not a report of parity"),
        ('{"a": 1}', "is not a report of parity"),
        ('{"schema": 2}', "has schema 2, wanted 1"),
        ('{"schema": 1}', "is not a whole report of parity: no generated, command, versions"),
    ],
)
@pytest.mark.parametrize("command", ["report", "diff"])
def test_what_is_no_report_is_refused_with_one_line(command, text, problem):
    Path("other.json").write_text(text)
    code, printed, _ = parity(command, *["other.json"] * (1 + (command == "diff")))
    assert code == 2
    assert f"other.json {problem}" in " ".join(printed.split())
    assert "Traceback" not in printed


def test_a_report_of_which_a_part_is_missing_is_refused():
    whole = parity("run", "--case", "normal", "--dtype", "float32", "--subject", "torch.sdpa[math]")[2]
    del whole["cells"][0]["tensors"][0]["max_share"]
    Path("cut.json").write_text(json.dumps(whole))
    code, printed, _ = parity("report", "cut.json")
    assert code == 2
    assert "cut.json is not a whole report of parity: no max_share in a tensor" in " ".join(printed.split())


@pytest.fixture
def few_mutants(monkeypatch):
    names = ("scale-forgotten", "delta-missing", "block-heads-not-transposed-back")
    chosen = {name: registry.MUTANTS[name] for name in names}
    monkeypatch.setattr(proof, "MUTANTS", chosen)
    monkeypatch.setattr(proof, "survey", lambda **how: survey(**how, mutants=chosen.values()))
    return chosen


def test_mutants_are_counted_by_theme_and_named_by_what_killed_them(few_mutants):
    words = ("mutants", "--framework", "numpy", "--dtype", "float32", "--json", "mutants.json")
    code, printed, _ = parity(*words)
    assert code == 0
    assert all(f"{m.theme}: " in printed and f"  {name} " in printed for name, m in few_mutants.items())
    assert f"{len(few_mutants)} of {len(few_mutants)} killed" in printed
    said = json.loads(Path("mutants.json").read_text())
    assert (said["schema"], said["alive"], said["twins_failed"]) == (1, [], [])
    assert [m["name"] for m in said["mutants"]] == list(few_mutants)
    assert all(len(m["killed_by"]["numpy"]["float32"]) == 2 for m in said["mutants"])


def test_a_mutant_that_is_alive_exits_1_by_name(few_mutants, monkeypatch):
    right = few_mutants["scale-forgotten"].right
    alive = replace(few_mutants["scale-forgotten"], wrong=right.scale)
    monkeypatch.setitem(few_mutants, "scale-forgotten", alive)
    code, printed, _ = parity("mutants", "--framework", "numpy", "--dtype", "float32")
    assert code == 1
    assert "alive: scale-forgotten in numpy, claim float32: Scores are not scaled." in printed


def test_an_unknown_claim_is_refused():
    code, printed, _ = parity("mutants", "--claim", "float8")
    assert code == 2
    assert "no claim 'float8'" in " ".join(printed.split())


def test_list_and_show():
    assert "mask-hidden-key" in parity("list")[1]
    assert "torch.sdpa[math]" in parity("list", "subjects")[1]
    assert "bfloat16-cpuflash" in parity("list", "claims")[1]
    code, printed, _ = parity("show", "window-2-0-six")
    assert code == 0
    picture = [line.strip() for line in printed.splitlines() if set(line.strip()) <= {"#", "."}]
    assert [row for row in picture if row] == ["#.....", "##....", "###...", ".###..", "..###.", "...###"]
    assert parity("show", "nosuch")[0] == 2
    assert "style module" in parity("show", "block-module")[1]


def test_importing_the_harness_imports_no_framework():
    program = (
        "import sys, parity.cli, parity.runner, parity.subjects; parity.subjects.built_in(); "
        "print({'torch', 'jax', 'flax'} & set(sys.modules))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "set()"
