"""The tiles of a call as loops of the program: over some heads, then some queries, then some keys.

N = B H of the heads at hand, R = G q of the queries.
"""

import os
from math import inf, prod

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..arithmetic import INDEX
from ..dropout import Dropout
from ..schedule import key_range
from ..visibility import Sight
from .tiles import Rules, cut, joined, reach

WORKERS = min(4, os.cpu_count() or 1)  # heads whose loops XLA may run side by side


def over_heads(plan, f, whole, biases, arrays, shared=()):
    """f of what belongs to the heads of a tile, as (N, ...) or (N G, ...) but for the biases; for all heads.

    whole: arrays (B, H, T, d) or (B, H, G, T, d). f returns such arrays of its heads, which come back for all
    heads, and arrays like `shared`, which are added up.
    """
    sight, dropout = joined(plan, arrays)
    (B, H), (n_b, n_h) = whole[0].shape[:2], plan.tiles[:2]
    n_b = n_b if n_h == H else 1  # so that the heads of a tile are one after the other
    n = B * H // (n_b * n_h)
    workers = max(w for w in range(1, WORKERS + 1) if n % w == 0)
    whole = [x.reshape(prod(x.shape[:-2]), *x.shape[-2:]) for x in whole]  # an axis of size 1 would be copied

    def some(sums, first):
        results = []
        for at in (first + w for w in range(workers)):  # at the same time, for all that XLA knows
            b, h = at // (H // n_h) * n_b, at % (H // n_h) * n_h

            def part(x, b=b, h=h):
                if not isinstance(x, Array):
                    return x
                x = cut(x, 0, b, n_b) if x.shape[0] > 1 else x
                return cut(x, 1, h, n_h) if x.ndim > 3 and x.shape[1] > 1 else x

            rules = Rules((n_b, n_h), Sight(*map(part, sight)), dropout and Dropout(*map(part, dropout)))
            own = [cut(x, 0, at * (x.shape[0] // n), x.shape[0] // n) for x in whole]
            result = f(own, [part(x) for x in biases], rules)
            own, common = result[: len(result) - len(sums)], result[len(result) - len(sums) :]
            sums = [added(x, y, b, h, 0, 0, 0) for x, y in zip(sums, common, strict=True)]
            results.append(own)
        return sums, jax.tree.map(lambda *x: jnp.concatenate(x), *results)

    if n == 1:
        sums, results = some(list(shared), 0)
        return [*results, *sums]
    sums, results = lax.scan(some, list(shared), jnp.arange(0, n, workers, dtype=INDEX))
    return [*(x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]) for x in results), *sums]


def over_queries(plan, f, carry, q):
    """f(carry, first query, how many) -> (carry, results (N, R, d)), for all tiles of queries in turn.

    Returns the last carry and the results as (N G, Tq, d).
    """
    n, Tq = plan.tiles[2], q.shape[1]
    if plan.unrolled:
        parts = []
        for i0 in range(0, Tq, n):
            n_q = min(n, Tq - i0)
            carry, results = f(carry, i0, n_q)
            parts.append([x.reshape(q.shape[0], n_q, x.shape[2]) for x in results])
        return carry, [jnp.concatenate(x, 1) for x in zip(*parts, strict=True)]
    carry, results = lax.scan(lambda carry, i0: f(carry, i0, n), carry, jnp.arange(0, Tq, n, dtype=INDEX))
    return carry, [together(x, n) for x in results]


def over_keys(plan, sight, i0, n_q, k, f, carry):
    """f(corner, carry) over the tiles of keys in reach of n_q queries from i0 on."""
    n, Tk = plan.tiles[3], k.shape[1]
    if plan.unrolled:
        i1 = i0 + n_q if sight.q_lengths is None else min(i0 + n_q, sight.q_lengths)
        n_k = Tk if sight.kv_lengths is None else min(Tk, sight.kv_lengths)
        j0, j1 = key_range(i0, i1, n_k, sight.causal, sight.window, sight.q_offset)
        for j in range(j0, j1, n):
            carry = f((i0, n_q, j, min(n, j1 - j)), carry)
        return carry
    j0, j1 = reach(sight, i0, n_q, Tk)
    if n_q + width(sight) <= n:  # one tile holds them all, wherever they begin
        return f((i0, n_q, jnp.minimum(j0, Tk - n), n), carry)
    return lax.fori_loop(j0 // n, -(-j1 // n), lambda t, carry: f((i0, n_q, t * n, n), carry), carry)


def width(sight):
    """How many keys besides its own a query may see by the window."""
    left, right = sight.window or (None, None)
    right = 0 if sight.causal and (right is None or right > 0) else right
    return inf if left is None or right is None else left + right


def padded(q, k, v, bias, sight, dropout, n_q, n_k):
    """A call with n_q more queries, which see nothing, and n_k more keys, which nothing sees."""
    if not n_q and not n_k:
        return q, k, v, bias, sight, dropout
    Tq, Tk = q.shape[3], k.shape[2]

    def pad(x, ends, mode="constant"):
        if not isinstance(x, Array):
            return x
        return jnp.pad(x, [(0, ends.get(axis, 0) * (n > 1)) for axis, n in enumerate(x.shape)], mode)

    def length(x, n, more):
        return x if not more else n if x is None else min(x, n) if isinstance(x, int) else jnp.minimum(x, n)

    sight = sight._replace(
        q_lengths=length(sight.q_lengths, Tq, n_q),
        kv_lengths=length(sight.kv_lengths, Tk, n_k),
        q_segment_ids=pad(sight.q_segment_ids, {1: n_q}, "edge"),  # no id that would be out of order
        kv_segment_ids=pad(sight.kv_segment_ids, {1: n_k}, "edge"),
        mask=pad(sight.mask, {3: n_q, 4: n_k}),
    )
    dropout = dropout and dropout._replace(mask=pad(dropout.mask, {3: n_q, 4: n_k}))
    q, k, v, bias = pad(q, {3: n_q}), pad(k, {2: n_k}), pad(v, {2: n_k}), pad(bias, {3: n_q, 4: n_k})
    return q, k, v, bias, sight, dropout


def together(x, n_q):
    """(tiles, N, R, d), the results of tiles of n_q queries, as (N G, Tq, d)."""
    tiles, N, R, d = x.shape
    return jnp.moveaxis(x.reshape(tiles, N * R // n_q, n_q, d), 0, 1).reshape(N * R // n_q, tiles * n_q, d)


def pasted(x, y, axis, start):
    return y if x.shape == y.shape else lax.dynamic_update_slice_in_dim(x, y, start, axis)


def added(x, y, *corner):
    """x with y added from the corner on, summed along the axes of which x has but one."""
    one = tuple(axis for axis in range(x.ndim) if x.shape[axis] == 1)
    corner = [jnp.asarray(0 if axis in one else start, INDEX) for axis, start in enumerate(corner)]
    y = y.sum(one, keepdims=True)
    return lax.dynamic_update_slice(x, lax.dynamic_slice(x, corner, y.shape) + y, corner)
