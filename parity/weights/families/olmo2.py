"""OLMo 2: Llama with its norms after attention and the MLP, and all heads of q, and of k, normalised as one.

Source: OLMo Team 2024; transformers' modeling_olmo2.py.
"""

from ..keywords import rope
from . import llama
from .llama import BUFFERS, COPIES, PREFIX

__all__ = ["BUFFERS", "COPIES", "PREFIX", "config", "entries", "keywords"]


def keywords(c, names):
    k = llama.decoder(c, names, bias=("qkv", "out") if c.get("attention_bias") else ())
    return k | rope(c, k["head_dim"]) | {"norm_placement": "output", "qk_norm": "all"}


def config(k):
    return llama.decoder_config(k) | {"attention_bias": "qkv" in k["bias"]}


def entries(k, prefix):
    block = llama.block(k, ln1="post_attention_layernorm", ln2="post_feedforward_layernorm")
    return llama.entries(k, prefix, block)
