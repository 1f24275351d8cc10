"""What the block computes at each position alone: activations, and two linear maps with one between them.

Activations compute in float32 at least (float64 for float64) and round once, to their input's dtype.
Axes: T positions, C channels (n_embd).
"""

import math

import torch
from torch import erfc, nn, sigmoid

from .arithmetic import accumulator, describe, einsum


def gelu(x):
    """The exact GELU, x Phi(x), Phi the distribution function of the standard normal. Any shape.

    2 Phi(x) = erfc(-x / sqrt(2)) keeps its relative accuracy where x < 0 and 1 + erf(x / sqrt(2)) cancels.
    Source: Hendrycks & Gimpel 2016, section 2.
    """
    z = x.to(accumulator(x.dtype))
    return (0.5 * z * erfc(z * -math.sqrt(0.5))).to(x.dtype)


def gelu_tanh(x):
    """x (1 + tanh(u)) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3): up to 5e-4 away from gelu. Any shape.

    (1 + tanh(u)) / 2 = sigmoid(2 u), which does not cancel.
    Source: Hendrycks & Gimpel 2016, section 2.
    """
    z = x.to(accumulator(x.dtype))
    return (z * sigmoid(math.sqrt(8 / math.pi) * (z + 0.044715 * z * z * z))).to(x.dtype)


def relu(x):
    """max(x, 0), of slope 0 at 0. Any shape. Source: Nair & Hinton 2010."""
    return torch.relu(x)


def silu(x):
    """x sigmoid(x). Any shape. Source: Hendrycks & Gimpel 2016, section 4."""
    z = x.to(accumulator(x.dtype))
    return (z * sigmoid(z)).to(x.dtype)


def linear(x, w, b):
    """x w + b. x (..., C), w (C, F), b (F,) -> (..., F). float32 is float32 on every device.

    Raises TypeError unless the three have one dtype.
    """
    for p in (w, b):
        if x.dtype != p.dtype:
            raise TypeError(f"x: got dtype {describe(x).dtype}, wanted its parameters' {describe(p).dtype}")
    y = einsum("...c,cf->...f", x, w)
    return y + torch.broadcast_to(b, y.shape)


def check_channels(x, n_embd):
    """Raise ValueError unless x is (..., T, n_embd)."""
    if x.ndim < 2 or x.shape[-1] != n_embd:
        raise ValueError(f"x: got shape {tuple(x.shape)}, wanted (..., T, {n_embd})")


def mlp(params, x):
    """gelu(x w_fc + b_fc) w_proj + b_proj, at each position alone.

    params: w_fc (C, 4C), b_fc (4C,), w_proj (4C, C), b_proj (C,). Other keys are not read: a block's will do.
    x: (..., T, C), in the parameters' dtype. Returns (..., T, C).
    Raises ValueError if x has another shape, TypeError if another dtype.
    Source: Vaswani et al. 2017, section 3.3, with GELU for ReLU.
    """
    check_channels(x, params["w_fc"].shape[0])
    h = gelu(linear(x, params["w_fc"], params["b_fc"]))  # (..., T, 4C)
    return linear(h, params["w_proj"], params["b_proj"])


class MLP(nn.Module):
    """mlp as a module. x (..., T, C) -> (..., T, C)."""

    def __init__(self, n_embd):
        super().__init__()
        self.n_embd = n_embd
        self.c_fc = nn.Linear(n_embd, 4 * n_embd)  # in float32 as precise as torch's global switches say
        self.c_proj = nn.Linear(4 * n_embd, n_embd)

    def forward(self, x):
        check_channels(x, self.n_embd)
        return self.c_proj(gelu(self.c_fc(x)))
