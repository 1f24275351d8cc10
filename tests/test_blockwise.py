"""Attention in tiles: every case's verdict whatever the tiles, no tile that nothing sees, flat memory."""

import importlib
import math

import numpy as np
import pytest
from frameworks import attend, both_frameworks, native_options, package, to_native, to_numpy

from parity import cases, runner, subjects, worker

SMALL = (1, 1, 3, 4)  # heads one by one, three queries, four keys
RNG = np.random.default_rng(0)
T, D = 13, 2
Q, K, V = (RNG.standard_normal((2, 2, T, D)) for _ in range(3))
SEGMENTS = np.repeat([[0, 1, 2]], 2, 0).repeat([4, 8, 1], 1)


def blockwise(framework):
    return importlib.import_module(f"attn_{framework}.implementations.blockwise")


@pytest.fixture(params=["torch", "jax"])
def small_tiles(request, monkeypatch):
    """The name of a framework whose tiles are SMALL; in JAX in loops, in torch halved."""
    monkeypatch.setattr(blockwise(request.param), "tile_sizes", lambda *sizes: SMALL)
    monkeypatch.setattr("attn_torch.implementations.walk.HALVED", 1)
    monkeypatch.setattr(blockwise("jax"), "WRITTEN_OUT", 0)
    worker.JITTED.clear()
    yield request.param
    worker.JITTED.clear()


def verdicts(framework, chosen, dtype):
    """Case -> what the judge says of it."""
    run = {"torch": worker.run_torch, "jax": worker.run_jax}[framework]
    subject = subjects.find(f"attn_{framework}[blockwise]")
    for case in chosen:
        task = worker.Task(subject.name, case, dtype, "cpu", 0)
        cell = runner.judge(subject, task, worker.answer(run, task, subjects.find))
        yield case.name, (cell["status"], cell.get("reason", ""))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_case_passes_in_small_tiles(small_tiles, dtype):
    chosen = cases.select("full" if small_tiles == "torch" else "quick")  # jax compiles each
    if small_tiles == "jax" and dtype == "bfloat16":
        chosen = [case for case in chosen if case.name.startswith(("plain", "everything"))]
    found = dict(verdicts(small_tiles, chosen, dtype))
    assert {name: why for name, why in found.items() if why[0] not in ("passed", "no_evidence")} == {}
    assert sum(status == "passed" for status, _ in found.values()) > 0.9 * len(found)


def test_jax_may_write_its_tiles_out(monkeypatch):
    monkeypatch.setattr(blockwise("jax"), "tile_sizes", lambda *sizes: SMALL)
    worker.JITTED.clear()
    chosen = [
        case for case in cases.select("quick") if case.name.startswith(("causal", "window", "everything"))
    ]
    found = dict(verdicts("jax", chosen, "float32"))
    worker.JITTED.clear()
    assert len(found) > 2
    assert {name: why for name, why in found.items() if why[0] != "passed"} == {}


def tiles_computed(framework, monkeypatch, n_q, n_k, **options):
    """How many tiles the forward pass computes, of n_q queries and n_k keys, for one head of one row."""
    module, count = blockwise(framework), []
    monkeypatch.setattr(module, "tile_sizes", lambda *sizes: (1, 1, n_q, n_k))
    compute = module.forward_tile

    def counting(*args):
        if framework == "torch":
            count.append(1)
        else:
            import jax

            jax.debug.callback(lambda: count.append(1))
        return compute(*args)

    monkeypatch.setattr(module, "forward_tile", counting)
    if framework == "jax":
        module.attend.clear_cache()
    q, k, v = (to_native(framework, x[:1, :1]) for x in (Q, K, V))
    options = native_options(framework, options)
    out = package(framework).scaled_dot_product_attention(q, k, v, implementation="blockwise", **options)
    to_numpy(out)
    if framework == "jax":
        import jax

        jax.effects_barrier()
        module.attend.clear_cache()
    return len(count)


