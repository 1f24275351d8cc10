"""What the block is made of besides attention: linear maps, norms that hold their parameters, dropout.

Axes: T positions, C channels, F other channels.
"""

import math
from functools import cache
from pathlib import Path

import torch
from torch import nn

from . import checks
from .arithmetic import accumulator, describe, einsum, switched
from .dropout import Dropout, keep
from .norms import layer_norm, rms_norm


def linear(x, w, b=None):
    """x w + b. x (..., C), w (C, F), b (F,) -> (..., F). float32 is float32 on every device.

    Raises TypeError unless they have one dtype.
    """
    for p in (w,) if b is None else (w, b):
        if x.dtype != p.dtype:
            raise TypeError(f"x: got dtype {describe(x).dtype}, wanted its parameters' {describe(p).dtype}")
    y = _thin(x, w.T) if _few_rows(x, w.T) else einsum("...c,cf->...f", x, w)
    if b is None:
        return y
    # b is added in the accumulator's dtype: in that its gradient is summed, over all positions
    wide = accumulator(y.dtype)
    return (y.to(wide) + torch.broadcast_to(b.to(wide), y.shape)).to(y.dtype)


def _few_rows(x, w):
    """Whether a linear map of x is faster as _thin: on AMD's processors, and of full precision."""
    if torch.compiler.is_compiling() or x.device.type != "cpu" or not _of_amd():
        return False
    few, fits = 0 < x.numel() <= 4 * x.shape[-1], x.shape[-1] == w.shape[1] and w.shape[0] > 0
    return few and fits and accumulator(x.dtype) == x.dtype and not switched(x, None)


@cache
def _of_amd():
    """Whether this is AMD's processor. Measured on Zen 4; on an Intel Xeon _thin takes twice torch's time."""
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def _thin(x, w):
    """x w^T, for x (..., C) of few rows and w (F, C): (..., F).

    As w x^T, in two halves or of two columns at least: what is one product with one vector, torch hands to a
    routine that reads w at a third of the speed there.
    """
    rows, (F, C) = x.reshape(-1, x.shape[-1]), w.shape
    if F % 2 == 0:
        y = torch.bmm(w.unflatten(0, (2, F // 2)), rows.T.expand(2, C, -1))
    else:
        y = torch.mm(w, (rows if rows.shape[0] > 1 else rows.repeat(2, 1)).T)[:, : rows.shape[0]]
    return y.reshape(F, -1).T.reshape(*x.shape[:-1], F)


def check_channels(x, n_embd, name="x"):
    """Raise unless x, an argument of that name, is an array of this framework, (..., T, n_embd)."""
    checks.array(name, describe(x))
    if x.ndim < 2 or x.shape[-1] != n_embd:
        raise ValueError(f"{name}: got shape {tuple(x.shape)}, wanted (..., T, {n_embd})")


def drop(x, p, seed):
    """x with each entry 0 with probability p, and else divided by 1 - p; without a seed x as it is.

    x: (..., T, C). Which entries is a pure function of seed, the leading index, t and c: as for attention
    weights, with t for the query, c for the key, and one head.
    """
    if seed is None or p == 0:
        return x
    checks.seed(describe(seed))
    T, C = x.shape[-2:]
    kept = keep(Dropout(float(p), seed), (math.prod(x.shape[:-2]), 1, 1, T, C), x).reshape(x.shape)
    return torch.where(kept, x / (1 - p), 0.0)


class Linear(nn.Linear):
    """nn.Linear, which says so if x has another dtype than its weight. x (..., C) -> (..., F)."""

    def forward(self, x):
        if x.dtype != self.weight.dtype and not torch.is_autocast_enabled(x.device.type):
            got, wanted = describe(x).dtype, describe(self.weight).dtype
            raise TypeError(f"x: got dtype {got}, wanted its parameters' {wanted}")
        alike = self.bias is None or self.bias.dtype == x.dtype
        if not (alike and _few_rows(x, self.weight)) or torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        y = _thin(x, self.weight)
        return y if self.bias is None else y + self.bias


class LayerNorm(nn.LayerNorm):
    """layer_norm as a module: weight (C,) is the gain, bias (C,) or None the bias. x (..., C) -> (..., C)."""

    def forward(self, x):
        return layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """rms_norm as a module: weight is the gain (C,), so that offset + gain is one. x (..., C) -> (..., C)."""

    def __init__(self, n_embd, eps=1e-6, offset=0.0):
        super().__init__(n_embd, eps)
        self.offset = offset
        nn.init.constant_(self.weight, 1.0 - offset)

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps, offset=self.offset)


def linear_layer(shapes, name):
    """The linear map of shapes' w_name and b_name, without bias or None where these are not there."""
    if f"w_{name}" in shapes:
        n_in, n_out = shapes[f"w_{name}"]
        return Linear(n_in, n_out, bias=f"b_{name}" in shapes)
    return None


def norm_layer(shapes, name, *, norm="layer", norm_offset=0.0, eps=None):
    """The norm of shapes' name, norms.normalise with these keywords; None where it is not there."""
    if name not in shapes:
        return None
    n_embd, given = shapes[name][0][0], {} if eps is None else {"eps": eps}
    if norm == "rms":
        return RMSNorm(n_embd, offset=norm_offset, **given)
    return LayerNorm(n_embd, bias=len(shapes[name]) == 2, **given)
