"""CLIP's text encoder: causal, pre-norm, learned positions. Its vector of a text is that of the last token.

With padding, the last real token is the first end-of-text token, which the mask must hold.
Source: Radford et al. 2021; transformers' modeling_clip.py.
"""

from ..entries import array, layers, linear, norm, qkv, within
from ..keywords import THEIRS, activation, given, taken

PREFIX = "text_model."
BUFFERS = ("*embeddings.position_ids",)
NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "hidden": "intermediate_size",
    "eps": "layer_norm_eps",
}
TEXT = {"n_vocab": "vocab_size", "n_ctx": "max_position_embeddings"}
DEFAULTS = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "layer_norm_eps": 1e-5,
    "hidden_act": "quick_gelu",
}


def keywords(c, names):
    c = type(c)(DEFAULTS | c)
    k = taken(c, NAMES | TEXT) | {
        "activation": activation(c["hidden_act"]),
        "embedding_positions": "learned",
        "head": "none",
        "pool": "last",
    }
    return k | ({"projection": c["projection_dim"]} if "text_projection.weight" in names else {})


def config(k):
    return of_both(k) | given(k, TEXT)


def of_both(k):
    """What config.json says of the text encoder and of the image encoder."""
    size = {"projection_dim": k["projection"]} if k["projection"] else {}
    return given(k, NAMES) | {"hidden_act": THEIRS[k["activation"]]} | size


def blocks(k):
    block = [
        *norm("ln1", "layer_norm1"),
        *qkv(k, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        *linear("attn/out", "self_attn.out_proj"),
        *norm("ln2", "layer_norm2"),
        *linear("fc", "mlp.fc1"),
        *linear("proj", "mlp.fc2"),
    ]
    return layers(k["n_layer"], "encoder.layers.*.", block)


def entries(k, prefix):
    frame = [
        *array("wte", "embeddings.token_embedding.weight"),
        *array("wpe", "embeddings.position_embedding.weight"),
        *norm("ln_f", "final_layer_norm"),
    ]
    top = linear("projection", "text_projection", bias=False) if k.get("projection") else []
    return within(prefix, frame + blocks(k)) + top
