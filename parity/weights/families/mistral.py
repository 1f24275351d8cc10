"""Mistral: Llama with a window. Source: Jiang et al. 2023; transformers' modeling_mistral.py."""

from ..keywords import layer_types, rope, windows
from . import llama
from .llama import BUFFERS, COPIES, PREFIX, entries

__all__ = ["BUFFERS", "COPIES", "PREFIX", "config", "entries", "keywords"]


def keywords(c, names):
    k = llama.decoder(c, names)
    every = ["sliding_attention"] * k["n_layer"]
    return k | rope(c, k["head_dim"]) | windows(c, every, c.get("sliding_window"))


def config(k):
    return llama.decoder_config(k) | {"sliding_window": layer_types(k)["sliding_window"]}
