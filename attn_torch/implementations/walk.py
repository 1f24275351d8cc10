"""The tiles of a call one after the other: some heads, then some queries, then some keys.

N = B H of the heads at hand, R = G q of the queries.
"""

from itertools import product
from math import inf, prod

import torch
from torch import Tensor

from .. import visibility
from ..arithmetic import accumulator, take
from ..dropout import Dropout
from ..schedule import key_range
from ..visibility import Sight, visible
from .tiles import Rules, by_row, joined, reach, readable

HALVED = 128  # queries of a tile beyond which a half of them does not read what only the other one sees


class Room(dict):
    """Shape -> memory for a tile's scores, in the accumulator's dtype; the same each time: new is slow."""

    def __init__(self, plan, q):
        self.size, self.like = (q.shape[2] * prod(plan.tiles),), q

    def __missing__(self, shape):
        if shape == self.size:
            self[shape] = self.like.new_empty(shape, dtype=accumulator(self.like.dtype))
        else:  # the middle: each of two threads stays in its own half
            start = (self.size[0] - prod(shape)) // 32 * 16
            self[shape] = self[self.size].narrow(0, start, prod(shape)).view(shape)
        return self[shape]


class Parts(dict):
    """(first, how many) -> that part of some arrays along an axis: to cut them for each tile takes time."""

    def __init__(self, axis, *arrays):
        self.axis, self.arrays = axis, arrays

    def __missing__(self, at):
        self[at] = [x.narrow(self.axis, *at) for x in self.arrays]
        return self[at]


def over_heads(plan, whole, biases, arrays):
    """What of a call belongs to the heads of a tile, as (N, ...) or (N G, ...) but for the biases; for all.

    whole: arrays (B, H, T, d) or (B, H, G, T, d); what is written to their parts is written to them.
    """
    sight, dropout = joined(plan, arrays)
    (B, H), (n_b, n_h) = whole[0].shape[:2], plan.tiles[:2]
    sight = Sight(*map(_numbers, sight))
    if n_h < H or list in map(type, sight):  # so that the heads of a tile are one axis, of one length
        n_b = 1
    for b, h in product(range(0, B, n_b), range(0, H, n_h)):

        def part(x, b=b, h=h):
            if not isinstance(x, Tensor):
                return x[b] if isinstance(x, list) else x
            x = take(x, 0, b, min(n_b, B - b))
            return take(x, 1, h, min(n_h, H - h)) if x.ndim > 3 else x

        heads = min(n_b, B - b), min(n_h, H - h)
        rules = Rules(heads, Sight(*map(part, sight)), dropout and Dropout(*map(part, dropout)))
        yield [part(x).flatten(0, -3) for x in whole], [part(x) for x in biases], rules


def _numbers(x):
    """Lengths and offsets as numbers where they can be read: what they hide is known without looking."""
    is_row = isinstance(x, Tensor) and x.ndim == 1
    return x.tolist() if is_row and readable(x) else x


def over_queries(plan, q, k, bias, rules, known):
    """(first query, how many, [the corners of its tiles and what is hidden there]), for all queries."""
    by_array = (bias is not None and not plan.tame) or any(isinstance(x, Tensor) for x in rules.sight)
    whole = by_array or q.shape[0] > k.shape[0]  # half the queries of several heads are no half of the rows
    for i0 in range(0, q.shape[1], plan.tiles[2]):
        n_q = min(plan.tiles[2], q.shape[1] - i0)
        tiles = None if by_array else known.get((rules.sight, i0))  # numbers are often the same for all heads
        if tiles is None:
            spans = _spans(rules.sight, i0, n_q, k.shape[1], n_q if whole else HALVED)
            corners = [
                (i, n, j, min(plan.tiles[3], j1 - j))
                for i, n, j0, j1 in spans
                for j in range(j0, j1, plan.tiles[3])
            ]
            tiles = [(at, None if by_array else _hidden(rules, at, q, known)) for at in corners]
            if not by_array:
                known[rules.sight, i0] = tiles
        yield i0, n_q, tiles


def _spans(sight, i0, n_q, Tk, most):
    """[(first query, how many, first key, end)], where these queries see something.

    Of more than `most` queries each half gets the keys that only it reaches, and both get the others.
    """
    if n_q <= most:
        return [(i0, n_q, *reach(sight, i0, n_q, Tk))]
    half = n_q // 2
    (a, b), (c, d) = reach(sight, i0, half, Tk), reach(sight, i0 + half, n_q - half, Tk)
    if c == d:
        return [(i0, half, a, b)]
    return [(i0, half, a, min(b, c)), (i0, n_q, c, b), (i0 + half, n_q - half, max(b, c), d)]


def rows_in(corner, i0, n_q, *rows):
    """Of the rows (N, R, d) of n_q queries from i0 on, those of a tile: of all of them, or of a half."""
    i, n = corner[:2]
    return rows if n == n_q else [x.narrow(1, i - i0, n) for x in rows]


def _hidden(rules, corner, q, known):
    """Of a tile whose rules are all numbers, the columns that some query does not see, and which of them.

    As [(first column, True where hidden, the most that a score may be)]: to take the smaller of the two is
    many times as fast, but leaves a NaN.
    """
    (i0, n_q, j0, n_k), sight = corner, rules.sight
    G = q.shape[0] // (rules.heads[0] * rules.heads[1])
    j1 = j0 + n_k
    n = j1 if sight.kv_lengths is None else min(sight.kv_lengths, j1)
    first, last = (
        key_range(i, i + 1, n, sight.causal, sight.window, sight.q_offset) for i in (i0, i0 + n_q - 1)
    )
    a, b = max(last[0], j0), first[1]  # from a to b, every query sees every key
    ended = sight.q_lengths is not None and sight.q_lengths < i0 + n_q
    hidden = []
    for start, stop in [(j0, j1)] if ended or a >= b else [(j0, a), (b, j1)]:
        if start < stop:
            key = visibility.tile(sight, i0, n_q, start, stop - start), n_q, stop - start
            if key not in known:
                rule = by_row(~visible(*key, q), (1, 1, G, n_q)).expand(-1, -1, stop - start)
                known[key] = rule, torch.where(rule, -inf, inf).to(accumulator(q.dtype))
            hidden.append((start - j0, *known[key]))
    return hidden


def put(x, i0, n_q, rows):
    """Write the rows of a tile of queries, (N, R, d), where rows_of reads them."""
    x.narrow(1, i0, n_q).copy_(rows.view(x.shape[0], n_q, x.shape[2]))
