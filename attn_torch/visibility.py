"""What a query may read: the one place that decides it, for one tile or for all.

Axes: B batch, H kv heads, G query heads per kv head, q and k positions; of a mask, any axis may be 1.
"""

from functools import reduce
from operator import and_
from typing import NamedTuple

from torch import Tensor

from .arithmetic import iota, take


class Sight(NamedTuple):
    """The rules, all of which must hold. Query i stands at position i + q_offset among the keys."""

    causal: bool = False  # key j <= i + q_offset
    window: tuple | None = (
        None  # (left, right): i + q_offset - left <= j <= i + q_offset + right; None: no limit
    )
    q_offset: int | Tensor = 0  # (B,)
    q_lengths: int | Tensor | None = None  # (B,): query i < q_lengths
    kv_lengths: int | Tensor | None = None  # (B,): key j < kv_lengths
    q_segment_ids: Tensor | None = None  # (B, Tq): equal to
    kv_segment_ids: Tensor | None = None  # (B, Tk)
    mask: Tensor | None = None  # (B, H, G, Tq, Tk) bool, True = attend


def visible(sight, n_q, n_k, like):
    """(B, H, G, n_q, n_k) bool, any axis possibly 1; None if there is no rule. On the device of `like`."""
    i = iota(n_q, like)[None, None, None, :, None]
    j = iota(n_k, like)[None, None, None, None, :]
    at = i + _per_row(sight.q_offset)  # (B, 1, 1, n_q, 1)
    left, right = sight.window or (None, None)
    rules = [
        j <= at if sight.causal else None,
        None if left is None else j >= at - left,
        None if right is None else j <= at + right,
        None if sight.q_lengths is None else i < _per_row(sight.q_lengths),
        None if sight.kv_lengths is None else j < _per_row(sight.kv_lengths),
        None if sight.q_segment_ids is None else _same(sight.q_segment_ids, sight.kv_segment_ids),
        sight.mask,
    ]
    rules = [rule for rule in rules if rule is not None]
    return reduce(and_, rules) if rules else None


def tile(sight, i0, n_q, j0, n_k):
    """The rules among n_q queries from i0 on and n_k keys from j0 on, counted from that corner."""

    def cut(x, axis, start, size):
        return None if x is None else take(x, axis, start, size)

    return Sight(
        causal=sight.causal,
        window=sight.window,
        q_offset=sight.q_offset + i0 - j0,
        q_lengths=None if sight.q_lengths is None else sight.q_lengths - i0,
        kv_lengths=None if sight.kv_lengths is None else sight.kv_lengths - j0,
        q_segment_ids=cut(sight.q_segment_ids, -1, i0, n_q),
        kv_segment_ids=cut(sight.kv_segment_ids, -1, j0, n_k),
        mask=cut(cut(sight.mask, -2, i0, n_q), -1, j0, n_k),
    )


def _per_row(x):
    is_row = isinstance(x, Tensor) and x.ndim
    return x[:, None, None, None, None] if is_row else x  # (B, 1, 1, 1, 1) or one number for all


def _same(q_segment_ids, kv_segment_ids):
    return (
        q_segment_ids[:, None, None, :, None] == kv_segment_ids[:, None, None, None, :]
    )  # (B, 1, 1, n_q, n_k)
