"""The benchmark of models: what a step reads, and that no model is timed that is wrong or loses its place."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import check, contenders, models, report, tables, timing
from benchmarks.cells import FORWARD, Cell, full, quick

TINY = Cell("step", FORWARD, check.SHORT, B=2, H=3, D=4, L=check.SHALLOW, V=37)
TORCH = [name for name, (framework, _) in models.MODELS.items() if framework == "torch"]


@pytest.fixture(scope="module")
def on_torch():
    return pytest.importorskip("benchmarks.on_torch")


def test_a_step_reads_the_caches_and_the_parameters_but_one_row_of_positions():
    import attn_torch

    model = attn_torch.Transformer(**models.keywords(TINY))
    caches = [attn_torch.dense_cache(TINY.B, TINY.H, TINY.T, TINY.D) for _ in range(TINY.L)]
    read = [*model.parameters(), *(x for cache in caches for x in (cache.k, cache.v))]
    unread = model.wpe[1:]
    assert TINY.read_bytes() == sum(x.nbytes for x in read) - unread.nbytes


def test_a_step_multiplies_with_every_weight_once():
    tree, _ = check.made_model(TINY)
    weights = tree["wte"].size + sum(x.size for p in tree["blocks"] for x in matrices(p))
    products = 2 * TINY.L * TINY.C * (TINY.T + 1)  # of a row: q k^T and w v
    assert TINY.flops() == 2 * TINY.B * (weights + products)


def matrices(block):
    return [x for branch in (block, block["attn"]) for name, x in branch.items() if name.startswith("w_")]


@pytest.mark.parametrize("grid", [quick, full])
def test_steps_of_one_row_and_of_several_are_two_workloads(grid):
    steps = [cell for cell in grid() if cell.variant == "step"]
    assert [(cell.workload, cell.T, cell.B) for cell in steps] == [
        ("step of 1 row, forward, float32", 512, 1),
        ("step of 8 rows, forward, float32", 512, 8),
    ]
    assert [group for group in timing.groups(grid()) if group[0] in steps] == [[cell] for cell in steps]


def test_a_column_of_several_batches_names_none():
    seen = {"samples": [1.0, 1.0], "compile_s": 0.5}
    rows = [timing.known(replace(TINY, B=B), "attn_jax model") | seen for B in (1, 8)]
    columns = [tables.compile_times({"rows": some}).columns[1] for some in (rows, rows[:1])]
    assert columns == ["T=8", "T=8, B=1"]


@pytest.mark.parametrize("name", TORCH)
def test_a_right_model_holds_and_stays_at_its_context(on_torch, name):
    program = contenders.everyone()[name].load()(on_torch, TINY, *check.made_model(TINY))
    first, second = (on_torch.fetch(program.call()[0]) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert check.model(TINY, "float32", second)["verdict"] == "passed"


@pytest.mark.parametrize("wrong", ["wte", "wpe", "ln_f", "w_fc", "b_proj"])
def test_a_model_with_one_wrong_parameter_fails(on_torch, wrong):
    tree, tokens = check.made_model(TINY)
    if wrong in tree:
        tree = tree | {wrong: spoiled(tree[wrong])}
    else:
        first, *rest = tree["blocks"]
        tree = tree | {"blocks": (first | {wrong: spoiled(first[wrong])}, *rest)}
    logits = models.torch_model(on_torch, TINY, tree, tokens).call()[0]
    found = check.model(TINY, "float32", on_torch.fetch(logits))
    assert found["verdict"] == "failed"
    assert "out is off" in found["reason"]


def spoiled(x):
    """x with 0 for its first number."""
    if isinstance(x, tuple):
        return (spoiled(x[0]), *x[1:])
    return np.where(np.arange(x.size).reshape(x.shape) == 0, 0.0, x)


def test_a_library_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(
        contenders.devices, "installed", lambda name: "absent" if name == "transformers" else "1"
    )
    assert contenders.unable(TINY, "transformers model", "cpu") == "transformers is not installed"
    assert contenders.unable(TINY, "attn_torch model", "cpu") is None


@pytest.mark.slow
def test_a_small_run_of_all_models(tmp_path):
    record = timing.measure("small", [TINY], list(models.MODELS), "cpu", threads=1, seed=0, budget_s=0.0)
    assert {row["subject"]: row["status"] for row in record["rows"]} == dict.fromkeys(models.MODELS, "ready")
    assert {row["verdict"] for row in record["rows"]} == {"passed"}
    times, read = (t for t in tables.every(record) if t.title.endswith(f": {TINY.workload}"))
    assert len(times.rows) == len(read.rows) == 3
    assert "over transformers model;" in times.note
    assert read.title.startswith("Read, GB/s")
    assert len(report.write(record, tmp_path)) == 5  # no plot of memory: nothing was weighed
