"""Gemma: Llama with embeddings times sqrt(C), norms by 1 + gain, GELU by tanh as the gate, a tied head.

Source: Gemma Team 2024; transformers' modeling_gemma.py.
"""

from ..keywords import only, rope
from . import llama
from .llama import BUFFERS, COPIES, PREFIX, entries

__all__ = ["BUFFERS", "COPIES", "PREFIX", "config", "entries", "keywords"]


def keywords(c, names):
    if c["hidden_act"] == "gelu":  # older files say so and mean the other
        c = type(c)(c, hidden_act="gelu_pytorch_tanh")
    return decoder(c, names, "hidden_act") | rope(c, c["head_dim"])


def decoder(c, names, act):
    """The keywords that Gemma and those after it share."""
    only(c, use_bidirectional_attention=None if c.get("use_bidirectional_attention") is None else False)
    bias = ("qkv", "out") if c.get("attention_bias") else ()
    k = llama.decoder(c, names, tied=True, act=act, bias=bias)
    return k | {"norm_offset": 1.0, "embed_scale": k["n_embd"] ** 0.5}


def config(k, act="hidden_act"):
    return llama.decoder_config(k, act) | {"attention_bias": "qkv" in k["bias"]}