@both_frameworks
@pytest.mark.parametrize(
    "options, tiles",
    [
        ({}, 16),
        ({"causal": True}, 1 + 2 + 3 + 4),
        ({"causal": True, "q_offset": -4}, 0 + 1 + 2 + 3),
        ({"causal": True, "q_offset": 40}, 16),
        ({"window": (0, 0)}, 4),
        ({"window": (4, 0)}, 1 + 2 + 2 + 2),
        ({"kv_lengths": np.array([8])}, 4 * 2),
        ({"q_lengths": np.array([4])}, 4),
        ({"kv_lengths": np.array([0])}, 0),
        ({"causal": True, "q_offset": np.array([4])}, 2 + 3 + 4 + 4),
        ({"q_segment_ids": SEGMENTS[:1], "kv_segment_ids": SEGMENTS[:1]}, 1 + 2 + 2 + 1),
    ],
    ids=str,
)
def test_no_tile_is_computed_that_nothing_sees(framework, monkeypatch, options, tiles):
    assert tiles_computed(framework, monkeypatch, 4, 4, **options) == tiles


def torch_largest(n, run):
    """Elements of the largest tensor that run(q, k, v) makes, at n positions."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        n = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            made = out if isinstance(out, tuple | list) else (out,)
            self.n = max([self.n, *(x.untyped_storage().nbytes() // 4 for x in made if torch.is_tensor(x))])
            return out

    arrays = [torch.zeros(1, 2, n, 4, requires_grad=True) for _ in range(3)]
    with Largest() as largest:
        run(*arrays)
    return largest.n


def test_torch_holds_nothing_of_the_size_of_the_scores(monkeypatch):
    import torch

    from attn_torch import scaled_dot_product_attention

    monkeypatch.setattr(blockwise("torch"), "tile_sizes", lambda *sizes: (1, 1, 16, 16))

    def gradients(q, k, v):
        out = scaled_dot_product_attention(q, k, v, True, implementation="blockwise")
        torch.autograd.grad(out.sum(), (q, k, v))

    assert [torch_largest(n, gradients) for n in (64, 128)] == [2 * 64 * 4, 2 * 128 * 4]  # as an argument


def test_jax_holds_nothing_of_the_size_of_the_scores(monkeypatch):
    import jax

    from attn_jax import scaled_dot_product_attention

    monkeypatch.setattr(blockwise("jax"), "tile_sizes", lambda *sizes: (1, 1, 16, 16))

    def attend(q, k, v):
        return scaled_dot_product_attention(q, k, v, True, implementation="blockwise").sum()

    def largest(n, run):
        x = jax.ShapeDtypeStruct((1, 2, n, 4), "float32")
        return max(sizes(jax.make_jaxpr(run)(x, x, x).jaxpr))

    def tangent(q, k, v):
        return jax.jvp(attend, (q, k, v), (q, k, v))

    for run in (jax.grad(attend, (0, 1, 2)), tangent):
        assert [largest(n, run) for n in (64, 128)] == [2 * 64 * 4, 2 * 128 * 4]  # as an argument


def test_jax_holds_no_float32_copy_of_a_bias_in_a_half_type(monkeypatch):
    import jax

    from attn_jax import scaled_dot_product_attention

    monkeypatch.setattr(blockwise("jax"), "tile_sizes", lambda *sizes: (1, 1, 32, 32))
    q, bias = (jax.ShapeDtypeStruct((1, 8, 256, n), "bfloat16") for n in (4, 256))

    def attend(q, k, v, bias):
        return scaled_dot_product_attention(q, k, v, True, bias=bias, implementation="blockwise")

    held = jax.jit(attend).lower(q, q, q, bias).compile().memory_analysis().temp_size_in_bytes
    assert held < 1.5 * 8 * 256 * 256 * 2  # its bits, once


def sizes(jaxpr):
    """Of every intermediate of a program and of the programs within it."""
    for eqn in jaxpr.eqns:
        yield from (math.prod(v.aval.shape) for v in eqn.outvars)
        for inner in eqn.params.values():
            for one in inner if isinstance(inner, tuple | list) else (inner,):
                if hasattr(one, "jaxpr"):
                    yield from sizes(one.jaxpr)
        if eqn.primitive.name == "linear":
            import jax

            arguments = (jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars)
            yield from sizes(
                jax.make_jaxpr(lambda *x, p=eqn.params: p["f"].map(x[: p["n"]], x[p["n"] :]))(
                    *arguments
                ).jaxpr
            )


@both_frameworks
def test_vmap_draws_the_bits_of_each_call(framework):
    attend, eye = package(framework).scaled_dot_product_attention, np.broadcast_to(np.eye(T), (2, T, T))
    q, k, v, seeds = (to_native(framework, x) for x in (Q, K[0], eye, np.array([3, 4])))

    def drop(q, seed):  # the weights, as the values are one-hot
        return attend(q, k, v, dropout_p=0.5, dropout_seed=seed, implementation="blockwise")

    if framework == "torch":
        import torch

        batched = torch.func.vmap(drop)(q, seeds)
    else:
        import jax

        batched = jax.vmap(drop)(q, seeds)
    kept = [to_numpy(x) != 0 for x in (batched, drop(q[0], seeds[0]), drop(q[1], seeds[1]))]
    np.testing.assert_array_equal(kept[0], np.stack(kept[1:]))
    assert np.any(kept[1] != kept[2])


@pytest.mark.parametrize("shift", [-150, -95, -20, 0, 35, 90, 150])  # of the scores, in units of log 2
@pytest.mark.parametrize("v_scale", [1e-36, 1, 1e34])
def test_torch_takes_the_largest_score_off_where_weights_need_it(monkeypatch, shift, v_scale):
    monkeypatch.setattr(blockwise("torch"), "tile_sizes", lambda *sizes: (1, 1, 32, 16))
    q, k, v, dout = RNG.standard_normal((4, 1, 2, 96, 4))
    q[..., 0], k[..., 0] = 1, shift * math.log(2)
    v, dout, run, results = v * v_scale, dout / v_scale, package("torch").scaled_dot_product_attention, []
    for name, dtype in ("blockwise", "float32"), ("reference", "float64"):
        x = [to_native("torch", a.astype("float32").astype(dtype)).requires_grad_() for a in (q, k, v)]
        out = run(*x, causal=True, scale=1.0, implementation=name)
        out.backward(to_native("torch", dout.astype("float32").astype(dtype)))
        results.append([out.detach().numpy(), *(a.grad.numpy() for a in x)])
    for got, want in zip(*results, strict=True):
        assert np.abs(got - want).max() < 2e-4 * np.abs(want).max()  # shift is rounded to 2**-17 of one


def test_torch_takes_the_largest_score_off_where_a_large_value_has_a_faint_weight():
    q, k, v = np.ones((1, 1, 64, 1)), np.full((1, 1, 64, 1), -20.0), np.ones((1, 1, 64, 1))
    k[:, :, 7], v[:, :, 7] = -97, 1e32
    results = []
    for name, dtype in ("blockwise", "float32"), ("reference", "float64"):
        x = [to_native("torch", a.astype(dtype)).requires_grad_() for a in (q, k, v)]
        package("torch").scaled_dot_product_attention(*x, implementation=name).sum().backward()
        results.append([a.grad.numpy() for a in x])
    for got, want in zip(*results, strict=True):
        assert np.abs(got - want).max() < 2e-4 * np.abs(want).max()  # as above, a score of 140


def test_torch_hides_nan_where_no_largest_score_is_taken_off(monkeypatch):
    monkeypatch.setattr(blockwise("torch"), "tile_sizes", lambda *sizes: (1, 1, 32, 16))
    q, k, v = (to_native("torch", x) for x in RNG.standard_normal((3, 1, 2, 96, 4)))
    spoilt = k.clone()
    spoilt[:, :, 80] = math.nan
    run = package("torch").scaled_dot_product_attention
    got, want = (run(q, x, v, causal=True, implementation="blockwise") for x in (spoilt, k))
    assert (got - want)[:, :, :80].abs().max() < 1e-13
    assert got[:, :, 80:].isnan().all()


def test_jax_computes_no_tile_of_queries_that_stand_before_all_keys():
    options = {"causal": True, "q_offset": np.array([-40, -40]), "q_lengths": np.array([T, 0])}
    out, lse = attend("jax")(Q, K, V, return_lse=True, implementation="blockwise", **options)
    assert (out == 0).all()
    assert (lse == -np.inf).all()


@pytest.mark.parametrize("roomy", [False, True])
@pytest.mark.parametrize(
    ("n", "options"),
    [
        (1100, {}),
        (1100, {"kv_lengths": np.array([700, 1])}),
        (1100, {"kv_lengths": np.array([1100, 0]), "causal": True, "q_lengths": np.array([1100, 300])}),
        (1100, {"window": (600, 300), "q_offset": np.array([-900, 40])}),
        (1100, {"window": (30, 0), "q_offset": -40}),
        (1100, dict.fromkeys(("q_segment_ids", "kv_segment_ids"), np.arange(2200).reshape(2, -1) // 350)),
        (4200, {"causal": True}),
    ],
    ids=str,
)
def test_jax_chooses_tiles_that_hold_every_key(monkeypatch, roomy, n, options):
    monkeypatch.setattr("attn_jax.implementations.blockwise.roomy", lambda: roomy)
    B = 1 if n > 2048 else 2
    q, k, v = (RNG.standard_normal((B, 2, n, 4)) for _ in range(3))
    run = attend("jax")
    got, want = (run(q, k, v, implementation=name, **options) for name in ("blockwise", "reference"))
    assert np.abs(got - want).max() < 1e-13


def test_jax_compiles_once_for_each_kind_of_call():
    import jax.numpy as jnp

    from attn_jax import scaled_dot_product_attention

    module = blockwise("jax")
    module.attend.clear_cache()
    q = jnp.asarray(Q, jnp.float32)
    for length in (3, 5):
        for scale in (1.0, 1.0):
            lengths = jnp.array([length, 7])
            scaled_dot_product_attention(q, q, q, kv_lengths=lengths, scale=scale, implementation="blockwise")
    assert module.attend._cache_size() == 1


@both_frameworks
def test_a_query_and_a_key_that_nothing_pairs_may_hold_nan_in_a_tile_with_others(framework, monkeypatch):
    monkeypatch.setattr(blockwise(framework), "tile_sizes", lambda *sizes: (2, 2, 4, 8))
    attend = package(framework).scaled_dot_product_attention
    lengths = to_native(framework, np.array([6, 11]))
    spoilt = []
    for x in (Q, K, V):
        spoilt.append(x.copy())
        spoilt[-1][0, :, 6:], spoilt[-1][1, :, 11:] = np.nan, np.inf
    clean, dirty = (
        attend(
            *(to_native(framework, x) for x in arrays),
            q_lengths=lengths,
            kv_lengths=lengths,
            implementation="blockwise",
        )
        for arrays in ((Q, K, V), spoilt)
    )
    np.testing.assert_array_equal(to_numpy(dirty), to_numpy(clean))


@both_frameworks
@pytest.mark.parametrize(
    "options",
    [
        {"causal": True, "window": (3, 0), "q_offset": np.array([5, 9, 22])},
        {"window": (2, 2), "q_offset": np.array([-1, 20, 3]), "kv_lengths": np.array([4, 24, 6])},
        {"q_offset": np.array([0, 7, 30])},
    ],
    ids=str,
)
def test_a_tile_may_hold_rows_that_stand_far_apart(framework, monkeypatch, options):
    monkeypatch.setattr(blockwise(framework), "tile_sizes", lambda *sizes: (3, 2, 1, 8))
    q, k, v = (RNG.standard_normal((3, 2, n, 4)) for n in (1, 24, 24))
    run = attend(framework)
    results = [run(q, k, v, return_lse=True, implementation=n, **options) for n in ("blockwise", "reference")]
    for got, want in zip(*results, strict=True):
        np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
        seen = np.isfinite(want)
        assert np.abs(got - want)[seen].max() < 1e-13
