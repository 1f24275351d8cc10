"""Gemma 2: Gemma with norms before and after, windows in every second layer, and caps of scores and logits.

Source: Gemma Team 2024b; transformers' modeling_gemma2.py.
"""

from ..entries import norm
from ..keywords import layer_types, rope, windows
from . import gemma, llama
from .llama import BUFFERS, COPIES, PREFIX

__all__ = ["BUFFERS", "COPIES", "PREFIX", "config", "entries", "keywords"]


def keywords(c, names):
    kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(c["num_hidden_layers"])]
    return (
        decoder(c, names)
        | rope(c, c["head_dim"])
        | windows(c, c.get("layer_types") or kinds, c["sliding_window"])
    )


def decoder(c, names):
    """The keywords that Gemma 2 and Gemma 3 share."""
    return gemma.decoder(c, names, "hidden_activation") | {
        "norm_placement": "sandwich",
        "scale": c["query_pre_attn_scalar"] ** -0.5,
        "softcap": c["attn_logit_softcapping"],
        "logit_softcap": c["final_logit_softcapping"],
    }


def config(k):
    scalar = k["scale"] ** -2
    return (
        gemma.config(k, "hidden_activation")
        | layer_types(k)
        | {
            "query_pre_attn_scalar": round(scalar) if round(scalar) ** -0.5 == k["scale"] else scalar,
            "attn_logit_softcapping": k["softcap"],
            "final_logit_softcapping": k["logit_softcap"],
        }
    )


def entries(k, prefix):
    block = llama.block(k, ln2="pre_feedforward_layernorm")
    block += norm("ln1_post", "post_attention_layernorm", bias=False)
    block += norm("ln2_post", "post_feedforward_layernorm", bias=False)
    return llama.entries(k, prefix, block)
