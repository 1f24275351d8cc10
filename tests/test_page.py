"""What is claimed of attention and of the block, as experiments; and calls as a reader writes them."""

import math

import numpy as np
import pytest
from blocks import (
    block_gradients,
    block_module,
    drawn,
    jitted,
    leaves,
    mapped,
    native_tree,
    part,
    part_by,
    random_tree,
)
from frameworks import both_frameworks, gradients, native_options, package, to_native, to_numpy

GPT2 = {"n_embd": 768, "n_head": 12}
UNIT = 2.0**-53


def attend(framework, dtype="float64", **options):
    """f(q, k, v) -> what the package's attention returns, in NumPy."""
    core, options = package(framework).scaled_dot_product_attention, native_options(framework, options, dtype)
    f = jitted(framework, lambda q, k, v: core(q, k, v, **options))
    return lambda *qkv: to_numpy(f(*(to_native(framework, x, dtype) for x in qkv)))


# One query.


@both_frameworks
def test_a_query_that_fits_one_of_two_keys(framework):
    """Scores 2 and 0, divided by the root of 2: weights 0.804 and 0.196."""
    q, k, v = np.array([[1.0, 1.0]]), np.array([[1.0, 1.0], [1.0, -1.0]]), np.eye(2)
    out, weights = attend(framework, return_weights=True)(q, k, v)
    fits = math.exp(math.sqrt(2))
    assert part_by(weights, np.array([[fits, 1]]) / (fits + 1)) < 1e-15
    np.testing.assert_array_equal(np.round(weights, 3), [[0.804, 0.196]])
    np.testing.assert_array_equal(out, weights)  # the values are the axes


@both_frameworks
def test_outputs_lie_in_the_convex_hull_of_the_values(framework):
    """Along any direction no output is beyond the furthest value, but for rounding."""
    q, k, v = drawn(4, 6, 3), drawn(4, 9, 3, seed=2), drawn(4, 9, 5, seed=3)
    out = attend(framework)(10 * q, k, v)
    directions = drawn(5, 100, seed=4)
    slack = 50 * UNIT * (np.abs(v) @ np.abs(directions)).max()
    assert ((out @ directions).max(-2) <= (v @ directions).max(-2) + slack).all()


@both_frameworks
def test_one_dominant_score_is_a_lookup_and_tied_scores_are_a_mean(framework):
    rng = np.random.default_rng(0)
    order = rng.permutation(9)
    k, v = np.eye(9), drawn(9, 5)
    np.testing.assert_array_equal(attend(framework)(1e4 * k[order], k, v), v[order])
    means = attend(framework)(drawn(6, 9), np.ones((9, 9)), v)
    assert part_by(means, np.broadcast_to(v.mean(0), (6, 5))) < 1e-15


# The scale.


@both_frameworks
@pytest.mark.parametrize("D", [4, 64, 256])
def test_dot_products_have_variance_d_and_scaled_ones_variance_1(framework, D):
    """The scores that weights and lse betray, of n queries by n keys: within five standard errors."""
    n = 64
    error = math.sqrt(4 / (n * D) + 2 / n**2)  # of the lengths of queries and keys; of their directions
    q, k, v = drawn(n, D), drawn(n, D, seed=2), np.zeros((n, 1))
    for scale, variance in ((1.0, D), (None, 1.0)):
        _, lse, weights = attend(framework, scale=scale, return_lse=True, return_weights=True)(q, k, v)
        scores = np.log(weights) + lse[:, None]
        assert abs(scores.var() / variance - 1) < 5 * error


@both_frameworks
def test_without_the_scale_softmax_saturates_and_its_gradient_vanishes(framework):
    """The gradient by the scores: at D = 4 the scale hardly matters, at D = 1024 it is nearly everything."""

    def slope(D, scale):
        q, k, v = drawn(32, D), drawn(16, D, seed=2), drawn(16, 3, seed=3)
        given = {"bias": np.zeros((32, 16)), "scale": scale}
        return np.abs(gradients(framework)(q, k, v, drawn(32, 3, seed=4), **given)["dbias"]).mean()

    assert slope(4, 1.0) > 0.5 * slope(4, None)
    assert slope(1024, 1.0) < 0.1 * slope(1024, None)
    assert slope(1024, None) > 0.5 * slope(4, None)


