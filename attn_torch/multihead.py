"""Attention in several subspaces at once: one projection gives every head its q, k, v, another mixes them.

Axes: T positions, C channels (n_embd), H heads (n_head), D = C / H head size.
"""

import math
from numbers import Integral

import torch
from torch import nn

from .attention import scaled_dot_product_attention
from .mlp import check_channels, linear


def split(key, n):
    """n keys in place of one. A generator advances with every draw, so that it stands for all n."""
    if isinstance(key, int):
        key = torch.Generator().manual_seed(key)
    return (key,) * n


def normal(key, shape):
    """shape, independent, of mean 0 and variance 1, in the framework's default dtype."""
    return torch.randn(shape, generator=key, device=key.device)


def init_attention(key, n_embd):
    """Parameters of attention: w_qkv (C, 3C), b_qkv (3C,), w_out (C, C), b_out (C,), C = n_embd.

    Weights are normal, of standard deviation 1 / sqrt(C); biases are zero; of the framework's default dtype.
    key: a PRNG key; where the framework has none, a seed or a generator, which draw other numbers.
    """
    k1, k2 = split(key, 2)
    w_qkv = normal(k1, (n_embd, 3 * n_embd)) / math.sqrt(n_embd)
    w_out = normal(k2, (n_embd, n_embd)) / math.sqrt(n_embd)
    b_qkv, b_out = torch.zeros_like(w_qkv[0]), torch.zeros_like(w_out[0])
    return {"w_qkv": w_qkv, "b_qkv": b_qkv, "w_out": w_out, "b_out": b_out}


def causal_self_attention(params, x, n_head, *, implementation="auto"):
    """Multi-head causal self-attention.

    params: as init_attention's. The columns of w_qkv are q | k | v, and in each head 0 | head 1 | ...
    x: (..., T, C), in the parameters' dtype. implementation: as in scaled_dot_product_attention.
    Returns (..., T, C).
    Raises ValueError if n_head does not divide C or x has another shape, TypeError if x has another dtype.
    Source: Vaswani et al. 2017, section 3.2.2.
    """
    n_embd = params["w_out"].shape[0]
    check_heads(n_embd, n_head)
    check_channels(x, n_embd)
    qkv = linear(x, params["w_qkv"], params["b_qkv"])  # (..., T, 3C)
    y = attend(qkv, n_head, implementation=implementation)  # (..., T, C)
    return linear(y, params["w_out"], params["b_out"])


def attend(qkv, n_head, *, implementation="auto"):
    """Causal attention of every head, and the heads side by side again. qkv (..., T, 3C) -> (..., T, C)."""
    q, k, v = (split_heads(t, n_head) for t in torch.tensor_split(qkv, 3, -1))  # each (..., H, T, D)
    return merge_heads(scaled_dot_product_attention(q, k, v, causal=True, implementation=implementation))


def split_heads(x, n_head):
    """(..., T, C) -> (..., H, T, D)."""
    return x.reshape(*x.shape[:-1], n_head, x.shape[-1] // n_head).swapaxes(-3, -2)


def merge_heads(x):
    """(..., H, T, D) -> (..., T, C)."""
    x = x.swapaxes(-3, -2)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def check_heads(n_embd, n_head):
    """Raise ValueError unless n_head is an integer that divides n_embd."""
    if not isinstance(n_head, Integral) or n_head < 1 or n_embd % n_head:
        raise ValueError(f"n_head: got {n_head}, wanted a divisor of n_embd = {n_embd}")


class CausalSelfAttention(nn.Module):
    """causal_self_attention as a module. x (..., T, C) -> (..., T, C)."""

    def __init__(self, n_embd, n_head, *, implementation="auto"):
        super().__init__()
        check_heads(n_embd, n_head)
        self.n_embd, self.n_head, self.implementation = n_embd, n_head, implementation
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        check_channels(x, self.n_embd)
        return self.c_proj(attend(self.c_attn(x), self.n_head, implementation=self.implementation))
