"""Attention in tiles of queries against keys: no array of size (Tq, Tk) ever exists.

A tile of scores is made, used and forgotten. Forward, each query carries its largest score so far and the
sums that belong to it; backward, the tile is made again from q, k and these. They stay two numbers: in their
one, lse, a large score would leave the sum no bits. Keys out of the reach of a tile's queries are not
touched.

First derivatives are written out, in tiles: `backward`, and for forward mode `tangent`. Those of higher order
are the derivatives of `dense`, which is one tile of everything, and hold (Tq, Tk).

Axes: B batch, H kv heads, G query heads per kv head, q and k positions, d head size, v the values' head size;
of a tile, n = B H of its heads and r = G q of its rows.
Source: Milakov & Gimelshein 2018 (online softmax); Dao 2023, FlashAttention-2, algorithms 1 and 2.
"""

from functools import partial
from math import gcd, inf, log2

import jax
import jax.numpy as jnp
from jax import Array
from jax.nn import log_sigmoid

from .. import dropout as dropping
from .. import visibility
from ..arithmetic import accumulator, einsum, iota, stop_gradient, take
from ..visibility import visible
from .linear import Linear, linear
from .loops import added, over_heads, over_keys, over_queries, padded, part, pasted, roomy, share, width
from .reads import FEW, as_read, exact, largest, scored, weighted
from .tiles import Plan, cut, in_reach, joined, part_of_bias, rows_of, seeing, sides, split, tile_of
from .units import LOG2E, log_sum, to_log2

WRITTEN_OUT = 8  # tiles of queries, or of keys, at most that are not in a loop
ROWS = 4096  # of a kv head, beyond which its tiles are in loops


def cannot(wanted, q, k, v, sight, **options):
    """Why no tiles can give a call's results, or None. wanted: "lse", "weights", both or none."""
    return "never holds the weights" if "weights" in wanted else None


def attention(
    q, k, v, sight, *, scale, softcap=None, bias=None, sinks=None, dropout=None, precision=None, tiles=None
):
    """softmax(cap(q k^T * scale) + bias) v over the keys that each query sees.

    q (B, H, G, Tq, D); k (B, H, Tk, D); v (B, H, Tk, Dv); bias (B, H, G, Tq, Tk), any axis possibly 1; sinks
    (H, G). tiles: another choice than that of tile_sizes.
    Returns out (B, H, G, Tq, Dv) in q's dtype and lse (B, H, G, Tq) in the accumulator's. A query that sees
    nothing: out 0, lse -inf, or its sink.
    """
    B, H, G, Tq, _ = q.shape
    j0, Tk = in_reach(sight, Tq, k.shape[-2])
    k, v, bias = take(k, -2, j0, Tk), take(v, -2, j0, Tk), None if bias is None else take(bias, -1, j0, Tk)
    sight = visibility.tile(sight, 0, Tq, j0, Tk)
    if dropout is not None:
        dropout = dropping.tile(dropout, 0, Tq, j0, Tk)
        seed = dropout.seed.reshape(1, 1, 1, 1, 1) if isinstance(dropout.seed, Array) else dropout.seed
        dropout = dropout._replace(seed=seed, stream=iota(B * H * G, q).reshape(B, H, G, 1, 1))
    fixed, plain = _fixed(sight), exact(q.dtype) or q.dtype == accumulator(q.dtype)
    n_b, n_h, n_q, n_k = tiles or tile_sizes(B, H, G, Tq, Tk, sight, plain)
    few = plain and G * Tq <= FEW and n_k >= Tk
    fixed = fixed and not (few and (bias is not None or sight.mask is not None))
    n_k = n_k if fixed or not few else part(B * H, Tk)
    tiles = gcd(n_b, B), gcd(n_h, H), min(n_q, max(Tq, 1)), min(n_k, Tk)
    short = _short(G, Tq) and Tq <= WRITTEN_OUT * tiles[2] and Tk <= WRITTEN_OUT * tiles[3]
    unrolled = fixed and short
    q, bias, *rules = padded(q, bias, sight, dropout, 0 if unrolled else -Tq % tiles[2])
    plan, arrays = split(Plan(scale, softcap, precision, tiles, *rules, unrolled, few))
    function = _attend if B * H * G * Tq else dense  # an empty axis has no tiles
    out, top, total = (x[:, :, :, :Tq] for x in function(plan, q, k, v, bias, *arrays))
    lse = log_sum(top, total)
    if sinks is not None:
        out, lse = with_sinks(out, lse, sinks)
    return out.astype(q.dtype), lse


