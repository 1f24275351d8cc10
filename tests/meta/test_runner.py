"""The runner: every cell ends with a status and a reason, and what breaks costs its own cells only."""

from pathlib import Path

import numpy as np
import pytest

from parity import runner
from parity.blocks import BLOCKS, given, mapped
from parity.cases import CATALOGUE
from parity.inputs import represent
from parity.subjects import built_in
from parity.worker import Answer, Task

PLUGINS = Path(__file__).with_name("plugins.py")
CASES = tuple(CATALOGUE[name] for name in ("normal", "big", "causal"))


def run(*subjects, cases=CASES, dtypes=("float32",), **options):
    """{(subject's last word, case, dtype): cell}."""
    known = built_in()
    subjects = tuple(f"{PLUGINS}:{s[1:]}" if s.startswith(":") else known[s] for s in subjects)
    started = runner.Run(runner.Plan(subjects, cases, dtypes, **options))
    started.start()
    return {(c["subject"].rpartition(":")[2], c["case"], c["dtype"]): c for c in started.cells()}


def right(case=CASES[0], dtype="float32"):
    """The oracle, whose values are a right answer."""
    return runner.truth_of((case, dtype, 0))[1]


def judged(dtypes=None, subject="torch.sdpa", case=CASES[0], **changed):
    """The cell of the oracle's own values, with some tensors changed or, if None, left out."""
    tensors = {name: getattr(right(case), name) for name in ("out", "dq", "dk", "dv")} | changed
    tensors = {name: x for name, x in tensors.items() if x is not None}
    answer = Answer(tensors, dict.fromkeys(tensors, "float32") | (dtypes or {}), 0.0)
    return runner.judge(built_in()[subject], Task(subject, case, "float32", "cpu", 0), answer)


def statuses(cells, subject):
    return [cell["status"] for (name, *_), cell in sorted(cells.items()) if name == subject]


def reasons(cells, subject):
    return {cell["reason"] for (name, *_), cell in cells.items() if name == subject and cell["reason"]}


@pytest.fixture(scope="module")
def broken():
    """Right and broken plug-ins, and a library, in one run."""
    return run("torch.sdpa", ":attend", ":raises", ":missing")


def test_a_right_plug_in_passes_and_what_it_does_not_name_is_unsupported():
    cells = run(":attend", cases=(*CASES, CATALOGUE["softcap"]))
    assert statuses(cells, "attend") == ["passed"] * 3 + ["unsupported"]  # big, causal, normal, softcap
    assert cells["attend", "softcap", "float32"]["reason"] == "has no softcap"
    names = [tensor["name"] for tensor in cells["attend", "causal", "float32"]["tensors"]]
    assert names == ["out", "lse", "dq", "dk", "dv"]


def test_an_exception_costs_its_own_cells(broken):
    assert statuses(broken, "torch.sdpa") == ["passed"] * 3
    assert statuses(broken, "attend") == ["passed"] * 3
    assert statuses(broken, "raises") == ["error", "unsupported", "error"]  # big, causal, normal
    assert any("these heads are not for me (plugins.py:" in reason for reason in reasons(broken, "raises"))


def test_a_wrong_form_says_what_was_got_and_wanted():
    assert judged(out=right().out[..., :-1])["reason"] == "out has shape (2, 3, 14, 7), wanted (2, 3, 14, 8)"
    assert judged(dtypes={"out": "float64"})["reason"] == "out has dtype float64, wanted float32"
    assert judged(dv=None)["reason"] == "no dv: the output does not depend on it"


def test_nan_is_counted_apart_from_finite_errors():
    out = right().out.copy()
    out[..., 0] = np.nan
    cell = judged(out=out)
    assert (cell["status"], cell["tensors"][0]["nan"], cell["tensors"][0]["inf"]) == ("failed", 2 * 3 * 14, 0)
    assert cell["tensors"][0]["atol"] == 0.0  # of the elements that are finite
    assert {tensor["status"] for tensor in cell["tensors"][1:]} == {"passed"}


