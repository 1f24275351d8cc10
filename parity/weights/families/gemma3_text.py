"""Gemma 3, its language model: Gemma 2 with q and k normalised, and rotary positions by the kind of layer.

Source: Gemma Team 2025; transformers' modeling_gemma3.py.
"""

from ..keywords import layers, rope, rope_parameters, windows
from . import gemma2
from .gemma2 import BUFFERS, COPIES, PREFIX, entries

__all__ = ["BUFFERS", "COPIES", "PREFIX", "config", "entries", "keywords"]


def keywords(c, names):
    period = c.get("sliding_window_pattern") or c.get("_sliding_window_pattern") or 6
    kinds = c.get("layer_types") or [
        "sliding_attention" if (i + 1) % period else "full_attention" for i in range(c["num_hidden_layers"])
    ]
    old = {
        "full_attention": {"rope_theta": c.get("rope_theta", 1e6)} | (c.get("rope_scaling") or {}),
        "sliding_attention": {"rope_theta": c.get("rope_local_base_freq", 1e4)},
    }
    said = old | (c.get("rope_parameters") or {})
    turns = {kind: rope(dict(c, rope_parameters=said[kind]), c["head_dim"]) for kind in said}
    return gemma2.decoder(c, names) | {"qk_norm": "head"} | windows(c, kinds, c["sliding_window"], **turns)


def config(k):
    c = gemma2.config(k)
    turns = {kind: rope_parameters(of) for kind, of in zip(c["layer_types"], layers(k), strict=True)}
    return c | {"rope_parameters": turns}