@both_frameworks
def test_dividing_by_d_instead_of_its_root_blurs_every_lookup(framework):
    q, k, v = drawn(32, 1024), drawn(16, 1024, seed=2), np.zeros((16, 1))
    _, blurred = attend(framework, scale=1 / 1024, return_weights=True)(q, k, v)
    _, weights = attend(framework, return_weights=True)(q, k, v)
    assert blurred.max() < 1.2 / 16
    assert weights.max(-1).mean() > 3 / 16


# The causal mask.


@both_frameworks
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_each_row_is_a_distribution_over_its_prefix(framework, dtype):
    q, k, v = drawn(2, 7, 4), drawn(2, 7, 4, seed=2), drawn(2, 7, 3, seed=3)
    _, weights = attend(framework, dtype, causal=True, return_weights=True)(q, k, v)
    future = np.arange(7) > np.arange(7)[:, None]
    assert (weights[:, future] == 0).all()  # exactly, in float16 too
    assert (weights[:, ~future] > 0).all()
    assert (np.abs(weights.sum(-1) - 1) <= 7 * np.finfo(weights.dtype).eps).all()
    assert (weights[:, 0, 0] == 1).all()


def masked_after_the_softmax(q, k, v):
    """The mistake: the future is in the denominator, and zeroed too late."""
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    weights = np.tril(weights)
    return weights @ v, weights


def leaks(attention):
    """Whether the first three outputs move with the last keys and values."""
    q, k, v = drawn(2, 7, 4), drawn(2, 7, 4, seed=2), drawn(2, 7, 3, seed=3)
    before = attention(q, k, v)[:, :3]
    k[:, 3:], v[:, 3:] = drawn(2, 4, 4, seed=4), drawn(2, 4, 3, seed=5)
    return not np.array_equal(attention(q, k, v)[:, :3], before)


@both_frameworks
def test_the_past_does_not_depend_on_the_future_and_masking_too_late_is_caught(framework):
    assert not leaks(attend(framework, causal=True))
    assert leaks(lambda *qkv: masked_after_the_softmax(*qkv)[0])
    _, weights = masked_after_the_softmax(drawn(7, 4), drawn(7, 4, seed=2), np.ones((7, 1)))
    assert (weights[:-1].sum(-1) < 0.99).all()


@both_frameworks
def test_a_row_with_nothing_to_see_is_zero_not_nan(framework):
    mask = np.ones((5, 5), bool)
    mask[2] = False
    out = attend(framework, mask=mask)(drawn(5, 4), drawn(5, 4, seed=2), drawn(5, 3, seed=3))
    assert (out[2] == 0).all()
    assert np.isfinite(out).all()


@both_frameworks
def test_decoding_with_a_cached_prefix_is_the_full_pass(framework):
    """Keys and values are kept; at each step one query reads them all."""
    multihead, mlp, tree = part(framework, "multihead"), part(framework, "mlp"), random_tree(12)["attn"]
    params, x = native_tree(framework, tree), to_native(framework, drawn(2, 5, 12))
    whole = to_numpy(jitted(framework, lambda x: multihead.causal_self_attention(params, x, 3))(x))
    qkv = to_numpy(mlp.linear(x, params["w_qkv"], params["b_qkv"]))
    q, k, v = (to_numpy(multihead.split_heads(to_native(framework, t), 3)) for t in np.split(qkv, 3, -1))
    for t in (0, 1, 4):
        query, cached = q[:, :, t : t + 1], (k[:, :, : t + 1], v[:, :, : t + 1])
        y = attend(framework)(query, *cached)
        assert part_by(attend(framework, causal=True, q_offset=t)(query, *cached), y) < 1e-15
        y = multihead.merge_heads(to_native(framework, y))  # (B, 1, C)
        y = to_numpy(mlp.linear(y, params["w_out"], params["b_out"]))
        assert part_by(y[:, 0], whole[:, t]) < 1e-13


