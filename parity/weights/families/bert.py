"""BERT: an encoder, post-norm, with learned positions and types of tokens, and possibly a pooler and a head.

Source: Devlin et al. 2019; transformers' modeling_bert.py.
"""

from ..entries import array, layers, linear, norm, qkv, within
from ..keywords import THEIRS, activation, given, only, taken

PREFIX = "bert."
BUFFERS = ("*embeddings.position_ids",)
FORMERLY = {".gamma": ".weight", ".beta": ".bias"}  # of norms, in files of the first years
COPIES = {
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
HEAD = {"bias": "cls.predictions", "dense": "cls.predictions.transform.dense"}
HEAD["norm"] = "cls.predictions.transform.LayerNorm"
NAMES = {
    "n_vocab": "vocab_size",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "hidden": "intermediate_size",
    "n_ctx": "max_position_embeddings",
    "n_type": "type_vocab_size",
    "eps": "layer_norm_eps",
}


def keywords(c, names, parts=HEAD):
    only(c, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    k = taken(c, NAMES) | {
        "activation": activation(c["hidden_act"]),
        "norm_placement": "post",
        "causal": False,
        "embedding_positions": "learned",
        "embed_norm": True,
        "final_norm": False,
        "head": "none",
    }
    if any(name.endswith("pooler.dense.weight") for name in names):
        k |= {"pool": "first", "pooler": True}
    if f"{parts['bias']}.bias" in names:
        k |= {"head": "tied", "head_bias": True, "head_transform": k["activation"]}
    return k


def config(k):
    return given(k, NAMES) | {"hidden_act": THEIRS[k["activation"]]}


def entries(k, prefix, parts=HEAD):
    block = [
        *qkv(k, *(f"attention.self.{name}" for name in ("query", "key", "value"))),
        *linear("attn/out", "attention.output.dense"),
        *norm("ln1", "attention.output.LayerNorm"),
        *linear("fc", "intermediate.dense"),
        *linear("proj", "output.dense"),
        *norm("ln2", "output.LayerNorm"),
    ]
    frame = [
        *array("wte", "embeddings.word_embeddings.weight"),
        *array("wpe", "embeddings.position_embeddings.weight"),
        *array("wtt", "embeddings.token_type_embeddings.weight"),
        *norm("ln_e", "embeddings.LayerNorm"),
        *(linear("pool", "pooler.dense") if k.get("pooler") else []),
    ]
    top = [
        *linear("transform", parts["dense"]),
        *norm("ln_t", parts["norm"]),
        *array("b_head", f"{parts['bias']}.bias", "c -> c"),
    ]
    found = within(prefix, frame + layers(k["n_layer"], "encoder.layer.*.", block))
    return found + (top if k["head"] != "none" else [])
