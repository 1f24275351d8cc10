"""The vision transformer: patches of an image, a class token, pre-norm; possibly a pooler or a classifier.

A classifier is the head: of the logits at all positions, those at the first are the image's.
Source: Dosovitskiy et al. 2021; transformers' modeling_vit.py.
"""

from ..entries import array, layers, linear, norm, qkv, within
from ..keywords import THEIRS, activation, given, taken

PREFIX = "vit."
NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "hidden": "intermediate_size",
    "eps": "layer_norm_eps",
}
PATCH = {"size": "patch_size", "channels": "num_channels", "image": "image_size"}


def keywords(c, names):
    k = taken(c, NAMES) | {
        "n_vocab": None,
        "activation": activation(c["hidden_act"]),
        "bias": ("norm", "out", "fc", "proj", *(("qkv",) if c.get("qkv_bias", True) else ())),
        "causal": False,
        "embedding_positions": "learned",
        "patch": taken(c, PATCH),
        "head": "none",
    }
    if any(name.endswith("pooler.dense.weight") for name in names):
        k |= {"pool": "first", "pooler": True}
    if "classifier.weight" in names:
        k |= {"n_vocab": len(c.get("id2label") or "01"), "head": "free", "head_bias": True}
    return k


def config(k):
    labels = {str(i): f"LABEL_{i}" for i in range(k["n_vocab"] or 0)}
    return (
        given(k, NAMES)
        | given(k["patch"], PATCH)
        | {"hidden_act": THEIRS[k["activation"]], "qkv_bias": "qkv" in k["bias"]}
        | ({"id2label": labels} if labels else {})
    )


def patches(k, name, bias):
    size, channels = k["patch"]["size"], k["patch"]["channels"]
    order = {"pattern": "c k y x -> (y x k) c", "y": size, "x": size, "k": channels}
    return array("w_patch", f"{name}.weight", **order) + (
        array("b_patch", f"{name}.bias", "c -> c") if bias else []
    )


def entries(k, prefix):
    block = [
        *norm("ln1", "layernorm_before"),
        *qkv(
            k, *(f"attention.attention.{name}" for name in ("query", "key", "value")), bias="qkv" in k["bias"]
        ),
        *linear("attn/out", "attention.output.dense"),
        *norm("ln2", "layernorm_after"),
        *linear("fc", "intermediate.dense"),
        *linear("proj", "output.dense"),
    ]
    frame = [
        *array("cls", "embeddings.cls_token", "1 1 c -> c"),
        *array("wpe", "embeddings.position_embeddings", "1 n c -> n c"),
        *patches(k, "embeddings.patch_embeddings.projection", True),
        *norm("ln_f", "layernorm"),
        *(linear("pool", "pooler.dense") if k.get("pooler") else []),
    ]
    top = linear("head", "classifier") if k["head"] == "free" else []
    return within(prefix, frame + layers(k["n_layer"], "encoder.layer.*.", block)) + top