# Heads, parameters, the residual stream.


def sizes(tree):
    return {path: math.prod(x.shape) for path, x in leaves(tree).items()}


def abstract(framework, make):
    """What make() returns, with shapes for arrays: nothing is computed."""
    if framework == "torch":
        import torch

        with torch.device("meta"):
            return make()
    from flax import nnx

    return nnx.eval_shape(make)


@both_frameworks
def test_a_gpt2_block_has_7_1_million_parameters_and_two_thirds_are_the_mlps(framework):
    Block, init_block = part(framework, "block").Block, part(framework, "block").init_block
    module = abstract(framework, lambda: Block(**GPT2))
    if framework == "torch":
        held, tree = module.parameters(), init_block(0, n_embd=768)
    else:
        import jax
        from flax import nnx

        held = jax.tree.leaves(nnx.state(module))
        tree = jax.eval_shape(lambda key: init_block(key, n_embd=768), jax.random.PRNGKey(0))
    assert sum(math.prod(p.shape) for p in held) == 7_087_872
    count = sizes(tree)
    assert sum(count.values()) == 12 * 768**2 + 13 * 768 == 7_087_872
    mlp = sum(n for path, n in count.items() if path in ("w_fc", "b_fc", "w_proj", "b_proj"))
    assert mlp == 8 * 768**2 + 5 * 768
    assert round(mlp / 7_087_872, 3) == 0.666


@both_frameworks
def test_heads_cost_no_parameters_and_give_patterns_of_their_own(framework):
    counts = set()
    for n_head in (1, 4, 12):
        module = block_module(framework, n_head, random_tree(12))
        counts.add(sum(sizes(part(framework, "params").to_tree(module)).values()))
    assert counts == {12 * 12**2 + 13 * 12}
    q, k = drawn(2, 5, 12), drawn(2, 5, 12, seed=2)
    split = part(framework, "multihead").split_heads
    q, k = (to_numpy(split(to_native(framework, t), 3)) for t in (q, k))
    _, weights = attend(framework, causal=True, return_weights=True)(q, k, k)
    assert weights.shape == (2, 3, 5, 5)
    assert np.abs(weights[:, 0] - weights[:, 1]).max() > 0.1


def test_heads_cost_no_arithmetic():
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counts = set()
    for n_head in (1, 12):
        block = part("torch", "block").Block(768, n_head, implementation="reference").to("meta")
        with FlopCounterMode(display=False) as counter:
            block(torch.empty(8, 1024, 768, device="meta"))
        counts.add(counter.get_total_flops())
    assert counts == {2 * 8 * 1024 * 12 * 768**2 + 4 * 8 * 1024**2 * 768}


@both_frameworks
def test_a_block_that_writes_nothing_is_the_identity(framework):
    """Whatever the norms and the rest hold: values and gradients pass through bit for bit."""
    tree = random_tree(12)
    nothing = {"attn": tree["attn"] | mapped(np.zeros_like, {n: tree["attn"][n] for n in ("w_out", "b_out")})}
    nothing |= mapped(np.zeros_like, {name: tree[name] for name in ("w_proj", "b_proj")})
    x = drawn(2, 5, 12)
    y, _, dx = block_gradients((framework, "module"), tree | nothing, x, 3 * x, n_head=3)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(dx, 3 * x)


@both_frameworks
def test_each_sublayer_reads_a_normalised_view_and_adds_to_the_stream_itself(framework):
    """Scaling and shifting the input changes what is read by eps alone, and the stream by just that."""
    tree = random_tree(12)
    tree |= mapped(np.zeros_like, {name: tree[name] for name in ("w_proj", "b_proj")})  # attention alone
    run, x = jitted(framework, block_module(framework, 3, tree)), 1000 * drawn(2, 5, 12)
    delta = to_numpy(run(to_native(framework, x))) - x
    moved = to_numpy(run(to_native(framework, 4 * x + 8))) - (4 * x + 8)
    assert part_by(moved, delta) < 1e-9
    assert 0.1 < np.abs(delta).max() < 100


