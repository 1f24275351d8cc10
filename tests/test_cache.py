"""Caches: whatever the steps, the outputs are those of one pass; what is not in the lengths is never read."""

import re
from itertools import product

import numpy as np
import pytest
from blocks import drawn, holding, jitted, native_tree, part, part_by
from caches import (
    HEADS,
    KV_HEADS,
    LAYERS,
    ROOM,
    B,
    C,
    D,
    T,
    X,
    empty,
    every_kind,
    in_one_pass,
    in_steps,
    params_of,
    step,
)
from families import DIALECTS, random_tree
from frameworks import both_frameworks, package, to_native, to_numpy

QUICK = {"implementation": "reference"}  # to compile


def compositions(n):
    """Every way to write n as a sum of steps."""
    for cuts in product((False, True), repeat=n - 1):
        ends = [i for i, cut in enumerate((*cuts, True), 1) if cut]
        yield [end - start for start, end in zip([0, *ends], ends, strict=False)]


@every_kind
@pytest.mark.parametrize("layer", LAYERS)
@both_frameworks
def test_any_steps_give_what_one_pass_gives(framework, layer, kind):
    """All sixteen; in JAX, which compiles each size of step, of one layer, and one of the others."""
    if kind == "sliding" and layer == "plain":
        return  # it has no window
    splits = list(compositions(T)) if framework == "torch" or layer == "heavy" else [[3, 1, 1]]
    want = in_one_pass(framework, layer)
    got = [in_steps(framework, layer, empty(framework, kind), sizes)[0] for sizes in splits]
    assert max(part_by(y, want) for y in got) < 1e-13


@every_kind
@both_frameworks
def test_rows_of_their_own_lengths_and_garbage_everywhere_else(framework, kind):
    """Prompts of 3 and 1 real tokens, NaN behind them; then two steps, in the last of which row 0 rests."""
    f, params = step(framework, "heavy"), params_of(framework, "heavy")
    x, cache = drawn(B, T, C), empty(framework, kind, garbage=True)
    prompt = x[:, :3].copy()
    prompt[1, 1:] = np.nan
    new = [np.array([3, 1]), np.array([1, 1]), np.array([0, 1])]
    ys = []
    for n, at in zip(
        new, (prompt, np.stack([x[0, 3:4], x[1, 1:2]]), np.stack([x[0, 4:], x[1, 2:3]])), strict=True
    ):
        y, cache = f(params, to_native(framework, at), cache, to_native(framework, n))
        ys.append(to_numpy(y))
    assert to_numpy(cache.lengths).tolist() == [4, 3]
    want = in_one_pass(framework, "heavy", x)
    assert part_by(np.concatenate([ys[0][0], ys[1][0]]), want[0, :4]) < 1e-13
    assert part_by(np.concatenate([ys[0][1, :1], ys[1][1], ys[2][1]]), want[1, :3]) < 1e-13
    nothing = to_numpy(params["b_out"])
    np.testing.assert_array_equal(ys[0][1, 1:], np.stack([nothing] * 2))
    np.testing.assert_array_equal(ys[2][0], nothing[None])


@both_frameworks
def test_a_block_of_either_style_returns_its_output_and_the_cache(framework):
    tree, dialect, x = random_tree("qwen2"), DIALECTS["qwen2"] | QUICK, to_native(framework, X)
    P = package(framework)
    module = holding(framework, tree, lambda: P.Block(C, 3, **dialect))
    params = native_tree(framework, tree)
    for run in (module, lambda x, cache=None: P.block(params, x, 3, cache=cache, **dialect)):
        run = jitted(framework, lambda x, cache=None, run=run: run(x, cache=cache))
        want = to_numpy(run(x))
        first, cache = run(x[:, :4], P.dense_cache(B, 3, ROOM, 4, dtype=x.dtype))
        last, cache = run(x[:, 4:], cache)
        assert part_by(np.concatenate([to_numpy(first), to_numpy(last)], 1), want) < 1e-13
        assert to_numpy(cache.lengths).tolist() == [T] * B


