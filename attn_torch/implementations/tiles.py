"""The tiles of a call: which there are, and what belongs to each.

A call is cut into heads, then queries, then keys; a tile is some heads' queries against some of their keys.
Keys that no query of a tile can reach are in no tile of it.

Axes: B batch, H kv heads, G query heads per kv head, q and k positions, d head size; of a tile, N = B H of
its heads and R = G q of its rows.
"""

from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from .. import dropout as dropping
from .. import visibility
from ..arithmetic import take
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
    small: bool = False  # weights may need no largest score taken off; never on a GPU: to ask is to wait
    tame: bool = False  # the bias hides nothing
    room: tuple = (None, None)  # for a tile's scores, twice


class Rules(NamedTuple):
    """What the tiles of some heads have in common."""

    heads: tuple  # rows of the batch, kv heads
    sight: Sight
    dropout: Dropout | None


def split(plan):
    """The plan with ... for each array, and the arrays."""
    rules = plan.sight, plan.dropout or ()
    arrays = [x for rule in rules for x in rule if isinstance(x, Tensor)]
    marked = [[... if isinstance(x, Tensor) else x for x in rule] for rule in rules]
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
    if isinstance(sight.q_offset, Tensor):
        return 0, max(n_k, 1)
    j0, j1 = key_range(0, n_q, n_k, sight.causal, sight.window, sight.q_offset)
    return (j0, j1 - j0) if j0 < j1 else (0, 1)


def reach(sight, i0, n, Tk):
    """(j0, j1) of the keys that queries i0 ... i0 + n - 1 may see, by every rule but the mask."""
    (low, high), (_, n_q), (_, n_k) = map(extremes, (sight.q_offset, sight.q_lengths, sight.kv_lengths))
    i1 = i0 + n if n_q is None else min(i0 + n, n_q)
    n_k = Tk if n_k is None else min(Tk, n_k)
    if i0 >= i1:
        return 0, 0
    j0, j1 = 0, n_k
    if low is not None:
        j0 = key_range(i0, i1, n_k, sight.causal, sight.window, low)[0]
        j1 = key_range(i0, i1, n_k, sight.causal, sight.window, high)[1]
    if sight.q_segment_ids is not None and j0 < j1 and readable(sight.q_segment_ids):
        ids, keys = sight.q_segment_ids[:, i0:i1], sight.kv_segment_ids[:, j0:j1]
        near = (keys >= ids.amin(-1, keepdim=True)) & (keys <= ids.amax(-1, keepdim=True))
        near = near.any(0).nonzero().flatten().tolist() or [0, -1]
        j0, j1 = j0 + near[0], j0 + near[-1] + 1
    return j0, j1


def extremes(x):
    """Of a number or an array, the smallest and the largest; None if there is none."""
    if not isinstance(x, Tensor):
        return x, x
    return (int(x.min()), int(x.max())) if readable(x) else (None, None)  # none to be read


def readable(x):
    """Whether the values of an array are there, or only its shape."""
    return not torch.compiler.is_compiling() and x.device.type != "meta"


def tile_of(corner, arrays, bias, rules, queries, hidden=None, small=False):
    """A tile's keys of each array, its bias, what is hidden in it and which weights dropout keeps.

    corner: i0, n_q, j0, n_k, queries i0 ... i0 + n_q - 1 against keys j0 ... j0 + n_k - 1.
    """
    _, n_q, j0, n_k = corner
    shape = *rules.heads, queries.shape[1] // n_q, n_q, n_k
    arrays = arrays[j0, n_k]  # (N, k, d)
    bias = part_of_bias(bias, corner, rules, queries)
    if hidden is None:
        seen = visible(visibility.tile(rules.sight, *corner), n_q, n_k, queries)
        seen = None if seen is None else by_row(seen, shape)
        if bias is not None:
            seen = bias != -inf if seen is None else seen & (bias != -inf)
        seen, most = seen.expand(*seen.shape[:2], n_k), None
        if small:  # no NaN or infinity among keys and values does harm
            most = torch.where(seen, inf, -inf).to(queries.dtype)
        else:
            read = seen.any(1)[..., None]  # (N, k, 1): what no query reads may hold NaN
            arrays = [torch.where(read, x, 0.0) for x in arrays]
        hidden = [(0, ~seen, most)]
    kept = None
    if rules.dropout is not None:
        kept = by_row(dropping.keep(dropping.tile(rules.dropout, *corner), shape, queries), shape)
    return arrays, bias, hidden, kept


def part_of_bias(bias, corner, rules, queries):
    """A tile's part of a bias: (N, R, k), any axis possibly 1."""
    if bias is None:
        return None
    i0, n_q, j0, n_k = corner
    part = take(take(bias, 3, i0, n_q), 4, j0, n_k).to(queries.dtype)
    return by_row(part, (*rules.heads, queries.shape[1] // n_q, n_q))


def by_row(x, shape):
    """(B, H, G, q, k), any axis possibly 1, as (N, R, k), any axis possibly 1."""
    B, H, G, n_q = shape[:4]
    heads = (1, 1) if x.shape[0] == x.shape[1] == 1 else (B, H)
    rows = (1, 1) if x.shape[2] == x.shape[3] == 1 else (G, n_q)
    return x.expand(*heads, *rows, -1).flatten(0, 1).flatten(1, 2)


def rows_of(x, i0, n_q, heads):
    """Of (N G, Tq, d) the queries from i0 on, as (N, R, d). heads: rows of the batch, kv heads."""
    N = heads[0] * heads[1]
    return x.narrow(1, i0, n_q).reshape(N, x.shape[0] // N * n_q, x.shape[2])


def seeing(total, *arrays):
    """1 / total, and arrays, with zeros for the queries that see nothing."""
    sees = total != 0
    if readable(total) and bool(sees.all()):
        return 1 / total, *arrays
    return [torch.where(sees, x, 0.0) for x in (1 / total, *arrays)]
