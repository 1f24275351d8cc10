"""A step of decoding: each row of the batch has one query, and rules that are numbers say which keys it sees.

These are next to each other, so that a row is one tile in which nothing is hidden, and no other key is read.

Axes: B batch, H kv heads, G query heads per kv head, k positions, d head size, v the values' head size.
"""

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from ..arithmetic import accumulator, known, switched
from ..schedule import key_range

SOME = 3 * 2**17  # numbers at a time that are converted, to fit the caches


def ranges(q, k, sight, bias, dropout, precision):
    """(first, end) of the keys that each row's query sees, or None if a call is no such step."""
    others = sight.q_segment_ids, sight.mask, bias, dropout
    if q.shape[3] != 1 or any(x is not None for x in others) or switched(q, precision):
        return None
    rules = sight.q_offset, sight.q_lengths, sight.kv_lengths
    numbers = [known(x) if isinstance(x, Tensor) else [x] * q.shape[0] for x in rules]
    if not all(numbers):
        return None

    def seen(offset, n_q, n_k):
        n_q, n_k = 1 if n_q is None else n_q, k.shape[2] if n_k is None else n_k
        return key_range(0, min(n_q, 1), min(n_k, k.shape[2]), sight.causal, sight.window, offset)

    found = [seen(*row) for row in zip(*numbers, strict=True)]
    nothing = any(j0 == j1 for j0, j1 in found)
    return None if nothing and torch.is_grad_enabled() else found  # tiles have derivatives there too: zeros


def attention(q, k, v, ranges, *, scale, softcap=None):
    """out (B, H, G, 1, Dv) and lse (B, H, G, 1), in the accumulator's dtype, for q (B, H, G, 1, D)."""
    q = q[:, :, :, 0].to(accumulator(q.dtype)) * scale
    if min(ranges) == max(ranges):
        out, lse = _read(q, k, v, *ranges[0], softcap)
    else:
        rows = [_read(*(x[b : b + 1] for x in (q, k, v)), *ranges[b], softcap) for b in range(len(ranges))]
        out, lse = map(torch.cat, zip(*rows, strict=True))
    return out[:, :, :, None], lse


def _read(q, k, v, j0, j1, softcap):
    """q (B, H, G, d), scaled, over keys j0 ... j1 - 1."""
    if j0 == j1:
        return q.new_zeros((*q.shape[:3], v.shape[3])), q.new_full((*q.shape[:3], 1), -torch.inf)
    kept = any(map(_differentiated, (q, k, v)))
    scores = [torch.matmul(q, x.mT) for x in _parts(k[:, :, j0:j1], q.dtype, kept)]
    scores = torch.cat(scores, 3) if len(scores) > 1 else scores[0]  # (B, H, G, k)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    top = torch.amax(scores, -1, keepdim=True).detach().clamp(min=torch.finfo(q.dtype).min)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)  # at least 1, or 0 where every score is -inf
    out, j = 0, 0
    for x in _parts(v[:, :, j0:j1], q.dtype, kept):
        out, j = out + torch.matmul(weights[..., j : j + x.shape[2]], x), j + x.shape[2]
    return out / total.clamp(min=1), top + torch.log(total)


def _differentiated(x):
    return (torch.is_grad_enabled() and x.requires_grad) or unpack_dual(x).tangent is not None


def _parts(x, dtype, kept):
    """x (B, H, k, d) in dtype: all of it, or what has to be converted, in parts. kept: by a derivative."""
    if x.dtype == dtype:
        yield x
        return
    B, H, _, d = x.shape
    parts = x.split(max(64, SOME // max(B * H * d, 1)), 2)
    room = None if kept else parts[0].new_empty(parts[0].shape, dtype=dtype)  # new each time is slow
    for part in parts:
        yield part.to(dtype) if kept else room[:, :, : part.shape[2]].copy_(part)