@both_frameworks
def test_a_context_is_projected_once(framework):
    """Row 1's context is padded with NaN, and a query's own positions are in a cache at the same time."""
    P, dialect, x = package(framework), DIALECTS["sandwich-decoder"] | QUICK, to_native(framework, X)
    tree, context = random_tree("sandwich-decoder"), drawn(B, 4, C, seed=3)
    context[1, 2:] = np.nan
    lengths, context = to_native(framework, np.array([4, 2])), to_native(framework, context)
    module, params = holding(framework, tree, lambda: P.Block(C, 3, **dialect)), native_tree(framework, tree)

    def function(x, context, **call):
        return P.block(params, x, 3, context, **dialect, **call)

    for block, keep in (
        (module, module.context_cache),
        (function, lambda context: P.block_context_cache(params, context, 3, **dialect)),
    ):

        def run(x, context, cache=None, block=block):
            return block(x, context, cache=cache, context_lengths=lengths)

        run, kept = jitted(framework, run), jitted(framework, keep)(context)
        want = to_numpy(run(x, context))
        assert part_by(to_numpy(run(x, kept)), want) < 1e-13
        first, cache = run(x[:, :4], kept, P.dense_cache(B, 1, ROOM, 4, dtype=x.dtype))
        last, cache = run(x[:, 4:], kept, cache)
        assert part_by(np.concatenate([to_numpy(first), to_numpy(last)], 1), want) < 1e-13


@pytest.mark.parametrize("kind", ["dense", "paged"])
@both_frameworks
def test_mask_and_bias_are_over_all_the_room(framework, kind):
    """T5's bias, and a first token that nobody may read, in a prompt that is padded on the left."""
    attention, positions = package(framework).causal_self_attention, part(framework, "positions")
    params, options = params_of(framework, "plain"), LAYERS["plain"][0] | QUICK
    x, table = to_native(framework, X), to_native(framework, drawn(8, HEADS))
    cache, mask = empty(framework, kind), np.arange(9) > 0
    n = mask.size if kind == "paged" else ROOM

    def call(at, n):
        at, keys = (to_native(framework, np.arange(*r)) for r in (at, (n,)))
        bias = positions.relative_bias(table, at, keys, 16, False)
        return {"attn_bias": bias, "mask": to_native(framework, mask[:n])}

    run = jitted(
        framework, lambda x, cache, call: attention(params, x, HEADS, cache=cache, **options, **call)
    )
    want = to_numpy(run(x, None, call((T,), T)))
    first, cache = run(x[:, :3], cache, call((3,), n))
    last, cache = run(x[:, 3:], cache, call((3, T), n))
    assert part_by(np.concatenate([to_numpy(first), to_numpy(last)], 1), want) < 1e-13


@every_kind
@both_frameworks
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_cache_holds_what_it_was_given_in_every_dtype(framework, kind, dtype):
    append = package(framework).append
    k, v = (to_native(framework, drawn(B, KV_HEADS, 3, D, seed=s), dtype) for s in (1, 2))
    whole, *_ = append(empty(framework, kind, dtype=dtype), k, v)
    parts = empty(framework, kind, dtype=dtype)
    for t in range(3):
        parts, *_ = append(parts, k[:, :, t : t + 1], v[:, :, t : t + 1])
    assert whole.k.dtype == whole.v.dtype == k.dtype
    for was, now in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(to_numpy(now), to_numpy(was))
    rows = {tuple(row) for row in to_numpy(whole.v).reshape(-1, D).tolist()}
    assert rows >= {tuple(row) for row in to_numpy(v).reshape(-1, D).tolist()}


@every_kind
@both_frameworks
def test_a_batch_may_be_empty(framework, kind):
    y, cache = in_steps(framework, "heavy", empty(framework, kind, batch=0), [3, 1, 1], X[:0])
    assert (y.shape, cache.lengths.shape) == ((0, T, C), (0,))


# Room.


@pytest.mark.parametrize("kind", ["dense", "paged"])
@both_frameworks
def test_past_the_capacity_is_an_error(framework, kind):
    attention, params = package(framework).causal_self_attention, params_of(framework, "plain")
    options, x = LAYERS["plain"][0], to_native(framework, drawn(B, 9, C))
    n = {"dense": 8, "paged": 9}[kind]
    text = (
        f"cache: got 2 positions for row 1 with lengths[1] = {n - 1}, wanted at most 1: the capacity is {n}"
    )
    cache = empty(framework, kind)
    new = to_native(framework, np.array([3, n - 1]))
    _, cache = attention(params, x[:, : n - 1], HEADS, cache=cache, new_lengths=new, **options)
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        attention(params, x[:, :2], HEADS, cache=cache, **options)


@pytest.mark.parametrize("kind", ["dense", "paged"])
def test_where_nothing_can_be_raised_a_row_past_the_capacity_is_nan_from_then_on(kind):
    f, params = step("jax", "plain"), params_of("jax", "plain")
    cache, x = empty("jax", kind), to_native("jax", X)
    _, cache = in_steps("jax", "plain", cache, [3])
    cache = cache._replace(lengths=to_native("jax", np.array([3, 9], "int32")))
    for _ in range(2):
        y, cache = f(params, x[:, 3:4], cache)
        assert np.isnan(to_numpy(y)).any(-1).tolist() == [[False], [True]]


