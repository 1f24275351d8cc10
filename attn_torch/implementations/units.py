"""Scores in units of log 2, because exp2 is the faster exponential.

Times log2(e), the largest numbers of a dtype would be infinite: those beyond a half of it come at half their
distance. They are so far apart that the weights are the same, 0 or 1.
"""

from math import inf, log

import torch

LOG2E = 1 / log(2)


def to_log2(x):
    """A score or a bias, any shape, in units of log 2."""
    half = torch.finfo(x.dtype).max / 2
    near = torch.clip(x, -half, half)
    return near * LOG2E + (x - near) * 0.5


def to_log(x):
    """A score in units of log 2 as it was."""
    most = torch.finfo(x.dtype).max
    near = torch.clip(x, -most / 2 * LOG2E, most / 2 * LOG2E)
    return torch.where(torch.isinf(x), x, torch.clip(near / LOG2E + (x - near) * 2, -most, most))


def log_sum(top, total):
    """The natural logarithm of total * 2**top, (B, H, G, Tq, 1) both, without the last axis."""
    nothing = total == 0
    return torch.where(nothing, -inf, to_log(top) + torch.log(torch.where(nothing, 1.0, total)))[..., 0]
