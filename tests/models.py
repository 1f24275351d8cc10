"""Transformers of each kind, small, as keywords; and how a test runs one."""

import numpy as np
import pytest
from blocks import drawn, holding, jitted, mapped, native_tree, part
from families import DIALECTS
from frameworks import to_native, to_numpy

V, C, HEADS, LAYERS, T = 11, 12, 3, 2, 5
TOKENS = np.random.default_rng(0).integers(0, V, (2, T))
IMAGES = drawn(2, 4, 6, 3, seed=4)
SOUND = drawn(2, 2 * T, 7, seed=5)
LEARNED = {"embedding_positions": "learned", "n_ctx": 9}

# Kind -> the transformer's keywords; those of the block are families'.
MODELS = {
    "gpt2": DIALECTS["gpt2"] | LEARNED,
    "gpt-neox": DIALECTS["gpt-neox"] | {"head": "free"},
    "mpt": DIALECTS["mpt"] | {"head": "free", "head_bias": True},
    "bert": DIALECTS["bert"]
    | LEARNED
    | {
        "n_type": 2,
        "embed_norm": True,
        "final_norm": False,
        "head_bias": True,
        "head_transform": "gelu",
        "pool": "first",
        "pooler": True,
    },
    "roberta": DIALECTS["bert"]
    | LEARNED
    | {"position_start": 2, "embed_norm": True, "final_norm": False, "head": "none", "pool": "mean"},
    "gemma3": DIALECTS["gemma2"]
    | {
        "embed_scale": 12**0.5,
        "logit_softcap": 3.0,
        "layers": ({"window": (1, 0), "rotary_theta": 100.0}, {"window": None}),
    },
    "llama": DIALECTS["llama"] | {"head": "free"},
    "t5": DIALECTS["t5"] | {"relative_bias": {"n_bucket": 8, "max_distance": 6}, "head": "none"},
    "t5-causal": DIALECTS["t5"]
    | {"relative_bias": {"n_bucket": 4, "max_distance": 6}, "causal": True, "head_scale": 0.25},
    "sinusoidal": {"embedding_positions": "sinusoidal", "embed_scale": 2.0, "causal": False, "head": "free"},
    "clip-text": LEARNED | {"head": "none", "pool": "last", "projection": 6},
    "vit": {
        "patch": {"size": 2, "channels": 3, "image": (4, 6)},
        "embedding_positions": "learned",
        "causal": False,
        "head": "free",
        "head_bias": True,
        "pool": "first",
        "pooler": True,
        "eps": 1e-12,
    },
    "clip-vision": {
        "patch": {"size": 2, "channels": 3, "image": (4, 6), "bias": False},
        "embedding_positions": "learned",
        "causal": False,
        "embed_norm": True,
        "head": "none",
        "pool": "first",
        "projection": 6,
    },
    "whisper-encoder": {"stem": 7, "causal": False, "head": "none"} | LEARNED,
}
DECODERS = ("gpt2", "gpt-neox", "mpt", "gemma3", "llama", "t5-causal")
every_model = pytest.mark.parametrize("name", MODELS)


def some(*names, among=tuple(MODELS)):
    """These models, and those among which they are where slow tests run too."""
    rest = [pytest.param(name, marks=pytest.mark.slow) for name in among if name not in names]
    return pytest.mark.parametrize("name", [*names, *rest])


def inputs_of(name):
    """What a model reads: tokens, images or sound."""
    keywords = MODELS[name]
    return IMAGES if "patch" in keywords else SOUND if "stem" in keywords else TOKENS


def random_model(name, seed=0):
    """Parameters of a model in float64, none of them 0 or 1."""
    rng = np.random.default_rng(seed)
    tree = to_numpy(part("torch", "transformer").init_transformer(0, V, C, HEADS, LAYERS, **MODELS[name]))
    return mapped(lambda x: rng.standard_normal(x.shape) / (np.sqrt(C) if x.ndim == 2 else 1), tree)


def model(route, name, tree, dtype="float64"):
    """A model that holds tree, as f(tokens, **call) of the framework's own arrays."""
    framework, style = route
    transformer = part(framework, "transformer")
    if style == "module":
        return holding(
            framework, tree, lambda: transformer.Transformer(V, C, HEADS, LAYERS, **MODELS[name]), dtype
        )
    params = native_tree(framework, tree, dtype)
    return lambda tokens, **call: transformer.transformer(params, tokens, HEADS, **MODELS[name], **call)


def run(route, name, tree, tokens=None, *, static=(), **call):
    """What a model returns, in NumPy. static: keywords of the call that are no arrays, as pairs."""
    framework, _ = route
    f = model(route, name, tree)
    tokens = to_native(framework, inputs_of(name) if tokens is None else tokens)
    call = {key: to_native(framework, x) for key, x in call.items()}
    return to_numpy(jitted(framework, lambda tokens, call: f(tokens, **dict(static), **call))(tokens, call))