@both_frameworks
def test_paged_rows_share_blocks_until_one_writes_to_them(framework):
    """Rows of one beginning, in blocks out of order; row 1 has its second block only later."""
    append, sdpa = package(framework).append, package(framework).scaled_dot_product_attention
    table = np.array([[3, 0, -1], [3, -1, -1]], "int32")
    cache = empty(framework, "paged", n_block=4, table=to_native(framework, table), garbage=True)
    k, v = (drawn(B, KV_HEADS, T, D, seed=s) for s in (1, 2))
    k[1, :, :3], v[1, :, :3] = k[0, :, :3], v[0, :, :3]

    def some(cache, a, b, new):
        new = to_native(framework, np.array(new))
        return append(cache, *(to_native(framework, x[:, :, a:b]) for x in (k, v)), new)

    with pytest.raises(
        ValueError, match=r"^cache: got new positions for block 3, wanted it in table only once"
    ):
        some(cache, 0, 3, [3, 0])
    alone = cache._replace(table=to_native(framework, np.array([[3, 0, -1], [1, -1, -1]], "int32")))
    cache = some(alone, 0, 3, [3, 0])[0]._replace(
        table=to_native(framework, np.array([[3, 0, -1], [3, 2, -1]], "int32")),
        lengths=to_native(framework, np.array([3, 3], "int32")),
    )
    q = drawn(B, KV_HEADS, 2, D, seed=3)
    cache, *kv, _, call = some(cache, 3, 5, [2, 2])
    got = sdpa(to_native(framework, q), *kv, causal=True, **call)
    want = sdpa(*(to_native(framework, x) for x in (q, k, v)), causal=True, q_offset=3)
    assert part_by(to_numpy(got), to_numpy(want)) < 1e-13


# Compilation, memory, gradients.


@every_kind
def test_jax_compiles_one_step_for_all(kind):
    import jax

    traces = []

    def f(params, x, cache):
        traces.append(x.shape)
        return step("jax", "heavy").__wrapped__(params, x, cache)

    f, params = jax.jit(f, donate_argnums=2), params_of("jax", "heavy")
    cache = jax.tree.map(lambda x: x.copy(), empty("jax", kind))
    for t in range(T):
        _, cache = f(params, to_native("jax", X[:, t : t + 1]), cache)
    assert traces == [(B, 1, C)]


@every_kind
def test_torch_compiles_one_step_for_all_and_none_breaks_the_graph(kind):
    import torch

    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    params = params_of("torch", "heavy")

    def f(x, cache):
        return step("torch", "heavy")(params, x, cache)

    f, cache, ys = torch.compile(f, fullgraph=True, backend=backend), empty("torch", kind), []
    for t in range(T):
        y, cache = f(to_native("torch", X[:, t : t + 1]), cache)
        ys.append(to_numpy(y))
    assert len(graphs) == 1
    assert part_by(np.concatenate(ys, 1), in_one_pass("torch", "heavy")) < 1e-13


@every_kind
def test_torch_writes_in_place_and_copies_for_gradients(kind):
    import torch

    f, params, x = step("torch", "heavy"), params_of("torch", "heavy"), to_native("torch", X)
    dout, cache = to_native("torch", drawn(B, T, C, seed=2)), empty("torch", kind)
    _, after = f(params, x[:, :1], cache)
    assert after.k.data_ptr() == cache.k.data_ptr()

    def loss(x, sizes):
        y, cache = [], empty("torch", kind)
        for some in torch.split(x, sizes, 1):
            out, cache = f(params, some, cache)
            y.append(out)
        return (torch.cat(y, 1) * dout).sum()

    x = x.requires_grad_()
    want = torch.autograd.grad((f(params, x) * dout).sum(), x)[0]
    got = torch.autograd.grad(loss(x, [2, 1, 1, 1]), x)[0]
    assert part_by(to_numpy(got), to_numpy(want)) < 1e-12


def test_jax_differentiates_through_the_steps():
    import jax

    f, params, dout = (
        step("jax", "heavy"),
        params_of("jax", "heavy"),
        to_native("jax", drawn(B, T, C, seed=2)),
    )

    def in_two(x):
        first, cache = f(params, x[:, :4], empty("jax", "dense"))
        return (first * dout[:, :4]).sum() + (f(params, x[:, 4:], cache)[0] * dout[:, 4:]).sum()

    x = to_native("jax", X)

    def in_one(x):
        return (f(params, x) * dout).sum()

    got, want = jax.jit(lambda x: (jax.grad(in_two)(x), jax.grad(in_one)(x)))(x)
    assert part_by(to_numpy(got), to_numpy(want)) < 1e-12
