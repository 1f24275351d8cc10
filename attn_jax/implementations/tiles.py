"""The tiles of a call: which there are, and what belongs to each.

A call is cut into heads, then queries, then keys; a tile is some heads' queries against some of their keys.
Keys that no query of a tile can reach are in no tile of it.

Axes: B batch, H kv heads, G query heads per kv head, q and k positions, d head size; of a tile, N = B H of
its heads and R = G q of its rows.
"""

from math import inf
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from .. import dropout as dropping
from .. import visibility
from ..arithmetic import INDEX, accumulator, iota
from ..dropout import Dropout
from ..schedule import key_range
from ..visibility import Sight, visible


class Plan(NamedTuple):
    """A call without its arrays: a rule that is one is an Ellipsis here."""

    scale: float
    softcap: float | None
    precision: str | None
    tiles: tuple
    sight: Sight
    dropout: Dropout | None
    unrolled: bool = False  # its tiles are written out one after the other
    few: bool = False  # its queries are so few that the time is that of reading keys and values


class Rules(NamedTuple):
    """What the tiles of some heads have in common."""

    heads: tuple  # rows of the batch, kv heads
    sight: Sight
    dropout: Dropout | None


class Heads(NamedTuple):
    """Some heads of x (all heads, T, d), which are cut out with their tiles: both in turn takes longer."""

    x: Array
    first: Array | int
    n: int

    @property
    def shape(self):
        return self.n, *self.x.shape[1:]

    @property
    def dtype(self):
        return self.x.dtype


def split(plan):
    """The plan with ... for each array, and the arrays."""
    rules = plan.sight, plan.dropout or ()
    arrays = [x for rule in rules for x in rule if isinstance(x, Array)]
    marked = [[... if isinstance(x, Array) else x for x in rule] for rule in rules]
    return plan._replace(sight=Sight(*marked[0]), dropout=plan.dropout and Dropout(*marked[1])), arrays


def joined(plan, arrays):
    """sight and dropout with their arrays."""
    left = iter(arrays)
    sight = Sight(*(next(left) if x is ... else x for x in plan.sight))
    return sight, plan.dropout and Dropout(*(next(left) if x is ... else x for x in plan.dropout))


def in_reach(sight, Tq, Tk):
    """(first, how many) of the keys that the rules given as numbers let any query see; at least one."""
    n_q = min(Tq, sight.q_lengths) if isinstance(sight.q_lengths, int) else Tq
    n_k = min(Tk, sight.kv_lengths) if isinstance(sight.kv_lengths, int) else Tk
    if isinstance(sight.q_offset, Array):
        return 0, max(n_k, 1)
    j0, j1 = key_range(0, n_q, n_k, sight.causal, sight.window, sight.q_offset)
    return (j0, j1 - j0) if j0 < j1 else (0, 1)


def reach(sight, i0, n, Tk):
    """(j0, j1) of the keys that queries i0 ... i0 + n - 1 may see, by every rule but the mask."""
    (low, high), (_, n_q), (_, n_k) = map(extremes, (sight.q_offset, sight.q_lengths, sight.kv_lengths))
    left, right = sides(sight)
    j0 = 0 if left is None else jnp.maximum(i0 + low - left, 0)
    j1 = Tk if n_k is None else jnp.minimum(n_k, Tk)
    j1 = j1 if right is None else jnp.minimum(i0 + n + high + right, j1)
    if n_q is not None:
        j1 = jnp.where(i0 < n_q, j1, 0)
    if sight.q_segment_ids is not None:
        ids, keys = lax.dynamic_slice_in_dim(sight.q_segment_ids, i0, n, 1), sight.kv_segment_ids
        near = (keys >= ids.min(-1, keepdims=True)) & (keys <= ids.max(-1, keepdims=True))
        near = near.any(0)
        j0 = jnp.maximum(j0, jnp.argmax(near).astype(INDEX))
        j1 = jnp.where(near.any(), jnp.minimum(j1, Tk - jnp.argmax(near[::-1]).astype(INDEX)), 0)
    return jnp.asarray(j0, INDEX), jnp.asarray(j1, INDEX)


def full(sight, i0, n, Tk):
    """(j0, j1) of the keys that queries i0 ... i0 + n - 1 all see, by all rules but mask and segments.

    j1 <= j0 if there are none.
    """
    (low, high), (n_q, _), (n_k, _) = map(extremes, (sight.q_offset, sight.q_lengths, sight.kv_lengths))
    left, right = sides(sight)
    j0 = 0 if left is None else jnp.maximum(i0 + n - 1 + high - left, 0)
    j1 = Tk if n_k is None else jnp.minimum(n_k, Tk)
    j1 = j1 if right is None else jnp.minimum(i0 + low + right + 1, j1)
    if n_q is not None:
        j1 = jnp.where(i0 + n <= n_q, j1, 0)
    return jnp.asarray(j0, INDEX), jnp.asarray(j1, INDEX)