def test_a_wrong_value_fails_and_says_where():
    dk = right().dk.copy()
    dk[1, 2, 3, 4] += 0.01
    cell = judged(dk=dk)
    (failed,) = (tensor for tensor in cell["tensors"] if tensor["status"] == "failed")
    assert (cell["status"], failed["name"], failed["worst"]) == ("failed", "dk", (1, 2, 3, 4))
    assert failed["max_share"] > 100


def test_a_plug_in_that_cannot_be_loaded_costs_its_own_cells(broken):
    assert statuses(broken, "missing") == ["error"] * 3
    assert any("has no missing" in reason for reason in reasons(broken, "missing"))


def test_a_hang_and_a_crash_cost_one_cell_each(tmp_path, monkeypatch):
    monkeypatch.setenv("PARITY_TEST_MARKER", str(tmp_path / "hung"))
    cells = run(":hangs_once", ":dies", "torch.sdpa", timeout=5.0)
    assert sorted(statuses(cells, "hangs_once")) == ["error", "passed", "unsupported"]
    assert "no answer after 5 s" in reasons(cells, "hangs_once")
    assert statuses(cells, "dies") == ["error", "unsupported", "error"]
    assert "the process died (exit code 7)" in reasons(cells, "dies")
    assert statuses(cells, "torch.sdpa") == ["passed"] * 3


def test_declarations_are_kept():
    cells = run(":picky", ":claims_too_much", dtypes=("float32", "bfloat16"))
    assert cells["picky", "normal", "float32"]["status"] == "passed"
    assert cells["picky", "big", "float32"]["reason"] == "too big"
    assert cells["picky", "normal", "bfloat16"]["reason"] == "claims nothing for bfloat16"
    held_to = cells["claims_too_much", "normal", "bfloat16"]  # rounds its weights and claims that it does not
    assert (held_to["status"], held_to["claim"]) == ("failed", "bfloat16-direct")


def test_numpy_functions_run_forward_only():
    cells = run(":in_numpy", cases=(CATALOGUE["normal"],))
    cell = cells["in_numpy", "normal", "float32"]
    assert (cell["status"], cell["backward"]) == ("passed", False)
    assert [tensor["name"] for tensor in cell["tensors"]] == ["out"]


def test_the_frameworks_run_the_same_cases():
    cells = run(
        "attn_torch[reference]", "attn_jax[reference]", cases=(CATALOGUE["everything"], BLOCKS["block"])
    )
    assert {cell["status"] for cell in cells.values()} == {"passed"}
    assert len(cells) == 4


def test_a_device_that_nobody_has_is_refused():
    with pytest.raises(runner.NoDevice, match="no tpu here: torch has cpu"):
        run("torch.sdpa", device="tpu")


def test_a_framework_that_is_not_installed_is_unsupported(tmp_path, monkeypatch):
    (tmp_path / "jax.py").write_text("raise ImportError('there is no jax')\n")
    monkeypatch.syspath_prepend(tmp_path)  # a worker starts with the path of its parent
    cells = run("jax.nn")
    assert statuses(cells, "jax.nn") == ["unsupported"] * 3
    assert reasons(cells, "jax.nn") == {"ImportError: there is no jax (jax.py:1)"}


def test_closing_the_cells_stops_the_workers():
    started = runner.Run(runner.Plan((built_in()["torch.sdpa"],), CASES, ("float32",)))
    started.start()
    cells = started.cells()
    next(cells)
    cells.close()
    assert all(worker.process is None for worker in started.pool.all)


def test_a_seed_changes_the_inputs_and_nothing_else():
    one, other, again = (run("torch.sdpa", cases=CASES[:1], seed=seed) for seed in (0, 1, 0))
    shares = [next(iter(cells.values()))["tensors"][0]["max_share"] for cells in (one, other, again)]
    assert shares[0] == shares[2] != shares[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", BLOCKS.values(), ids=lambda case: case.name)
def test_a_blocks_values_are_exact_in_every_dtype(case, dtype):
    made = given(case.n_embd, case.n_head, case.B, case.T, seed=0)
    mapped(lambda x: np.testing.assert_array_equal(represent(x, dtype), x), made)
