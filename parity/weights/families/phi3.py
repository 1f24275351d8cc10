"""Phi-3: Llama with q | k | v in one map, and the gate and its other half in one, and possibly a window.

Source: Abdin et al. 2024; transformers' modeling_phi3.py.
"""

from ..entries import gated, linear, norm
from ..keywords import layer_types, rope, windows
from . import llama
from .llama import BUFFERS, COPIES, PREFIX

__all__ = ["BUFFERS", "COPIES", "PREFIX", "config", "entries", "keywords"]


def keywords(c, names):
    k = llama.decoder(c, names)
    every = ["sliding_attention"] * k["n_layer"]
    return k | rope(c, k["head_dim"]) | windows(c, every, c.get("sliding_window"))


def config(k):
    return llama.decoder_config(k) | {"sliding_window": layer_types(k)["sliding_window"]}


def entries(k, prefix):
    block = [
        *linear("attn/qkv", "self_attn.qkv_proj", bias=False),
        *linear("attn/out", "self_attn.o_proj", bias=False),
        *gated("mlp.gate_up_proj"),
        *linear("proj", "mlp.down_proj", bias=False),
        *norm("ln1", "input_layernorm", bias=False),
        *norm("ln2", "post_attention_layernorm", bias=False),
    ]
    return llama.entries(k, prefix, block)
