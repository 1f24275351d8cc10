"""Wrong calls with a cache, and caches that cannot be: the same error in both packages."""

import re

import numpy as np
import pytest
from blocks import drawn, native_tree, part
from caches import HEADS, KV_HEADS, LAYERS, ROOM, B, C, D, T, X, empty, params_of
from families import random_tree
from frameworks import both_frameworks, package, to_native

TEN = np.array([10, 10], "int32")
BAD_CALLS = [  # kind of cache, keywords of the layer, what the call has -> error, text
    (
        "dense",
        {},
        {"cache": {}},
        TypeError,
        "cache: got dict, wanted one of DenseCache, SlidingCache, PagedCache",
    ),
    (
        "dense",
        {},
        {"cache": None, "new_lengths": TEN},
        TypeError,
        "cache: got NoneType, wanted one of DenseCache, SlidingCache, PagedCache",
    ),
    ("dense", {"causal": False}, {}, ValueError, "causal: got False with a cache, wanted True"),
    ("dense", {}, {"x": X[0]}, ValueError, "x: got 2 axes with a cache, wanted 3, (B, T, C)"),
    (
        "dense",
        {},
        {"x": drawn(3, T, C)},
        ValueError,
        "k: got shape (3, 2, 5, 6), wanted (2, 2, T, 6) for the cache",
    ),
    (
        "paged",
        {"n_kv_head": 4},
        {},
        ValueError,
        "k: got shape (2, 4, 5, 6), wanted (2, 2, T, 6) for the cache",
    ),
    ("dense", {}, {"new_lengths": TEN}, ValueError, "new_lengths: got 10, wanted at least 0 and at most 5"),
    ("dense", {}, {"q_offset": 1}, ValueError, "q_offset: got a value in a call with a cache, wanted None"),
    (
        "dense",
        {},
        {"kv_lengths": TEN},
        ValueError,
        "kv_lengths: got a value in a call with a cache, wanted None",
    ),
    (
        "dense",
        {},
        {"dropout_seed": 1},
        ValueError,
        "dropout_seed: got a value in a call with a cache, wanted None",
    ),
    ("sliding", {}, {}, ValueError, "window: got None, wanted 2 to the left, that of the cache"),
    (
        "sliding",
        {"window": (3, 0)},
        {},
        ValueError,
        "window: got (3, 0), wanted 2 to the left, that of the cache",
    ),
    (
        "dense",
        {},
        {"mask": np.ones((T, T), bool)},
        ValueError,
        "mask: got 5 keys, wanted 1 or 8, the capacity of the cache",
    ),
    (
        "paged",
        {},
        {"attn_bias": drawn(T, 8)},
        ValueError,
        "attn_bias: got 8 keys, wanted 1 or 9, the capacity of the cache",
    ),
    (
        "sliding",
        {"window": 2},
        {"mask": np.ones((T, 3), bool)},
        ValueError,
        "mask: got 3 keys, wanted 1, with a SlidingCache",
    ),
    (
        "dense",
        {"positions": "alibi"},
        {"position_ids": np.arange(T)},
        ValueError,
        "position_ids: got an array with a cache and positions='alibi', wanted None",
    ),
]


@both_frameworks
@pytest.mark.parametrize(
    "kind, keywords, call, error, text", BAD_CALLS, ids=[text[:40] for *_, text in BAD_CALLS]
)
def test_a_wrong_call_is_refused(framework, kind, keywords, call, error, text):
    layer = {"n_kv_head": KV_HEADS, "head_dim": D, "causal": True} | keywords
    call = {"x": X, "cache": empty(framework, kind)} | call
    call = {name: to_native(framework, x) for name, x in call.items()}
    shapes = part(framework, "dialects").attention(C, HEADS, n_kv_head=layer["n_kv_head"], head_dim=D)[0]
    params = native_tree(framework, {name: np.zeros(shape) for name, shape in shapes.items()})
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        package(framework).multi_head_attention(params, call.pop("x"), HEADS, **layer, **call)


@both_frameworks
def test_a_cache_of_another_dtype_or_for_a_context_is_refused(framework):
    P, params, x = package(framework), params_of(framework, "plain"), to_native(framework, X)
    with pytest.raises(
        TypeError, match=re.escape("k: got dtype float64, wanted float32, the dtype of the cache")
    ):
        P.causal_self_attention(
            params, x, HEADS, cache=empty(framework, "dense", dtype="float32"), **LAYERS["plain"][0]
        )
    tree = native_tree(framework, random_tree("whisper")["cross_attn"])
    with pytest.raises(ValueError, match=r"^cache: got one with cross=True, wanted None"):
        P.multi_head_attention(tree, x, 3, x, cross=True, cache=empty(framework, "dense"))


BAD_CACHES = [
    ("dense", {"capacity": 0}, ValueError, "capacity: got 0, wanted an integer of at least 1"),
    ("dense", {"batch": -1}, ValueError, "batch: got -1, wanted an integer of at least 0"),
    ("dense", {"head_dim": 2.5}, ValueError, "head_dim: got 2.5, wanted an integer of at least 1"),
    (
        "sliding",
        {"window": None},
        ValueError,
        "window: got None, wanted an integer of at least 0 to the left",
    ),
    (
        "sliding",
        {"window": (-1, 0)},
        ValueError,
        "window: got (-1, 0), wanted an integer of at least 0 to the left",
    ),
    ("paged", {"block_size": 0}, ValueError, "block_size: got 0, wanted an integer of at least 1"),
    ("paged", {"n_block": 5}, ValueError, "table: got block 5, wanted at least -1 and at most 4"),
    (
        "paged",
        {"table": np.zeros((2, 2), "int32")},
        ValueError,
        "table: got shape (2, 2), wanted (2, 3), the blocks of each row",
    ),
    ("paged", {"table": np.zeros((2, 3))}, TypeError, "table: got dtype float64, wanted integers"),
]


@both_frameworks
@pytest.mark.parametrize("kind, change, error, text", BAD_CACHES, ids=[text[:40] for *_, text in BAD_CACHES])
def test_a_cache_that_cannot_be_is_refused(framework, kind, change, error, text):
    size = {"window": 2} if kind == "sliding" else {"capacity": ROOM}
    size |= {"block_size": 3} if kind == "paged" else {}
    given = {"batch": B, "n_kv_head": KV_HEADS, "head_dim": D, **size, **change}
    given = {name: to_native(framework, x) for name, x in given.items()}
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        getattr(package(framework), f"{kind}_cache")(**given)
