"""The dialect of each model family as keywords of the block, and how a test runs one."""

import numpy as np
import pytest
from blocks import drawn, holding, mapped, native_tree, part
from frameworks import to_native, to_numpy

C, HEADS, T = 12, 3, 5
FAR = np.array([4095, 4096, 4100, 7001, 7002])  # where a turn by half a pair or a wrong frequency shows
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

# Family -> keywords of its block.
DIALECTS = {
    "gpt2": {"activation": "gelu_tanh"},
    "gpt-neox": {"parallel": True, "positions": "rotary", "rotary_dim": 2},
    "gpt-j": {
        "parallel": True,
        "positions": "rotary",
        "rotary_interleaved": True,
        "bias": ("norm", "fc", "proj"),
    },
    "bert": {"norm_placement": "post", "causal": False, "eps": 1e-12},
    "mpt": {"positions": "alibi", "bias": False},
    "llama": {
        "norm": "rms",
        "activation": "swiglu",
        "hidden": 20,
        "bias": False,
        "n_kv_head": 1,
        "head_dim": 6,
        "positions": "rotary",
        "rotary_theta": 500000.0,
        "rotary_scaling": LLAMA3,
    },
    "qwen2": {
        "norm": "rms",
        "activation": "swiglu",
        "bias": ("qkv",),
        "positions": "rotary",
        "rotary_theta": 1e6,
        "window": (3, 0),
    },
    "qwen3": {"norm": "rms", "activation": "swiglu", "bias": False, "positions": "rotary", "qk_norm": "head"},
    "gemma2": {
        "norm": "rms",
        "norm_placement": "sandwich",
        "norm_offset": 1.0,
        "activation": "geglu_tanh",
        "bias": False,
        "positions": "rotary",
        "softcap": 2.0,
        "scale": 0.3,
        "head_dim": 8,
        "n_kv_head": 1,
        "window": 2,
    },
    "olmo2": {
        "norm": "rms",
        "norm_placement": "output",
        "activation": "swiglu",
        "bias": False,
        "positions": "rotary",
        "qk_norm": "all",
        "n_kv_head": 1,
    },
    "t5": {"norm": "rms", "activation": "relu", "bias": False, "scale": 1.0, "causal": False},
    "phi3": {"norm": "rms", "activation": "swiglu", "bias": False, "positions": "rotary", "window": (2, 0)},
    "whisper": {"cross": True},
    "t5-decoder": {"norm": "rms", "activation": "geglu", "bias": False, "scale": 1.0, "cross": True},
    "sandwich-decoder": {
        "norm_placement": "sandwich",
        "cross": True,
        "qk_norm": "head",
        "n_kv_head": 1,
        "bias": ("qkv", "out", "fc", "proj"),
    },
}
SHARED_BY_ALL = {"t5": {"attn_bias": drawn(HEADS, T, T, seed=5)}}  # what a call of the family has besides
every_dialect = pytest.mark.parametrize("name", DIALECTS)


def random_tree(name, seed=0):
    """Parameters of a dialect in float64, none of them 0 or 1."""
    rng = np.random.default_rng(seed)
    tree = to_numpy(part("torch", "block").init_block(0, C, HEADS, **DIALECTS[name]))
    return mapped(lambda x: rng.standard_normal(x.shape) / (np.sqrt(C) if x.ndim == 2 else 1), tree)


def call_of(name):
    call = dict(SHARED_BY_ALL.get(name, {}))
    if DIALECTS[name].get("positions", "none") != "none":
        call["position_ids"] = FAR
    if DIALECTS[name].get("cross"):
        call["context"] = drawn(2, 4, C, seed=3)
        call["context_lengths"] = np.array([4, 2])
    return call


def run(route, name, tree, x, dout=None, dialect=None, **call):
    """The output of a block, and with dout the gradients of every parameter (a tree) and of x."""
    framework, style = route
    dialect = DIALECTS[name] if dialect is None else dialect
    call = {key: to_native(framework, value) for key, value in (call_of(name) | call).items()}
    x = to_native(framework, x)
    if style == "module":
        Block = part(framework, "block").Block
        module = holding(framework, tree, lambda: Block(C, HEADS, **dialect))
        return to_numpy(module(x, **call))
    params, block = native_tree(framework, tree), part(framework, "block").block

    def f(params, x):
        return block(params, x, HEADS, **dialect, **call)

    if dout is None:
        return to_numpy(f(params, x))
    dout = to_native(framework, dout)
    if framework == "torch":
        params, x = mapped(lambda p: p.requires_grad_(), params), x.requires_grad_()
        y = f(params, x)
        y.backward(dout)
        return to_numpy(y), to_numpy(mapped(lambda p: p.grad, params)), to_numpy(x.grad)
    import jax

    y, pull = jax.vjp(jax.jit(f), params, x)
    return to_numpy((y, *pull(dout)))