def sides(sight):
    """How many keys before and after its own a query may see; None if there is no limit."""
    left, right = sight.window or (None, None)
    return left, 0 if sight.causal and (right is None or right > 0) else right


def extremes(x):
    """Of a number or an array, the smallest and the largest; None if there is none."""
    return (x.min(), x.max()) if isinstance(x, Array) else (x, x)


def tile_of(corner, arrays, bias, rules, queries):
    """A tile's keys of each array, its bias, what is hidden in it and which weights dropout keeps.

    corner: i0, n_q, j0, n_k, queries i0 ... i0 + n_q - 1 against keys j0 ... j0 + n_k - 1.
    """
    *corner, first = corner  # of the keys, the first that counts, or None if all do
    _, n_q, j0, n_k = corner
    shape, dtype = (*rules.heads, queries.shape[1] // n_q, n_q, n_k), accumulator(queries.dtype)
    arrays = [cut(x, 1, j0, n_k).astype(dtype) for x in arrays]  # (N, k, d)
    bias = part_of_bias(bias, corner, rules, queries)
    seen = visible(visibility.tile(rules.sight, *corner), n_q, n_k, queries)
    seen = None if seen is None else by_row(seen, shape)
    others = [] if bias is None else [bias != -inf]
    if first is not None:
        others.append((j0 + iota(n_k, queries) >= first)[None, None])
    for rule in others:
        seen = rule if seen is None else seen & rule
    if seen is not None and (bias is not None or any(isinstance(x, Array) for x in rules.sight)):
        read = seen.any(1)[..., None]  # (N, k, 1): what no query reads may hold NaN
        arrays = [jnp.where(read, x, 0.0) for x in arrays]
    kept = None
    if rules.dropout is not None:
        kept = by_row(dropping.keep(dropping.tile(rules.dropout, *corner), shape, queries), shape)
    return arrays, bias, None if seen is None else ~seen, kept


def part_of_bias(bias, corner, rules, queries):
    """A tile's part of a bias: (N, R, k), any axis possibly 1."""
    if bias is None:
        return None
    i0, n_q, j0, n_k, *_ = corner
    for axis, start, size in (3, i0, n_q), (4, j0, n_k):
        bias = bias if bias.shape[axis] == 1 else cut(bias, axis, start, size)
    return by_row(bias.astype(accumulator(queries.dtype)), (*rules.heads, queries.shape[1] // n_q, n_q))


def by_row(x, shape):
    """(B, H, G, q, k), any axis possibly 1, as (N, R, k), any axis possibly 1."""
    B, H, G, n_q = shape[:4]
    heads = (1, 1) if x.shape[0] == x.shape[1] == 1 else (B, H)
    rows = (1, 1) if x.shape[2] == x.shape[3] == 1 else (G, n_q)
    x = jnp.broadcast_to(x, (*heads, *rows, x.shape[4]))
    return x.reshape(heads[0] * heads[1], rows[0] * rows[1], x.shape[4])


def rows_of(x, i0, n_q, heads):
    """Of (N G, Tq, d) the queries from i0 on, as (N, R, d). heads: rows of the batch, kv heads."""
    N = heads[0] * heads[1]
    return cut(x, 1, i0, n_q).reshape(N, x.shape[0] // N * n_q, x.shape[2])


def seeing(total, *arrays):
    """1 / total, and arrays, with zeros for the queries that see nothing."""
    sees = total != 0
    return [jnp.where(sees, x, 0.0) for x in (1 / total, *arrays)]


def cut(x, axis, start, size):
    """x[start : start + size] along axis.

    Half types stay apart from what follows: XLA would convert all of them, before the loop, into new memory.
    """
    starts, sizes = [0] * len(x.shape), list(x.shape)
    starts[axis], sizes[axis] = start, size
    if isinstance(x, Heads):
        x, starts[0] = x.x, x.first
    if x.shape == tuple(sizes):
        return x
    starts = [jnp.asarray(i, INDEX) for i in starts]
    if x.dtype.itemsize != 2:
        return lax.dynamic_slice(x, starts, sizes)
    x, *starts = lax.optimization_barrier((x, *starts))
    bits = lax.bitcast_convert_type(x, jnp.uint16)
    return lax.bitcast_convert_type(lax.dynamic_slice(bits, starts, sizes), x.dtype)
