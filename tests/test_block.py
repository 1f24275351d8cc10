"""The block: four routes to one value, any shape and dtype, wrong calls, initial parameters."""

import re

import numpy as np
import pytest
from blocks import (
    block_gradients,
    drawn,
    every_route,
    holding,
    jitted,
    leaves,
    mapped,
    native_tree,
    part,
    part_by,
    pure,
    random_tree,
    run_block,
    tree_part_by,
)
from frameworks import FRAMEWORKS, both_frameworks, to_native, to_numpy

C, HEADS = 12, 3
TREE = random_tree(C)
X, DOUT = drawn(2, 5, C), drawn(2, 5, C, seed=2)


def librarys_block(tree, x, dout):
    """torch's own pre-norm encoder layer under a causal mask: output, {path: gradient}, gradient by x."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(
        C,
        HEADS,
        4 * C,
        dropout=0.0,
        activation="gelu",
        norm_first=True,
        batch_first=True,
        dtype=torch.float64,
    )
    attn = layer.self_attn
    homes = {
        "attn/w_qkv": attn.in_proj_weight,
        "attn/b_qkv": attn.in_proj_bias,
        "attn/w_out": attn.out_proj.weight,
        "attn/b_out": attn.out_proj.bias,
        "ln1/0": layer.norm1.weight,
        "ln1/1": layer.norm1.bias,
        "ln2/0": layer.norm2.weight,
        "ln2/1": layer.norm2.bias,
        "w_fc": layer.linear1.weight,
        "b_fc": layer.linear1.bias,
        "w_proj": layer.linear2.weight,
        "b_proj": layer.linear2.bias,
    }
    with torch.no_grad():
        for path, value in leaves(tree).items():
            homes[path].copy_(torch.from_numpy(value.T))
    x = torch.from_numpy(x).requires_grad_()
    T = x.shape[-2]
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)  # this library's True hides
    y = layer(x, src_mask=hidden, is_causal=True)
    y.backward(torch.from_numpy(dout))
    return to_numpy(y), {path: to_numpy(p.grad).T for path, p in homes.items()}, to_numpy(x.grad)


@every_route
def test_output_and_all_gradients_are_those_of_torchs_own_layer(route):
    want, want_params, want_x = librarys_block(TREE, X, DOUT)
    y, params, dx = block_gradients(route, TREE, X, DOUT, HEADS)
    assert part_by(y, want) < 1e-13
    assert part_by(dx, want_x) < 1e-13
    assert tree_part_by(params, want_params) < 1e-13


@pytest.mark.parametrize("n_head", [1, 12])
def test_the_frameworks_agree_for_any_number_of_heads(n_head):
    torch, jax = (block_gradients((f, "function"), TREE, X, DOUT, n_head) for f in FRAMEWORKS)
    assert part_by(jax[0], torch[0]) < 1e-13
    assert tree_part_by(jax[1], torch[1]) < 1e-13
    assert part_by(jax[2], torch[2]) < 1e-13


@every_route
def test_any_leading_axes(route):
    x = drawn(2, 3, 5, C)
    f, params, _ = pure(route, TREE, HEADS)
    whole = to_numpy(f(params, to_native(route[0], x)))
    assert whole.shape == x.shape
    assert part_by(to_numpy(f(params, to_native(route[0], x[1]))), whole[1]) < 1e-13
    assert part_by(to_numpy(f(params, to_native(route[0], x[1, 2]))), whole[1, 2]) < 1e-13


@every_route
@pytest.mark.parametrize("shape", [(0, 5, C), (2, 0, C)])
def test_an_axis_may_be_empty(route, shape):
    assert run_block(route, TREE, np.zeros(shape), HEADS).shape == shape


@every_route
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_dtype_is_kept(route, dtype):
    import jax

    eighths = mapped(lambda p: np.round(8 * p) / 8, TREE)  # every dtype holds them
    f, params, _ = pure(route, eighths, HEADS, dtype)
    x = to_native(route[0], X, dtype)
    y = f(params, x) if route[0] == "torch" else jax.eval_shape(f, params, x)
    assert y.dtype == x.dtype


@both_frameworks
def test_a_head_is_attention_on_its_own_slice_of_the_projections(framework):
    multihead, core = part(framework, "multihead"), part(framework, "attention")
    q, k, v = (drawn(2, 5, C, seed=s) for s in (3, 4, 5))
    kv = np.concatenate([k, v], -1)
    attend = jitted(framework, lambda q, kv: multihead.attend(q, kv, HEADS, causal=True)[0])
    got = to_numpy(attend(to_native(framework, q), to_native(framework, kv)))
    alone = jitted(framework, lambda *qkv: core.scaled_dot_product_attention(*qkv, causal=True))
    D = C // HEADS
    for h in range(HEADS):
        mine = np.s_[..., h * D : (h + 1) * D]
        want = to_numpy(alone(*(to_native(framework, t[mine][:, None]) for t in (q, k, v))))  # (B, 1, T, D)
        assert part_by(got[mine], want[:, 0]) < 1e-13


@both_frameworks
def test_attention_and_mlp_stand_alone(framework):
    multihead, mlp = part(framework, "multihead"), part(framework, "mlp")
    mlp_tree = {name: TREE[name] for name in ("w_fc", "b_fc", "w_proj", "b_proj")}
    attn = holding(framework, TREE["attn"], lambda: multihead.CausalSelfAttention(C, HEADS))
    feed = holding(framework, mlp_tree, lambda: mlp.MLP(C))

    def run(params, x):
        styles = (attn(x), multihead.causal_self_attention(params["attn"], x, HEADS))
        return (*styles, feed(x), mlp.mlp(params, x))

    params, x = native_tree(framework, TREE), to_native(framework, X)
    attended, attended_too, fed, fed_too = to_numpy(jitted(framework, run)(params, x))
    assert part_by(attended, attended_too) < 1e-13
    assert part_by(fed, fed_too) < 1e-13
    assert part_by(attended, fed) > 1e-2


WIDTH = "x: got shape (2, 5, 7), wanted (..., T, 12)"
RANK = "x: got shape (12,), wanted (..., T, 12)"
BAD_CALLS = [  # what is called, with which x and n_head -> exception and text
    ("block", X[..., :7], HEADS, ValueError, WIDTH),
    ("block", X[0, 0], HEADS, ValueError, RANK),
    ("block", X, 5, ValueError, "n_head: got 5, wanted a divisor of n_embd = 12"),
    ("block", X, 0, ValueError, "n_head: got 0, wanted a divisor of n_embd = 12"),
    ("block", X, 3.0, ValueError, "n_head: got 3.0, wanted a divisor of n_embd = 12"),
    ("block", np.float32(X), HEADS, TypeError, "gain: got dtype float64, wanted float32, the dtype of x"),
    ("mlp", X[..., :7], HEADS, ValueError, WIDTH),
    ("mlp", np.float32(X), HEADS, TypeError, "x: got dtype float32, wanted its parameters' float64"),
    ("attention", X[..., :7], HEADS, ValueError, WIDTH),
    ("attention", X, -3, ValueError, "n_head: got -3, wanted a divisor of n_embd = 12"),
    ("Block", X[..., :7], HEADS, ValueError, WIDTH),
    ("Block", X[0, 0], HEADS, ValueError, RANK),
    ("Block", X, 5, ValueError, "n_head: got 5, wanted a divisor of n_embd = 12"),
    ("MLP", X[..., :7], HEADS, ValueError, WIDTH),
    ("CausalSelfAttention", X[0, 0], HEADS, ValueError, RANK),
    ("CausalSelfAttention", X, 0, ValueError, "n_head: got 0, wanted a divisor of n_embd = 12"),
]


@both_frameworks
@pytest.mark.parametrize("name, x, n_head, error, text", BAD_CALLS)
def test_a_wrong_call_is_refused_in_the_same_words(framework, name, x, n_head, error, text):
    block, multihead, mlp = (part(framework, n) for n in ("block", "multihead", "mlp"))
    params = native_tree(framework, TREE)
    calls = {
        "block": lambda x: block.block(params, x, n_head),
        "mlp": lambda x: mlp.mlp(params, x),
        "attention": lambda x: multihead.causal_self_attention(params["attn"], x, n_head),
        "Block": lambda x: block.Block(C, n_head)(x),
        "MLP": lambda x: mlp.MLP(C)(x),
        "CausalSelfAttention": lambda x: multihead.CausalSelfAttention(C, n_head)(x),
    }
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        calls[name](to_native(framework, x))


@both_frameworks
def test_initial_parameters(framework):
    init = part(framework, "block").init_block
    key = 7
    if framework == "jax":
        import jax

        key = jax.random.key(7)
        init = jax.jit(init, static_argnames="n_embd")
    tree, again = (leaves(to_numpy(init(key, n_embd=64))) for _ in range(2))
    assert {p: x.shape for p, x in tree.items()} == {p: x.shape for p, x in leaves(random_tree(64)).items()}
    assert all((again[p] == x).all() for p, x in tree.items())
    for path, x in tree.items():
        if x.ndim == 2:
            off = abs(8 * x.std() - 1)  # 1 / sqrt(64)
            assert off < 5 / np.sqrt(2 * x.size), path  # five standard errors
        else:
            assert (x == (path in ("ln1/0", "ln2/0"))).all(), path
    assert not np.array_equal(tree["w_fc"].ravel(), tree["w_proj"].ravel())


def test_torch_draws_from_the_generator_that_it_is_given():
    import torch

    from attn_torch.block import init_block

    generator = torch.Generator().manual_seed(7)
    first, second = (init_block(generator, 8)["w_fc"] for _ in range(2))
    assert torch.equal(first, init_block(7, 8)["w_fc"])
    assert not torch.equal(first, second)