# As a reader writes it.


def test_torch_as_a_reader_writes_it():
    import torch
    import torch.nn.functional as F

    from attn_torch import scaled_dot_product_attention
    from attn_torch.block import Block
    from attn_torch.mlp import MLP
    from attn_torch.multihead import CausalSelfAttention

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, 8, 128, 64, dtype=torch.float64)
    difference = F.scaled_dot_product_attention(q, k, v, is_causal=True) - scaled_dot_product_attention(
        q, k, v, causal=True
    )
    assert difference.abs().max() <= 1e-12
    assert difference.abs().max() < 1e-14  # of the order of 1e-16
    q, k, v = q.float(), k.float(), v.float()
    difference = F.scaled_dot_product_attention(q, k, v) - scaled_dot_product_attention(q, k, v, False)
    assert difference.abs().max() < 1e-5  # of the order of 1e-6
    block = Block(n_embd=48, n_head=12)
    x = torch.randn(2, 16, 48)
    assert str(block(x).shape) == "torch.Size([2, 16, 48])"
    assert CausalSelfAttention(n_embd=48, n_head=12)(x).shape == MLP(n_embd=48)(x).shape == x.shape
    assert sum(p.numel() for p in block.parameters()) == sum(p.numel() for p in Block(48, 1).parameters())
    assert (block.attn.n_head, type(block.ln_1).__name__, block.mlp.c_fc.out_features) == (
        12,
        "LayerNorm",
        192,
    )


def test_jax_as_a_reader_writes_it():
    import jax
    import jax.numpy as jnp

    from attn_jax import scaled_dot_product_attention
    from attn_jax.block import block, init_block
    from attn_jax.multihead import causal_self_attention, init_attention
    from attn_jax.norms import layer_norm

    key = jax.random.PRNGKey(0)
    q, k, v = (jax.random.normal(key, (4, 128, 8, 64), "float32") for key in jax.random.split(key, 3))

    @jax.jit
    def difference(q, k, v):
        theirs = jax.nn.dot_product_attention(q, k, v, is_causal=True)  # (B, T, H, D)
        ours = scaled_dot_product_attention(*(t.swapaxes(1, 2) for t in (q, k, v)), causal=True)
        return jnp.abs(theirs - ours.swapaxes(1, 2)).max()

    assert difference(q, k, v) <= 1e-4
    assert difference(q, k, v) < 1e-5  # of the order of 1e-6
    params = jax.jit(init_block, static_argnames="n_embd")(key, n_embd=48)
    assert params.keys() == {"attn", "ln1", "ln2", "w_fc", "b_fc", "w_proj", "b_proj"}
    attn = jax.eval_shape(lambda key: init_attention(key, n_embd=48), key)
    assert attn.keys() == params["attn"].keys() == {"w_qkv", "b_qkv", "w_out", "b_out"}
    x = jax.random.normal(key, (2, 16, 48))
    apply = jax.jit(lambda p, x: block(p, x, n_head=12))
    assert str(apply(params, x).shape) == "(2, 16, 48)"
    h = jax.eval_shape(lambda x, ln1: layer_norm(x, *ln1, eps=1e-5), x, params["ln1"])
    assert jax.eval_shape(lambda p, h: causal_self_attention(p, h, 12), params["attn"], h).shape == x.shape


@pytest.mark.slow
@both_frameworks
def test_gpt2_smalls_block_runs(framework):
    """8 x 1024 x 768: seconds, and a few score matrices of memory."""
    if framework == "torch":
        import torch

        y = part(framework, "block").Block(**GPT2)(torch.randn(8, 1024, 768))
    else:
        import jax

        key = jax.random.PRNGKey(0)
        params = part(framework, "block").init_block(key, n_embd=768)
        x = jax.random.normal(key, (8, 1024, 768))
        y = jax.jit(lambda p, x: part(framework, "block").block(p, x, n_head=12))(params, x)
    assert y.shape == (8, 1024, 768)
