"""RoBERTa: BERT whose positions begin after the padding token's number, with a head by other names.

Source: Liu et al. 2019; transformers' modeling_roberta.py.
"""

from . import bert

PREFIX = "roberta."
BUFFERS = bert.BUFFERS
COPIES = {
    "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}
HEAD = {"bias": "lm_head", "dense": "lm_head.dense", "norm": "lm_head.layer_norm"}


def keywords(c, names):
    k = bert.keywords(c, names, HEAD) | {"position_start": c["pad_token_id"] + 1}
    return k | ({} if k["head"] == "none" else {"head_transform": "gelu"})


def config(k):
    return bert.config(k) | {"pad_token_id": k["position_start"] - 1}


def entries(k, prefix):
    return bert.entries(k, prefix, HEAD)
