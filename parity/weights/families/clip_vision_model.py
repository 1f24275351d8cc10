"""CLIP's image encoder: a vision transformer with a norm before its blocks. Its vector is the class token's.

transformers has the last norm for the class token alone, here all positions have it.
Source: Radford et al. 2021; transformers' modeling_clip.py.
"""

from ..entries import array, linear, norm, within
from ..keywords import activation, given, taken
from . import clip_text_model as text
from .vit import PATCH, patches

PREFIX = "vision_model."
BUFFERS = text.BUFFERS
DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "layer_norm_eps": 1e-5,
    "hidden_act": "quick_gelu",
}


def keywords(c, names):
    c = type(c)(DEFAULTS | c)
    k = taken(c, text.NAMES) | {
        "n_vocab": None,
        "activation": activation(c["hidden_act"]),
        "causal": False,
        "embedding_positions": "learned",
        "embed_norm": True,
        "patch": taken(c, PATCH) | {"bias": False},
        "head": "none",
        "pool": "first",
    }
    return k | ({"projection": c["projection_dim"]} if "visual_projection.weight" in names else {})


def config(k):
    return text.of_both(k) | given(k["patch"], PATCH)


def entries(k, prefix):
    frame = [
        *array("cls", "embeddings.class_embedding", "c -> c"),
        *patches(k, "embeddings.patch_embedding", False),
        *array("wpe", "embeddings.position_embedding.weight"),
        *norm("ln_e", "pre_layrnorm"),
        *norm("ln_f", "post_layernorm"),
    ]
    top = linear("projection", "visual_projection", bias=False) if k.get("projection") else []
    return within(prefix, frame + text.blocks(k)) + top
