"""Qwen3: Qwen2 without those biases, with each head of q and k normalised.

Source: Yang et al. 2025; transformers' modeling_qwen3.py.
"""

from . import qwen2
from .qwen2 import BUFFERS, COPIES, PREFIX, entries

__all__ = ["BUFFERS", "COPIES", "PREFIX", "config", "entries", "keywords"]


def keywords(c, names):
    bias = ("qkv", "out") if c.get("attention_bias") else ()
    return qwen2.keywords(c, names, bias=bias) | {"qk_norm": "head"}


def config(k):
    return qwen2.config(k) | {"attention_bias": "qkv" in k["bias"]}
