"""flax's multi-head layers on our attention: the numbers of their own, also in dropout and in decoding."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blocks import drawn, part_by
from flax import linen, nnx
from frameworks import lenient

from attn_jax.flax import attention_fn

B, T, C, H = 2, 5, 8, 4
MASK = np.tril(np.ones((B, 1, T, T), "float32")) * np.float32([1, 1, 1, 1, 0])  # flax makes them of floats
OWN = {"nnx": nnx.dot_product_attention, "linen": linen.dot_product_attention}


@pytest.fixture(autouse=True)
def as_flax_uses_jax():
    with lenient():
        yield


def parameters(shapes):
    """Random ones of those shapes, always the same."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda p: jnp.asarray(rng.standard_normal(p.shape)), shapes)


def nnx_layer(fn=attention_fn, **options):
    """With a dropout rate flax's own softmax is of float64; without one it is jax.nn's, of float32."""
    options = {
        "dropout_rate": 0.25,
        "deterministic": True,
        "decode": False,
        "param_dtype": jnp.float64,
    } | options
    options |= {"attention_fn": fn, "keep_rngs": False}
    made = nnx.eval_shape(lambda: nnx.MultiHeadAttention(H, C, rngs=nnx.Rngs(0), **options))
    nnx.update(made, parameters(nnx.state(made, nnx.Param)))
    return made


def run(made, x, rngs=None, **call):
    return nnx.jit(lambda made, x, rngs: made(x, rngs=rngs, **call))(made, x, rngs)


def linen_layer(fn=attention_fn, **options):
    """(f(x, ...) -> the output and what else the layer leaves, its parameters)."""
    options = {"dropout_rate": 0.25, "deterministic": True, "param_dtype": jnp.float64} | options
    made = linen.MultiHeadDotProductAttention(num_heads=H, attention_fn=fn, **options)
    shapes = jax.eval_shape(lambda: made.init(jax.random.key(0), jnp.zeros((B, T, C))))

    def run(x, variables=None, **call):
        variables = {"params": parameters(shapes["params"])} | (variables or {})
        f = partial(made.apply, mutable=["intermediates", "cache"], **call)
        return jax.jit(f)(variables, x)  # a compiled call is quicker than one op by op

    return run


def x_of(*shape):
    return jnp.asarray(drawn(*shape))


def close(got, want):
    return part_by(np.asarray(got), np.asarray(want)) < 1e-14


NNX = {
    "plain": ({}, {}),
    "float-mask": ({}, {"mask": MASK}),
    "causal": ({}, {"is_causal": True}),
    "grouped-normed": ({"num_kv_heads": 2, "normalize_qk": True}, {"mask": MASK}),
    "dropped": ({"deterministic": False}, {}),
    "dropped-for-each": ({"deterministic": False, "broadcast_dropout": False}, {}),
}


@pytest.mark.parametrize("name", NNX)
def test_nnx_gives_the_numbers_of_its_own_attention(name):
    options, call = NNX[name]
    outs = []
    for fn in (attention_fn, OWN["nnx"]):
        rngs = nnx.Rngs(dropout=1) if "deterministic" in options else None
        outs.append(run(nnx_layer(fn, **options), x_of(B, T, C), rngs, **call))
    assert close(*outs)


@pytest.mark.parametrize("shape", [(T, C), (2, 1, T, C)])
def test_nnx_may_have_any_leading_axes(shape):
    assert close(*(run(nnx_layer(fn), x_of(*shape), is_causal=True) for fn in (attention_fn, OWN["nnx"])))


def test_nnx_decodes_to_what_one_pass_gives():
    x = x_of(B, T, C)
    made = nnx_layer(num_kv_heads=2)
    want = run(made, x, is_causal=True)
    made.init_cache((B, T, C), jnp.float64)
    step = nnx.jit(lambda made, x: made(x, decode=True, mask=jnp.ones((B, 1, 1, T))))
    steps = [step(made, x[:, t : t + 1]) for t in range(T)]
    assert close(jnp.concatenate(steps, 1), want)


def test_nnx_sows_the_weights_and_gives_the_gradients_of_its_own_attention():
    found = []
    for fn in (attention_fn, OWN["nnx"]):
        made = nnx_layer(fn, deterministic=False)

        def loss(made):
            y = nnx.capture(made, nnx.Intermediate)(
                x_of(B, T, C), mask=MASK, sow_weights=True, rngs=nnx.Rngs(1)
            )
            return (y[0] ** 2).sum(), y[1]

        grads, sown = nnx.jit(nnx.grad(loss, has_aux=True))(made)
        found.append((jax.tree.leaves(grads), jax.tree.leaves(sown)))
    (grads, sown), (want, own) = found
    assert len(sown) == len(own) == 1
    assert close(sown[0], own[0])
    assert part_by(*(np.concatenate([np.ravel(g) for g in tree]) for tree in (grads, want))) < 1e-13


LINEN = {
    "float-mask": ({}, {"mask": MASK}),
    "normed": ({"normalize_qk": True}, {}),
    "dropped": ({"deterministic": False}, {"dropout_rng": jax.random.key(3)}),
    "sown": ({}, {"sow_weights": True, "mask": MASK}),
}


@pytest.mark.parametrize("name", LINEN)
def test_linen_gives_the_numbers_of_its_own_attention(name):
    options, call = LINEN[name]
    got, want = (linen_layer(fn, **options)(x_of(B, T, C), **call) for fn in (attention_fn, OWN["linen"]))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    assert all(map(close, jax.tree.leaves(got), jax.tree.leaves(want)))


def test_linen_decodes_to_what_one_pass_gives():
    x, run = x_of(B, T, C), linen_layer(decode=True)
    want, _ = linen_layer()(x, mask=nnx.make_causal_mask(x[..., 0]))
    cache = {name: jnp.zeros((B, T, H, C // H)) for name in ("cached_key", "cached_value")}
    cache, steps = {"cache": cache | {"cache_index": jnp.array(0, jnp.int32)}}, []
    for t in range(T):
        y, cache = run(x[:, t : t + 1], cache)
        steps.append(y)
    assert close(jnp.concatenate(steps, 1), want)


def test_the_computation_has_the_dtype_that_is_asked_for():
    half, single = (jax.ShapeDtypeStruct((B, T, H, 2), dtype) for dtype in ("bfloat16", "float32"))
    for q, dtype, wanted in ((single, "bfloat16", "bfloat16"), (half, None, "float32")):
        f = partial(attention_fn, dtype=dtype, precision="highest")
        assert jax.eval_shape(f, q, single, single).dtype == wanted


REFUSED = [
    ({"dropout_rate": 0.5}, "dropout_rng: got None with dropout_rate=0.5, wanted a key"),
    ({"qk_attn_weights_einsum": 1}, "qk_attn_weights_einsum: got 1, wanted None"),
    ({"precision": ("high", "high")}, "is not a valid Precision"),
    ({"mask": jnp.ones((3, 1, T, T))}, "mask: got"),
]


@pytest.mark.parametrize("asked, text", REFUSED)
def test_what_we_cannot_is_refused(asked, text):
    q = x_of(B, T, H, 2)
    with pytest.raises(ValueError, match=text):
        attention_fn(q, q, q, **asked)