def tile_sizes(B, H, G, Tq, Tk, sight, plain):
    """(rows of the batch, kv heads, queries, keys) of a tile.

    plain: whether k and v are read as they are, and not converted.
    """
    # Measured on two Zen 4 cores. A call of 2**18 scores is one tile; one of few queries too, unless k and v
    # have to be converted: then what the caches hold. Else one head, for XLA spreads a large product over
    # the cores, but not the heads of one. Up to 4096 rows, eight tiles of them, written out, against 2**18
    # scores' worth of keys. Beyond that, loops: their turns cost more, but more tiles compile for longer. Of
    # several query heads 1024 or 1536 rows against 256 keys, for between them XLA's products are slower.
    # Where a core has 2 MiB of cache, larger tiles are up to a third faster, unless the diagonal cuts them,
    # and those of up to 1024 queries are written out: measured on two cores of an Intel Xeon.
    if B * H * G * Tq == 0:
        return 1, 1, 1, Tk
    if G * Tq <= FEW:
        return B, H, Tq, Tk if plain else part(B * H, Tk)
    if B * H * G * Tq * Tk <= 2**18:
        return B, H, Tq, Tk
    n_q, reach = share(Tq, max(32, 256 // G)), width(sight)
    if n_q + reach <= 1024 and Tq > 8 * n_q:  # all keys in reach; several heads, for their products are small
        n_k = min(Tk, -(-(n_q + reach) // 64) * 64)  # XLA is slow at 511
        return 1, _heads(H, G * n_q * n_k), n_q, n_k
    short = _fixed(sight) and _short(G, Tq)
    if roomy() and (not short or sides(sight)[1] is None):
        return 1, *_large(H, G, Tq, Tk, sight)
    if short:
        n_q = max(128 // G, -(-Tq // (8 * WRITTEN_OUT)) * 8)
        return 1, 1, n_q, max(256, (3 if roomy() else 1) * 2**18 // (G * n_q))
    n_q = min(512, 2 ** int(log2(max(1, 1536 // G))))
    return 1, 1, share(Tq, max(8, n_q)), share(Tk, 512 if G <= 2 else 256)


def _fixed(sight):
    """Whether all rules but the mask are numbers."""
    return not any(isinstance(x, Array) for x in sight[2:7])


def _short(G, Tq):
    """Whether the tiles of so many queries may be written out."""
    return G * Tq <= ROWS or (roomy() and Tq <= 1024)


def _large(H, G, Tq, Tk, sight):
    """(kv heads, queries, keys) of a tile: fewer where segments, lengths or the diagonal cut them."""
    rows = 4096 // G
    if sight.q_segment_ids is None and sight.kv_lengths is None:
        n = 1024 if G <= 2 else 512
        return 1, share(Tq, max(8, min(n, rows))), share(Tk, n)
    if sight.q_segment_ids is None and sides(sight)[1] is None:
        n_q, n_k = share(Tq, max(8, min(2048, rows))), share(Tk, min(512, max(256, Tk // 2)))
        return _heads(H, G * n_q * n_k), n_q, n_k
    return 1, share(Tq, max(8, min(512, rows))), share(Tk, 512)


def _heads(H, scores):
    """The most of H heads, in equal turns, that a tile holds if each has that many scores."""
    return max(n for n in range(1, H + 1) if H % n == 0 and (n == 1 or n * scores <= 2**21))


def _in_pairs(plan):
    """The plan for derivatives: of tiles that are written out two in one, which compile in half the time."""
    n_b, n_h, n_q, n_k = plan.tiles
    return plan._replace(tiles=(n_b, n_h, 2 * n_q, n_k)) if plan.unrolled else plan


def with_sinks(out, lse, sinks):
    """Give each softmax one more logit, which has no value: out shrinks and lse grows."""
    sinks = sinks.astype(lse.dtype)[None, :, :, None]
    sees = lse > -inf
    keys = jnp.where(sees, lse, 0.0)
    part = jnp.exp(log_sigmoid(keys - sinks))  # sigmoid's own derivative takes a faint sink's weight off one
    out = jnp.where(sees[..., None], out * part[..., None], 0.0)
    return out, jnp.where(sees, jnp.logaddexp(keys, sinks), sinks)


def forward_tile(plan, carry, q, k, v, bias, hidden, kept):
    """Add a tile's keys to (largest score, sum of weights, sum of weighted values) of its queries."""
    scores, _ = _scores(plan, q, k, bias, hidden)
    top = largest(scores) if carry is None else jnp.maximum(carry[0], jnp.max(scores, -1, keepdims=True))
    weights = jnp.exp2(scores - top)
    total = weights.sum(-1, keepdims=True)
    weights = _dropped(plan, weights, kept)
    if plan.few:
        values = weighted(weights, v, plan.precision)
    else:
        values = einsum("nrk,nkv->nrv", weights, v, plan.precision)
    if carry is None:
        return top, total, values
    shrink = jnp.exp2(carry[0] - top)
    return top, total + carry[1] * shrink, values + carry[2] * shrink


def backward_tile(plan, sums, q, k, v, bias, hidden, kept, top, dout, delta):
    """Add a tile to the sums for dq, and dk and dv transposed. Also the cotangent of its biased scores."""
    scores, slope = _scores(plan, q, k, bias, hidden)
    weights = jnp.exp2(scores - top)
    dv = sums[2] + einsum("nvr,nrk->nvk", dout.mT, _dropped(plan, weights, kept), plan.precision)
    dweights = _dropped(plan, einsum("nrv,nkv->nrk", dout, v, plan.precision), kept)
    dbias = (dweights - delta) * weights
    dscores = dbias if slope is None else dbias * slope
    dq = sums[0] + einsum("nrk,nkd->nrd", dscores, k, plan.precision)
    dk = sums[1] + einsum("ndr,nrk->ndk", q.mT, dscores, plan.precision)
    return (dq, dk, dv), dbias


def tangent_tile(plan, sums, q, k, v, bias, hidden, kept, top, dq, dk, dv, dbias):
    """Add a tile to the tangents of the sums of weighted values and of weights, both relative to top."""
    scores, slope = _scores(plan, q, k, bias, hidden)
    weights = jnp.exp2(scores - top)
    dscores = einsum("nrd,nkd->nrk", dq, k, plan.precision)
    dscores = dscores + einsum("nrd,nkd->nrk", q, dk, plan.precision)
    dscores = dscores * _unit(plan) if slope is None else dscores * slope * _unit(plan)
    dweights = (dscores if dbias is None else dscores + dbias) * weights
    dout = sums[0] + einsum("nrk,nkv->nrv", _dropped(plan, dweights, kept), v, plan.precision)
    dout = dout + einsum("nrk,nkv->nrv", _dropped(plan, weights, kept), dv, plan.precision)
    return dout, sums[1] + dweights.sum(-1, keepdims=True)


def _scores(plan, q, k, bias, hidden):
    """The scores in units of log 2, and the derivative of the cap. q carries _factor, unless it is exact."""
    slope = None
    if exact(q.dtype):
        scores = scored(q, k) * _factor(plan)
    else:
        scores = einsum("nrd,nkd->nrk", q, k, plan.precision)
    if plan.softcap is not None:
        capped = jnp.tanh(scores)
        scores, slope = capped * (plan.softcap * LOG2E), 1 - capped * capped
    if bias is not None:
        scores = scores + to_log2(bias)
    if hidden is not None:
        scores = jnp.where(hidden, -inf, scores)
    return scores, slope


def _unit(plan):
    """What the product of q and k, as a tile computes it, has to be multiplied by to be q k^T * scale."""
    return 1 / LOG2E if plan.softcap is None else plan.softcap


def _factor(plan):
    return plan.scale / _unit(plan)


def _dropped(plan, weights, kept):
    return weights if kept is None else jnp.where(kept, weights / (1 - plan.dropout.p), 0.0)


def dense(plan, q, k, v, bias, *arrays):
    """What attend gives, in one tile and in operations that have all derivatives."""
    dtype = accumulator(q.dtype)
    sight, dropout = joined(plan, arrays)
    q, k, v = (x.astype(dtype) for x in (q, k, v))
    seen = visible(sight, q.shape[-2], k.shape[-2], q)
    if bias is not None:
        bias = bias.astype(dtype)
        seen = bias != -inf if seen is None else seen & (bias != -inf)
    if seen is not None:
        q = jnp.where(seen.any(-1)[..., None], q, 0.0)
        k, v = (jnp.where(seen.any(-2).any(-2)[..., None], x, 0.0) for x in (k, v))
    scores = einsum("bhgqd,bhkd->bhgqk", q, k, plan.precision) * plan.scale
    if plan.softcap is not None:
        scores = plan.softcap * jnp.tanh(scores / plan.softcap)
    if bias is not None:
        scores = scores + bias
    if seen is not None:
        scores = jnp.where(seen, scores, -inf)
    top = stop_gradient(jnp.maximum(jnp.max(scores, -1, keepdims=True), jnp.finfo(dtype).min))
    weights = jnp.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    kept = None if dropout is None else dropping.keep(dropout, weights.shape, weights)
    weights = _dropped(plan, weights / jnp.where(total == 0, 1.0, total), kept)
    out = einsum("bhgqk,bhkv->bhgqv", weights, v, plan.precision)
    return jnp.where(total == 0, 0.0, out), to_log2(top), total


# The tiles of a call, in loops: some heads, then some queries, then some keys.


@partial(jax.jit, static_argnums=0)
def attend(plan, q, k, v, bias, *arrays):
    """out (B, H, G, Tq, Dv), and of each query the largest score and the sum of weights relative to that.

    The latter (B, H, G, Tq, 1), top in units of log 2; all in the accumulator's dtype. Without sinks.
    """
    dtype = accumulator(q.dtype)

    def heads(whole, biases, rules):
        q_, k_, v_ = whole

        def queries(carry, i0, n_q):
            rows = as_read(rows_of(q_, i0, n_q, rules.heads))
            rows = rows if exact(rows.dtype) else rows * _factor(plan)

            def keys(corner, rules, carry, only=False):
                few = plan.few and only
                keys_, values = (as_read(cut(x, 1, *corner[2:4])) for x in (k_, v_))
                wiped, *tile = tile_of(corner, () if few else (v_,), biases[0], rules, rows)
                here, carry = plan._replace(few=few), None if only else carry
                return forward_tile(here, carry, rows, keys_, *(wiped or [values]), *tile)

            zero, zeros = (jnp.zeros((*rows.shape[:2], n), dtype) for n in (1, v_.shape[2]))
            nothing = zero + jnp.finfo(dtype).min, zero, zeros
            at_once = partial(keys, only=True)
            top, total, values = over_keys(plan, rules, i0, n_q, k_, keys, nothing, at_once)
            # total is 0 or about 1 at least: XLA may round a score otherwise where it is compared with top
            return carry, (values / jnp.where(total == 0, 1, total), top, total)

        return over_queries(plan, queries, (), q_, v_.shape[2], 1, 1)[1]

    results = over_heads(plan, heads, (q, k, v), (bias,), arrays)
    return tuple(x.reshape(*q.shape[:-1], x.shape[-1]) for x in results)


@partial(jax.jit, static_argnums=0)
def backward(plan, q, k, v, bias, out, top, total, dout, _dtop, dtotal, *arrays):
    """dq, dk, dv and, if there is a bias, dbias; each in the dtype of what it belongs to."""
    plan, dtype = _in_pairs(plan), accumulator(q.dtype)

    def heads(whole, biases, rules):
        q_, k_, v_, *others = whole

        def queries(sums, i0, n_q):
            o, base, weight, do, dt, rows = (rows_of(x, i0, n_q, rules.heads) for x in (*others, q_))
            share, rows, do, dt = seeing(weight, rows, do, dt)
            do = do * share
            delta = (do * o).sum(-1, keepdims=True) - dt
            rows = rows.astype(dtype) * _factor(plan)

            def keys(corner, rules, sums):
                (keys_, values), *tile = tile_of(corner, (k_, v_), biases[0], rules, rows)
                dq, dk, dv, *db = sums
                j0, n_k = corner[2:4]
                part = dq, cut(dk, 2, j0, n_k), cut(dv, 2, j0, n_k)
                (dq, *part), dscores = backward_tile(plan, part, rows, keys_, values, *tile, base, do, delta)
                dk, dv = (pasted(x, y, 2, j0) for x, y in zip((dk, dv), part, strict=True))
                dscores = dscores.reshape(*rules.heads, -1, n_q, n_k)
                return dq, dk, dv, *(added(x, dscores, 0, 0, 0, i0, j0) for x in db)

            dq, *sums = over_keys(plan, rules, i0, n_q, k_, keys, (jnp.zeros_like(rows), *sums))
            return sums, [dq * plan.scale]

        sums = [jnp.zeros((N, d, Tk), dtype) for N, Tk, d in (k_.shape, v_.shape)]
        sums += [jnp.zeros(b.shape, dtype) for b in biases if b is not None]
        (dk, dv, *db), (dq,) = over_queries(plan, queries, sums, q_, q_.shape[2])
        grads = dq, (dk * _unit(plan)).mT, dv.mT
        return *(x.astype(q.dtype) for x in grads), *db

    shared = [] if bias is None else [jnp.zeros(bias.shape, dtype)]
    whole = q, k, v, out, top, total, dout, dtotal
    grads = over_heads(plan, heads, whole, (bias,), arrays, shared)
    return tuple(x.reshape(y.shape).astype(y.dtype) for x, y in zip(grads, (q, k, v, bias), strict=False))


@partial(jax.jit, static_argnums=0)
def tangent(plan, q, k, v, bias, out, top, total, dq, dk, dv, dbias, *arrays):
    """The tangents of what attend gives; top counts as a constant, for what depends on it cancels."""
    plan, factor = _in_pairs(plan), _factor(plan)

    def heads(whole, biases, rules):
        q_, k_, v_, out_, top_, total_, dq_, dk_, dv_ = whole

        def queries(carry, i0, n_q):
            o, base, weight, rows, drows = (
                rows_of(x, i0, n_q, rules.heads) for x in (out_, top_, total_, q_, dq_)
            )
            share, rows, drows = seeing(weight, rows, drows)
            rows, drows = rows.astype(out.dtype) * factor, drows.astype(out.dtype) * factor

            def keys(corner, rules, sums):
                (keys_, values, dkeys, dvalues), *tile = tile_of(
                    corner, (k_, v_, dk_, dv_), biases[0], rules, rows
                )
                moves = drows, dkeys, dvalues, part_of_bias(biases[1], corner, rules, rows)
                return tangent_tile(plan, sums, rows, keys_, values, *tile, base, *moves)

            sums = jnp.zeros_like(o), jnp.zeros_like(base)
            do, dt = over_keys(plan, rules, i0, n_q, k_, keys, sums)
            return carry, ((do - dt * o) * share, dt)

        return over_queries(plan, queries, (), q_, v_.shape[2], 1)[1]

    whole = q, k, v, out, top, total, dq, dk, dv
    dout, dtotal = over_heads(plan, heads, whole, (bias, dbias), arrays)
    return dout.reshape(out.shape), jnp.zeros_like(top), dtotal.reshape(total.shape)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attend(plan, q, k, v, bias, *arrays):
    return attend(plan, q, k, v, bias, *arrays)


@_attend.defjvp
def _(plan, primals, tangents):
    q, k, v, bias, *arrays = primals
    results = _attend(plan, *primals)
    constants = (q, k, v, bias, *results), tuple(arrays)
    f = Linear(
        lambda c, x: tangent(plan, *c[0], *x, *c[1]),
        lambda c, y: backward(plan, *c[0], *y, *c[1]),
        lambda c, x: jax.jvp(lambda *at: dense(plan, *at, *c[1]), c[0][:4], x)[1],
        lambda c, y: jax.vjp(lambda *at: dense(plan, *at, *c[1]), *c[0][:4])[1](y),
    )
    return results, linear(f, constants, tuple(tangents[:4]))
