"""A failure becomes a file, runs again from it, and shrinks to a program of a few lines."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file
from typer.testing import CliRunner

from parity import inputs, replay, runner, shrink
from parity.cases import CATALOGUE
from parity.cli import app
from parity.worker import Given

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = Path(__file__).with_name("plugins.py")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def parity(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the plug-ins, and the failures of one of them."""
    made = tmp_path_factory.mktemp("failures")
    shutil.copy(PLUGINS, made)
    words = ("--subject", "plugins.py:window_off_by_one", "--case", "window-left")
    command = [sys.executable, "-m", "parity", "run", *words, "--dtype", "bfloat16", "--dtype", "float32"]
    subprocess.run(command, cwd=made, env=ENVIRONMENT, capture_output=True, check=False)
    return made


def saved(folder, dtype):
    (found,) = folder.glob(f"parity-failures/*{dtype}--cpu.safetensors")
    return found


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_file_holds_the_inputs_bit_for_bit(folder, dtype):
    failure, made = replay.load(saved(folder, dtype)), inputs.make(CATALOGUE["window-left"], dtype)
    for name in ("q", "k", "v", "dout"):
        np.testing.assert_array_equal(getattr(failure.made, name), getattr(made, name))
    assert failure.made.options == made.options == {"window": (2, 0)}
    assert failure.said["case"] == "window-left"
    assert failure.said["environment"]["versions"]["torch"]
    assert set(failure.got) == {"out", "dq", "dk", "dv"} <= set(failure.wanted) == set(failure.bound)


def test_others_can_read_it(folder):
    """With the library of the format, in the dtype it ran in."""
    file = saved(folder, "bfloat16")
    assert str(load_file(file)["q"].dtype) == "torch.bfloat16"
    with safe_open(file, "np") as opened:
        assert "parity" in opened.metadata()


@pytest.mark.parametrize("name", ["everything", "lengths-deep", "segments", "mask-hidden-key", "sinks"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_option_survives(tmp_path, name, dtype):
    made = inputs.make(CATALOGUE[name], dtype)
    arrays = {
        n: (x, dtype if x.dtype == np.float64 else x.dtype.name)
        for n, x in made.options.items()
        if isinstance(x, np.ndarray)
    }
    arrays |= {n: (getattr(made, n), dtype) for n in ("q", "k", "v")}
    read, metadata = replay.unpack(replay.pack(arrays, {"a": "b"}))
    assert metadata == {"a": "b"}
    for n, (x, _) in arrays.items():
        np.testing.assert_array_equal(read[n], x)
        assert read[n].dtype == x.dtype


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "other").write_bytes(b"nothing of the kind")
    code, printed = parity("replay", tmp_path / "other")
    assert code == 2
    assert "is not a failure that parity wrote" in " ".join(printed.split())


def test_replay_fails_again_and_another_subject_passes(folder, monkeypatch):
    monkeypatch.chdir(folder)
    code, printed = parity("replay", saved(folder, "float32"))
    assert code == 1
    assert "out: " in printed
    code, printed = parity("replay", saved(folder, "float32"), "--subject", "torch.sdpa")
    assert (code, printed.strip()) == (0, "passed: torch.sdpa window-left float32 cpu")


def test_shrink_gives_a_small_program_that_shows_the_failure(folder, monkeypatch):
    monkeypatch.chdir(folder)
    code, printed = parity("shrink", saved(folder, "float32"))
    assert code == 1
    assert "still fails (out" in printed
    assert "window=(" in printed
    program = printed.partition("# torch\n")[2].partition("\n# jax")[0]
    assert len(program.splitlines()) < 15
    assert program.count(",") < 40
    ran = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    wanted = float(program.rpartition("wanted: ")[2].strip().strip("[]").split(",")[0].strip("[]"))
    got = float(ran.stdout.partition("(")[2].strip().strip("[").split(",")[0].split("]")[0])
    assert not abs(got - wanted) < 0.01
    smaller = saved(folder, "float32").with_suffix(".shrunk.safetensors")
    assert replay.load(smaller).made.q.size < 100
    assert parity("replay", smaller)[0] == 1


def test_what_does_not_fail_is_not_shrunk(folder, monkeypatch):
    monkeypatch.chdir(folder)
    code, printed = parity("shrink", saved(folder, "float32"), "--subject", "torch.sdpa")
    assert code == 3
    assert "does not fail any more: passed" in printed


# ---- the steps


@pytest.mark.parametrize(
    "name",
    [
        "everything",
        "lengths-deep",
        "segments-cross",
        "plain-causal",
        "deep-mask",
        "sinks",
        "decode-length",
        "bias-key-axis",
        "dropout-mask-broadcast",
        "layout-expanded",
    ],
)
def test_every_step_is_a_call_that_the_contract_allows(name):
    made = inputs.make(CATALOGUE[name], "float32")
    seen = set()
    for what, smaller in shrink.steps(made, "float32"):
        replay.case_of(smaller, name)
        with np.errstate(invalid="ignore"):  # a hidden NaN may come to light
            runner.truth_of(Given(smaller))
        seen.add(what.split()[0])
    assert {"q", "k", "v", "d"} <= seen


def test_shrink_finds_the_one_thing_that_matters():
    """Fails whenever a key position above 4 is visible under a softcap: everything else goes."""
    made = inputs.make(CATALOGUE["everything"], "float32")
    found, asked = shrink.shrink(
        made, "float32", lambda made: "softcap" in made.options and made.k.shape[-2] > 4
    )
    assert set(found.options) == {"softcap"}
    assert (found.q.shape, found.k.shape, found.v.shape) == ((1, 1, 1, 1), (1, 1, 5, 1), (1, 1, 5, 1))
    assert asked < 200


def test_shrink_ends_even_if_everything_fails():
    made = inputs.make(CATALOGUE["window-left"], "float32")
    made = replace(made, options={"window": (5, 3), "q_offset": 9})
    found, asked = shrink.shrink(made, "float32", lambda made: "window" in made.options)
    assert found.options in ({"window": (None, None)}, {"window": (None, 0)}, {"window": (0, None)})
    assert asked < 200


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not one",
        (2).to_bytes(8, "little") + b"[]",
        replay.pack({"weight": (np.ones(3), "float32")}, {}),  # somebody else's
        replay.pack({"q": (np.ones(3), "float32")}, {"parity": '{"schema": 1}'}),  # cut
    ],
)
@pytest.mark.parametrize("command", ["replay", "shrink"])
def test_a_file_of_somebody_else_is_refused_with_one_line(tmp_path, command, content):
    file = tmp_path / "other.safetensors"
    file.write_bytes(content)
    code, printed = parity(command, file)
    assert code == 2
    assert "other.safetensors is not a failure that parity wrote" in " ".join(printed.split())


def test_a_file_of_another_schema_says_so(tmp_path):
    file = tmp_path / "newer.safetensors"
    file.write_bytes(replay.pack({}, {"parity": '{"schema": 2}'}))
    code, printed = parity("replay", file)
    assert code == 2
    assert "newer.safetensors has schema 2, wanted 1" in " ".join(printed.split())
