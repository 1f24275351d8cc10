"""Qwen2: Llama with biases of q, k and v, and windows in layers from one on.

Source: Yang et al. 2024; transformers' modeling_qwen2.py.
"""

from ..keywords import layer_types, rope, windows
from . import llama
from .llama import BUFFERS, COPIES, PREFIX, entries

__all__ = ["BUFFERS", "COPIES", "PREFIX", "config", "entries", "keywords"]


def keywords(c, names, **more):
    k = llama.decoder(c, names, **({"bias": ("qkv",)} | more))
    return k | rope(c, k["head_dim"]) | windows_from(c)


def windows_from(c):
    """Where no kinds of layers are said, those from max_window_layers on have a window."""
    width = c.get("sliding_window") if c.get("use_sliding_window") else None
    last = c["num_hidden_layers"] if width is None else c.get("max_window_layers", 28)
    kinds = ["full_attention" if i < last else "sliding_attention" for i in range(c["num_hidden_layers"])]
    return windows(c, c.get("layer_types") or kinds, width)


def config(k):
    c = llama.decoder_config(k) | layer_types(k)
    return c | {"use_sliding_window": c["sliding_window"] is not None}
