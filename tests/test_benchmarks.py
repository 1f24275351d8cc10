"""The benchmarks: what is counted and concluded, and that nothing wrong is timed. No test reads a clock."""

import io
import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks import (
    __main__,
    check,
    comparison,
    contenders,
    memory,
    report,
    resident,
    roofline,
    stats,
    tables,
    timing,
    worker,
)
from benchmarks.cells import BOTH, FORWARD, VARIANTS, Cell, full, quick
from parity import inputs, oracle

PLOTS = ("time.png", "memory.png", "roofline.png")
ATTENTION = [variant for variant in VARIANTS if Cell(variant, FORWARD, 1).kind == "attention"]

# ---- what is counted


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("T", [1, 7, 300])
def test_visible_pairs_are_those_of_the_mask(variant, T):
    cell = Cell(variant, FORWARD, T)
    i, j = np.arange(cell.Tq)[:, None], np.arange(cell.Tk)
    mask = {
        "causal": j <= i,
        "grouped": j <= i,
        "block": j <= i,
        "window": (j <= i) & (j >= i - 256),
        "padded": (j < T // 2) & (i >= 0),
        "full": (j >= 0) & (i >= 0),
        "decode": (j >= 0) & (i >= 0),
        "step": (j <= T) & (i >= 0),  # T positions, and the token itself
    }[variant]
    assert cell.pairs() == mask.sum()


@pytest.mark.parametrize("variant", ATTENTION)
def test_the_case_of_a_cell_shows_what_the_cell_counts(variant):
    cell = Cell(variant, FORWARD, 300, B=2)
    made = inputs.make(cell.case(), cell.dtype)
    visible = oracle.attention(made.q, made.k, made.v, **made.options).call.visible
    assert np.broadcast_to(visible, (2, cell.H_kv, 12 // cell.H_kv, cell.Tq, 300)).sum() == 24 * cell.pairs()


def test_operations_are_those_of_the_products():
    cell = Cell("causal", FORWARD, 4, B=2, H=3, D=5)
    assert cell.flops() == 2 * 3 * 10 * (2 * 5 + 2 * 5)  # 10 pairs: q k^T and w v
    assert cell.dense_flops() == 2 * 3 * 16 * (2 * 5 + 2 * 5)
    assert replace(cell, passes=BOTH).flops() == 3 * cell.flops()


def test_a_block_adds_its_projections():
    attention, block = (Cell(variant, FORWARD, 4, B=2, H=3, D=5) for variant in ("causal", "block"))
    weights = 15 * 45 + 15 * 15 + 2 * 15 * 60
    assert block.flops() == attention.flops() + 2 * weights * 2 * 4


def test_a_cache_is_its_keys_and_values():
    cell = Cell("decode", FORWARD, 1000, dtype="bfloat16", B=2)
    assert cell.cache_bytes() == 2 * 2 * 12 * 1000 * 64 * 2
    assert replace(cell, variant="grouped").cache_bytes() == cell.cache_bytes() / 6


def test_every_cell_belongs_to_one_group_and_variants_are_interleaved():
    cells = [*quick(), *full()]
    groups = timing.groups(cells)
    assert sorted(map(repr, cells)) == sorted(repr(cell) for group in groups for cell in group)
    together = next(group for group in groups if Cell("causal", BOTH, 4096, weighed=True) in group)
    assert {cell.variant for cell in together} == {"causal", "full", "window", "padded", "grouped"}


# ---- in which order


def test_each_order_is_followed_by_its_reverse():
    orders = list(timing.orders(5, 6, seed=1))
    assert len(orders) == 6
    assert all(sorted(order) == list(range(5)) for order in orders)
    assert all(orders[n + 1] == orders[n][::-1] for n in (0, 2, 4))
    assert len(set(map(tuple, orders))) > 2
    assert orders == list(timing.orders(5, 6, seed=1))


@pytest.mark.parametrize(("warm", "rounds"), [([100.0], 4), ([0.5, 0.5], 10), ([1e-6], 20), ([], 20)])
def test_rounds_fit_the_budget_and_are_even(warm, rounds):
    assert timing.rounds_for(warm, budget_s=11.0) == rounds


def test_a_call_that_would_not_fit_is_refused():
    def ran(name, seconds, grown, variant="causal"):
        cell = Cell(variant, FORWARD, 1024)
        return {(cell.workload, name): {"cell": asdict(cell), "warm_s": seconds, "grown": grown}}

    history = ran("fast", 3.0, 2**20) | ran("slow", 10.0, 2**20) | ran("large", 3.0, 2**30)
    cell, decode = Cell("causal", FORWARD, 2048), ran("large", 0.1, 2**30, "decode")
    found = [timing.refusal(cell, name, history, free=2**32) for name in ("fast", "slow", "large")]
    assert found == [None, "would take about 40 s a call", "would take about 4 GiB"]
    assert timing.refusal(replace(cell, dtype="bfloat16"), "large", history, free=2**32) is None
    assert timing.refusal(replace(cell, variant="decode"), "large", decode, free=2**32) is None


# ---- what is concluded


def test_a_summary_of_known_samples():
    seen = stats.summarise([5.0, 1.0, 2.0, 3.0, 4.0])
    assert seen == {"median": 3.0, "iqr": 2.0, "min": 1.0, "n": 5, "unstable": True}
    assert not stats.summarise([1.0, 1.01, 1.02])["unstable"]


def test_what_slows_a_whole_round_cancels_in_a_ratio():
    b = np.array([1.0, 9.0, 2.0, 7.0, 1.0, 4.0])
    assert stats.ratio(2 * b, b) == {"ratio": 2.0, "low": 2.0, "high": 2.0}
    unpaired = stats.ratio(2 * b, b, paired=False)
    assert unpaired["low"] < 2.0 < unpaired["high"]


@pytest.mark.parametrize(("factor", "noise"), [(1.0, True), (1.5, False), (0.5, False)])
def test_a_winner_is_named_only_beyond_the_noise(factor, noise):
    rng = np.random.default_rng(0)
    a, b = rng.normal(1.0, 0.02, (2, 20))
    assert stats.within_noise(stats.ratio(factor * a, b)) == noise


def test_one_sample_bounds_nothing():
    assert stats.within_noise(stats.ratio([2.0], [1.0]))


def test_growth_is_the_slope_at_the_longest_lengths():
    lengths = [64, 128, 256, 512, 1024]
    values = [1e6, *(3.0 * T**2 for T in lengths[1:])]  # the first one is overhead
    fitted = stats.growth(lengths, values)
    assert f"{fitted['exponent']:.9f}" == "2.000000000"
    assert fitted["lengths"] == lengths[1:]
    assert stats.growth(lengths[:2], values[:2]) is None
    assert stats.growth(lengths, [0.0] * 5) is None


# ---- correctness before timing


@pytest.fixture(scope="module")
def on_torch():
    return pytest.importorskip("benchmarks.on_torch")


def finding(on, f, cell):
    given = check.made(cell.case(), cell.dtype)
    leaves = [on.place(x, cell.dtype) for x in (given.q, given.k, given.v)]
    options = {n: on.place(x, cell.dtype) if hasattr(x, "dtype") else x for n, x in given.options.items()}
    dout = on.place(check.cotangent(cell), cell.dtype) if cell.backward else None
    results = on.compiled(f, leaves, options, dout).call()
    return check.attention(cell, "float32", *map(on.fetch, results))


@pytest.mark.parametrize("variant", ATTENTION)
@pytest.mark.parametrize("passes", [FORWARD, BOTH])
def test_a_right_program_holds(on_torch, variant, passes):
    cell = Cell(variant, passes, 90, H=12, D=4)
    f = contenders.everyone()["attn_torch[reference]"].load()
    assert finding(on_torch, f, cell)["verdict"] == "passed"


@pytest.mark.parametrize("wrong", ["scale", "causal", "dv"])
def test_a_wrong_program_fails(on_torch, wrong):
    right = contenders.everyone()["attn_torch[reference]"].load()

    def f(q, k, v, causal):
        if wrong == "dv":
            v = v + 0.001 * (v - v.detach())
        return right(q, k, v, causal=causal and wrong != "causal", scale=0.51 if wrong == "scale" else 0.5)

    cell = Cell("causal", BOTH, 90, H=2, D=4)
    found = finding(on_torch, f, cell)
    assert found["verdict"] == "failed"
    assert "times its bound" in found["reason"]


def test_a_gradient_where_no_cotangent_was_fails(on_torch):
    right = contenders.everyone()["attn_torch[reference]"].load()

    def f(q, k, v, causal):
        q = q.clone()
        q.register_hook(lambda gradient: gradient + 1e-6)
        return right(q, k, v, causal=causal)

    cell = Cell("causal", BOTH, 90, H=2, D=4)
    assert finding(on_torch, f, cell)["verdict"] == "failed"


def test_both_frameworks_take_part_and_nobody_twice():
    everyone = contenders.everyone()
    for kind, baselines in contenders.BASELINES.items():
        for framework, name in baselines.items():
            assert (everyone[name].framework, everyone[name].kind) == (framework, kind)
    assert contenders.NOT_TIMED.keys() <= everyone.keys()
    assert {"attn_torch[auto]", "attn_jax[auto]"} <= everyone.keys()


def test_peak_memory_counts_what_was_freed_again():
    before = resident.settle()
    held = np.ones(2**23)  # 64 MiB
    del held
    assert 60 * 2**20 < resident.peak() - before < 100 * 2**20


# ---- the report, of a record made by hand


def made_row(name, variant, passes, T, seconds):
    seen = {
        "status": "ready",
        "samples": list(seconds * np.random.default_rng(T).uniform(0.99, 1.01, 6)),
        "first_s": 1.0,
        "compile_s": 0.5 if "jax" in name else None,
        "backend": "a <kernel>",
        "claim": "float32",
        "verdict": "passed",
        "max_share": 0.25,
    }
    memory = {"resident_growth_mib": T / 8, "compiler_estimate_mib": T / 4, "allocator_peak_mib": None}
    return timing.known(Cell(variant, passes, T), name) | seen | {"memory": memory}


@pytest.fixture(scope="module")
def record():
    rows = [
        made_row(name, variant, passes, T, cost * T**2 * 1e-7)
        for variant in ("causal", "window")
        for passes in (FORWARD, BOTH)
        for T in (512, 1024, 2048)
        for name, cost in {
            "torch.sdpa": 1.0,
            "jax.nn": 4.0,
            "attn_torch[reference]": 5.0,
            "attn_torch[auto]": 5.0,
            "attn_jax[reference]": 3.0,
        }.items()
    ]
    roofs = [
        {"kind": "matmul", "framework": name, "dtype": "float32", "size": 1024, "rate": rate}
        for name, rate in {"torch": 2e12, "jax": 1e12}.items()
    ]
    return {
        "schema": tables.SCHEMA,
        "name": "made-by-hand",
        "environment": dict.fromkeys(("date", "device", "processor", "load before the run"), "some"),
        "frameworks": {"torch": {"threads": 1}, "jax": {"threads": 1}},
        "roofs": roofs,
        "rows": rows,
    }


def test_times_are_set_against_the_baseline_and_growth_is_fitted(record):
    table = next(t for t in tables.every(record) if t.title == "Time a call, ms: causal, forward, float32")
    line = next(row for row in table.rows if row[0] == "attn_jax[reference]")
    assert "(3.00, 0.75)" in line[1]
    assert line[-1].startswith("2.0")
    assert table.rows[0][0] == "torch.sdpa"  # the fastest first


def test_three_measures_of_memory_have_three_tables(record):
    titles = [t.title for t in tables.memory(record) if t.title.endswith(": causal, forward, float32")]
    assert [title.split(",")[0] for title in titles] == ["Peak resident growth", "Compiler's estimate"]
    assert len(tables.MEASURES) == 3


def test_every_line_has_a_cell_for_every_column(record):
    assert all(len(row) == len(t.columns) for t in tables.every(record) for row in t.rows)


def test_auto_is_held_against_the_best_single_implementation(record):
    assert {row[-1] for row in tables.automatic(record).rows} == {"yes"}
    slow = [
        row | {"samples": [2 * s for s in row["samples"]]} if "auto" in row["subject"] else row
        for row in record["rows"]
    ]
    assert {row[-1] for row in tables.automatic(record | {"rows": slow}).rows} == {"too slow"}


def test_a_share_of_the_roof_is_of_the_better_framework_and_above_one_is_a_bug(record):
    row = record["rows"][0]
    rate = row["flops"] / np.median(row["samples"])
    assert roofline.share(row, record["roofs"]) == rate / 2e12
    assert report.problems(record) == []
    low = [roof | {"rate": 0.9 * rate} for roof in record["roofs"]]
    assert "is above the roof" in report.problems(record | {"roofs": low})[0]


def test_a_failure_is_shown_and_not_timed(record):
    broken = made_row("jax.nn", "full", FORWARD, 512, 1.0) | {"samples": [], "memory": None}
    broken |= {"status": "failed", "reason": "dq is off"}
    with_it = record | {"rows": [*record["rows"], broken]}
    assert report.problems(with_it) == ["jax.nn FAILED at full, forward, float32, T = 512: dq is off"]
    assert ["failed", "jax.nn", "full, forward, float32", "512", "dq is off"] in tables.not_timed(
        with_it
    ).rows
    assert not any("full, forward" in t.title for t in tables.every(with_it))


def test_the_report_is_complete_and_stands_alone(record, tmp_path):
    written = {path.name: path for path in report.write(record, tmp_path / "run")}
    assert written.keys() == {"record.json", "report.md", "report.html", *PLOTS}
    assert report.read(tmp_path / "run") == json.loads(json.dumps(record))
    html, markdown = written["report.html"].read_text(), written["report.md"].read_text()
    for text in (html, markdown):
        assert all(limit.split("'")[0] in text for limit in report.LIMITS)
    assert all(name in html and name in markdown for name in contenders.BASELINES["attention"].values())
    assert "a &lt;kernel&gt;" in html
    assert not any(outside in html for outside in ("http:", "https:", "<link", "<script"))
    console = Console(record=True, width=200, file=io.StringIO())
    report.to_terminal(record, console)
    assert "Time a call, ms" in console.export_text()


def test_two_runs_are_compared_cell_by_cell(record):
    slower = [row | {"samples": [1.5 * s for s in row["samples"]]} for row in record["rows"]]
    around, times = comparison.tables(record, record | {"name": "later", "rows": slower})
    assert around.rows == []
    assert len(times.rows) == len(record["rows"])
    assert all(row[-1].startswith("1.50 ") for row in times.rows)


def test_another_schema_is_refused(record, tmp_path):
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record | {"schema": 0}))
    with pytest.raises(ValueError, match="schema 0"):
        report.read(path)


USAGES = ("run --subject nobody", "run --length 3", "run --device abacus", "compare nothing nothing")


@pytest.mark.parametrize("line", USAGES)
def test_wrong_usage_ends_with_2(line):
    assert CliRunner().invoke(__main__.app, line.split()).exit_code == 2


@pytest.mark.parametrize(("stopped", "code"), [("interrupted", 130), ("the process ended", 1)])
def test_a_run_that_is_stopped_keeps_what_it_measured(record, monkeypatch, tmp_path, stopped, code):
    monkeypatch.setattr(timing, "measure", lambda *args: record | {"missing": 3, "stopped": stopped})
    result = CliRunner().invoke(__main__.app, ["run", "--length", "256", "--out", str(tmp_path)])
    assert result.exit_code == code
    assert "groups of cells left: 3" in result.output
    assert len(report.read(tmp_path)["rows"]) == len(record["rows"])


# ---- one run, end to end


@pytest.mark.slow
def test_a_small_run_of_both_frameworks(tmp_path):
    cells = [Cell("causal", FORWARD, 16), Cell("causal", BOTH, 16, weighed=True), Cell("block", FORWARD, 16)]
    names = ["torch.sdpa", "torch.flex_attention", "jax.nn", "attn_jax block()"]
    record = timing.measure("small", cells, names, "cpu", threads=1, seed=0, budget_s=0.0)
    status = {(row["subject"], row["cell"]["passes"]): row["status"] for row in record["rows"]}
    assert status.pop(("torch.flex_attention", BOTH)) == "unsupported"
    assert set(status.values()) == {"ready"}
    timed = tables.timed(record)
    assert {len(row["samples"]) for row in timed} == {timing.FEWEST}
    assert {row["backend"] for row in timed if row["subject"] == "torch.sdpa"} == {"flash_attention_for_cpu"}
    weighed = {row["subject"]: row["memory"] for row in timed if "memory" in row}
    assert weighed.keys() == {"torch.sdpa", "jax.nn"}
    assert weighed["jax.nn"]["compiler_estimate_mib"] > 0
    assert {seen["threads"] for seen in record["frameworks"].values()} == {1}
    assert len(report.write(record, tmp_path)) == 6


@pytest.mark.slow
def test_a_process_that_dies_is_named():
    with pytest.raises(RuntimeError, match="exit code"):
        memory.measure("torch", "cpu", 1, Cell("causal", FORWARD, 16), "nobody")


@pytest.mark.slow
def test_a_session_outlives_its_process():
    session, cell = worker.Session("torch", "cpu", 1), Cell("causal", FORWARD, 16)
    for name in ("torch.sdpa", "torch.sdpa[math]"):
        assert session.prepare(cell, name)["status"] == "ready"
    session.process.kill()
    with pytest.raises(worker.Died, match="exit code -9"):
        session.time(cell, "torch.sdpa", warm_s=1.0)
    assert session.time(cell, "torch.sdpa[math]", warm_s=1.0) > 0.0
    session.close()
