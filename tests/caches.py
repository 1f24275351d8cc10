"""What the tests of caches share: layers of attention, caches for them, one pass and steps through them."""

from functools import partial

import numpy as np
import pytest
from blocks import drawn, native_tree, part
from frameworks import package, to_native, to_numpy

B, T, C, HEADS, KV_HEADS, D, ROOM = 2, 5, 12, 4, 2, 6, 8
HEAVY = {
    "n_kv_head": KV_HEADS,
    "head_dim": D,
    "positions": "rotary",
    "qk_norm": "head",
    "softcap": 2.0,
    "window": (2, 0),
}
LAYERS = {  # name -> keywords of the layer and of each call
    "plain": ({"n_kv_head": KV_HEADS, "head_dim": D}, {}),
    "heavy": (HEAVY, {"sinks": drawn(HEADS, seed=8)}),
    "alibi": ({"n_kv_head": KV_HEADS, "head_dim": D, "positions": "alibi", "window": 2}, {}),
}
KINDS = ("dense", "sliding", "paged")
every_kind = pytest.mark.parametrize("kind", KINDS)
X = drawn(B, T, C)


def empty(framework, kind, batch=B, dtype="float64", garbage=False, window=2, **options):
    """A cache of the layers here; with garbage, NaN in every slot."""
    P, like = package(framework), to_native(framework, np.zeros(1), dtype)
    make = {
        "dense": partial(P.dense_cache, batch, KV_HEADS, ROOM, D),
        "sliding": partial(P.sliding_cache, batch, KV_HEADS, window, D),
        "paged": partial(P.paged_cache, batch, KV_HEADS, ROOM, D, block_size=3),
    }[kind]
    cache = make(dtype=like.dtype, **options)
    return cache._replace(k=cache.k + np.nan, v=cache.v + np.nan) if garbage else cache


def params_of(framework, layer):
    rng, attention = np.random.default_rng(0), LAYERS[layer][0]
    shapes = part(framework, "dialects").attention(C, HEADS, **attention)[0]

    def normal(shape):
        return tuple(map(normal, shape)) if isinstance(shape[0], tuple) else rng.standard_normal(shape) / 2

    return native_tree(framework, {name: normal(shape) for name, shape in shapes.items()})


STEPS = {}  # (framework, layer) -> f(params, x, cache, new_lengths), compiled once in JAX


def step(framework, layer):
    if (framework, layer) not in STEPS:
        options, call = LAYERS[layer]
        call = {name: to_native(framework, x) for name, x in call.items()}
        attention = package(framework).causal_self_attention

        def f(params, x, cache=None, new_lengths=None):
            return attention(params, x, HEADS, cache=cache, new_lengths=new_lengths, **options, **call)

        if framework == "jax":
            import jax

            f = jax.jit(f)
        STEPS[framework, layer] = f
    return STEPS[framework, layer]


def in_steps(framework, layer, cache, sizes, x=X):
    """The outputs of x in steps of these sizes, and the cache after them."""
    f, params, x, ys = step(framework, layer), params_of(framework, layer), to_native(framework, x), []
    for end in np.cumsum(sizes):
        y, cache = f(params, x[:, end - sizes[len(ys)] : end], cache)
        ys.append(to_numpy(y))
    return np.concatenate(ys, 1), cache


def in_one_pass(framework, layer, x=X):
    return to_numpy(step(framework, layer)(params_of(framework, layer), to_native(framework, x)))
