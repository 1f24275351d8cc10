"""The tiles of a call as loops of the program: over some heads, then some queries, then some keys.

N = B H of the heads at hand, R = G q of the queries.
"""

import os
from functools import cache, partial
from math import inf, nan, prod
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..arithmetic import INDEX, accumulator
from ..dropout import Dropout
from ..schedule import key_range
from ..visibility import Sight
from .tiles import Heads, Rules, cut, full, joined, reach, sides

WORKERS = min(4, os.cpu_count() or 1)  # heads that XLA may compute side by side, while all fit the caches
TOGETHER = 3 * 2**18  # scores at most, where a key has several query heads


@cache
def roomy():
    """Whether a core's second cache holds 2 MiB or more; False where the system does not say."""
    try:
        size = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text()
        return int(size.strip().removesuffix("K")) >= 2048
    except (OSError, ValueError):
        return False


def over_heads(plan, f, whole, biases, arrays, shared=()):
    """f of what belongs to the heads of a tile, as (N, ...) or (N G, ...) but for the biases; for all heads.

    whole: q (B, H, G, Tq, d), k (B, H, Tk, d) and others of such shapes. f returns such arrays of its heads,
    which come back for all heads, and arrays like `shared`, which are added up.
    """
    sight, dropout = joined(plan, arrays)
    (B, H), (n_b, n_h) = whole[0].shape[:2], plan.tiles[:2]
    n_b = n_b if n_h == H else 1  # so that the heads of a tile are one after the other
    n = B * H // (n_b * n_h)
    G, Tk = whole[0].shape[2], whole[1].shape[2]
    most = WORKERS if plan.unrolled and Tk <= 1024 else 1
    if G > 1:
        most = max(1, min(most, TOGETHER // (G * plan.tiles[2] * plan.tiles[3])))
    workers = max(w for w in range(1, most + 1) if n % w == 0)
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
            own = [Heads(x, at * (x.shape[0] // n), x.shape[0] // n) for x in whole]
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


def over_queries(plan, f, carry, q, *sizes):
    """f(carry, first query, how many) -> (carry, results (N, R, d)), for all tiles of queries in turn.

    sizes: d of each result. Returns the last carry and the results as (N G, Tq, d).
    """
    n, Tq = plan.tiles[2], q.shape[1]
    if plan.unrolled:
        parts = []
        for i0 in range(0, Tq, n):
            n_q = min(n, Tq - i0)
            carry, results = f(carry, i0, n_q)
            parts.append([x.reshape(q.shape[0], n_q, x.shape[2]) for x in results])
        return carry, [jnp.concatenate(x, 1) for x in zip(*parts, strict=True)]

    def turn(state, i0):
        carry, whole = state
        carry, results = f(carry, i0, n)
        parts = (x.reshape(q.shape[0], n, x.shape[2]) for x in results)
        return (carry, [pasted(x, y, 1, i0) for x, y in zip(whole, parts, strict=True)]), None

    whole = [jnp.zeros((q.shape[0], Tq, d), accumulator(q.dtype)) for d in sizes]
    return lax.scan(turn, (carry, whole), jnp.arange(0, Tq, n, dtype=INDEX))[0]


def over_keys(plan, rules, i0, n_q, k, f, carry, at_once=None):
    """f(corner, rules, carry) over the tiles of keys in reach of n_q queries from i0 on.

    corner: as in tile_of, the last tile may begin before the end of the one before it. rules: none where all
    of the queries see all of the keys: to hide nothing takes up to a fifth of the time. at_once: f where
    one tile holds all keys; of few queries it need not take NaN out of those that none of them reads.
    """
    n, Tk, sight = plan.tiles[3], k.shape[1], rules.sight
    if plan.unrolled:
        f = at_once if plan.few and at_once else f
        i1 = i0 + n_q if sight.q_lengths is None else min(i0 + n_q, sight.q_lengths)
        n_k = Tk if sight.kv_lengths is None else min(Tk, sight.kv_lengths)
        j0, j1 = key_range(i0, i1, n_k, sight.causal, sight.window, sight.q_offset)
        for j in range(j0, j1, n):
            carry = f((i0, n_q, j, min(n, j1 - j), None), rules, carry)
        return carry
    j0, j1 = reach(sight, i0, n_q, Tk)
    if plan.few and at_once:
        at_once = partial(at_once, (i0, n_q, 0, Tk, None), rules)
        in_tiles = partial(over_keys, plan, rules, i0, n_q, k, f)
        return _once((n == Tk) | (3 * (j1 - j0) > Tk), at_once, in_tiles, carry)
    several = isinstance(sight.q_offset, Array) and sight.q_offset.shape[0] > 1
    if n_q + width(sight) <= n and not several:  # one tile holds them all, wherever they begin
        return (at_once or f)((i0, n_q, jnp.minimum(j0, Tk - n), n, None), rules, carry)

    def some(t, carry):
        corner = (t * n, n, None) if Tk % n == 0 else (jnp.minimum(t * n, Tk - n), n, t * n)
        return f((i0, n_q, *corner), rules, carry)

    def whole(t, carry):
        return f((i0, n_q, t * n, n, None), rules._replace(sight=Sight()), carry)

    first, end = j0 // n, -(-j1 // n)
    if sight.mask is not None or sight.q_segment_ids is not None:
        return lax.fori_loop(first, end, some, carry)
    a, b = full(sight, i0, n_q, Tk)
    a, b = jnp.clip(-(-a // n), first, end), jnp.minimum(b // n, end)
    if sides(sight)[0] is not None:
        carry = lax.fori_loop(first, a, some, carry)
    carry = lax.fori_loop(a, b, whole, carry)
    return lax.fori_loop(jnp.maximum(a, b), end, some, carry)


def _once(many, at_once, in_tiles, carry):
    """at_once(carry) if many keys are in reach, for in_tiles takes three times as long for each; or in_tiles.

    The latter also if the result is not finite: what no query reads may hold NaN.
    """

    def nothing(carry):
        return jax.tree.map(lambda x: jnp.full_like(x, nan), carry)

    found = lax.cond(many, at_once, nothing, carry)
    sound = jnp.isfinite(found[1]).all() & jnp.isfinite(found[2]).all()
    return lax.cond(sound, lambda carry, found: found, lambda carry, found: in_tiles(carry), carry, found)


def share(n, most):
    """An even share of n, or nearly: at most `most`, and a multiple of 8 if it is not all."""
    parts = -(-n // most)
    share = -(-n // parts)
    return share if parts == 1 else min(most, -(-share // 8) * 8)


def part(heads, Tk):
    """How many of Tk keys of so many heads the caches hold."""
    return share(Tk, max(256, 3 * 2**11 // max(heads, 1)))


def width(sight):
    """How many keys besides its own a query may see by the window."""
    left, right = sides(sight)
    return inf if left is None or right is None else left + right


def padded(q, bias, sight, dropout, n_q):
    """A call with n_q more queries, which see nothing."""
    if not n_q:
        return q, bias, sight, dropout

    def pad(x, axis, mode="constant"):
        if not isinstance(x, Array):
            return x
        return jnp.pad(x, [(0, n_q * (n > 1 and at == axis)) for at, n in enumerate(x.shape)], mode)

    Tq, n = q.shape[3], sight.q_lengths
    sight = sight._replace(
        q_lengths=Tq if n is None else min(n, Tq) if isinstance(n, int) else jnp.minimum(n, Tq),
        q_segment_ids=pad(sight.q_segment_ids, 1, "edge"),  # no id that would be out of order
        mask=pad(sight.mask, 3),
    )
    dropout = dropout and dropout._replace(mask=pad(dropout.mask, 3))
    return pad(q, 3), pad(bias, 3), sight, dropout


def pasted(x, y, axis, start):
    return y if x.shape == y.shape else lax.dynamic_update_slice_in_dim(x, y, start, axis)


def added(x, y, *corner):
    """x with y added from the corner on, summed along the axes of which x has but one."""
    one = tuple(axis for axis in range(x.ndim) if x.shape[axis] == 1)
    corner = [jnp.asarray(0 if axis in one else start, INDEX) for axis, start in enumerate(corner)]
    y = y.sum(one, keepdims=True)
    return lax.dynamic_update_slice(x, lax.dynamic_slice(x, corner, y.shape) + y, corner)
