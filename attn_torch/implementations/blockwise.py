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
from math import inf, nan

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .. import dropout as dropping
from .. import visibility
from ..arithmetic import accumulator, einsum, iota, stop_gradient, switched, take
from ..visibility import visible
from . import steps
from .autograd import Linear, folded, of_floats
from .tiles import Plan, in_reach, joined, part_of_bias, readable, rows_of, seeing, split, tile_of
from .units import LOG2E, log_sum, to_log2
from .walk import Parts, Room, over_heads, over_queries, put, rows_in

_DIRECT = "direct"  # the precision of products for which no switch has to be turned


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
    ranges = steps.ranges(q, k, sight, bias, dropout, precision) if tiles is None else None
    if ranges is not None:
        out, lse = steps.attention(q, k, v, ranges, scale=scale, softcap=softcap)
        out, lse = (out, lse) if sinks is None else with_sinks(out, lse, sinks)
        return out.to(q.dtype), lse
    B, H, G, Tq, _ = q.shape
    j0, Tk = in_reach(sight, Tq, k.shape[-2])
    k, v, bias = take(k, -2, j0, Tk), take(v, -2, j0, Tk), None if bias is None else take(bias, -1, j0, Tk)
    sight = visibility.tile(sight, 0, Tq, j0, Tk)
    if dropout is not None:
        dropout = dropping.tile(dropout, 0, Tq, j0, Tk)
        seed = dropout.seed.reshape(1, 1, 1, 1, 1) if isinstance(dropout.seed, Tensor) else dropout.seed
        dropout = dropout._replace(seed=seed, stream=iota(B * H * G, q).reshape(B, H, G, 1, 1))
    tiles = tiles or tile_sizes(B, H, G, Tq, _reach(sight, Tk))
    plan, arrays = split(Plan(scale, softcap, precision, tiles, sight, dropout))
    out, top, total = _differentiable(q, k, v, bias)(plan, q, k, v, bias, *arrays)
    lse = log_sum(top, total)
    if sinks is not None:
        out, lse = with_sinks(out, lse, sinks)
    return out.to(q.dtype), lse


def tile_sizes(B, H, G, Tq, Tk):
    """(rows of the batch, kv heads, queries, keys) of a tile, for Tk keys in reach of a query."""
    # Measured on two Zen 4 cores. Few operations on large tiles, for each costs microseconds and a meeting of
    # the threads, but within their caches: 3 * 2**18 scores. Products of 64 rows are slower than those of
    # 256, but too much of these would be hidden in a short prefix or a window. 256 keys, or more of few rows,
    # or all if there are few. As many heads at a time as fit, whose products are spread evenly, and about as
    # many the next time.
    G, few = max(G, 1), Tk <= 512
    n_q = 64 if few and Tq <= 512 else 128 if few or G > 1 else 256
    n_q = max(1, min(Tq, n_q, 768 // G))
    n_k = max(1, min(Tk, max(512 if few else 256, 2**16 // (G * n_q))))
    heads = max(1, 3 * 2**18 // (G * n_q * n_k))
    n_h = max(1, -(-H // -(-H // heads))) if H else 1
    return max(1, min(B, heads // n_h)), n_h, n_q, n_k


def _reach(sight, Tk):
    """How many of Tk keys 128 queries in a row may see by the window."""
    left, right = sight.window or (None, None)
    right = 0 if sight.causal and right is None else right
    return Tk if left is None or right is None else min(Tk, 128 + left + right)


def with_sinks(out, lse, sinks):
    """Give each softmax one more logit, which has no value: out shrinks and lse grows."""
    sinks = sinks.to(lse.dtype)[None, :, :, None]
    sees = lse > -inf
    keys = torch.where(sees, lse, 0.0)
    part = torch.exp(logsigmoid(keys - sinks))  # sigmoid's own derivative takes a faint sink's weight off one
    out = torch.where(sees[..., None], out * part[..., None], 0.0)
    return out, torch.where(sees, torch.logaddexp(keys, sinks), sinks)


def forward_tile(plan, carry, q, k, v, bias, hidden, kept):
    """Add a tile's keys to (largest score, sum of weights, sum of weighted values) of its queries."""
    scores, _ = _scores(plan, q, k, bias, hidden)
    top, total, values = carry
    if not plan.small:
        larger = torch.maximum(top, torch.amax(scores, -1, keepdim=True))  # (N, R, 1), never -inf
        shrink = torch.exp2(top - larger)
        for x in (total, values):
            x.mul_(shrink)
        scores.sub_(top.copy_(larger))
    weights = scores.exp2_()
    total.add_(weights.sum(-1, keepdim=True))
    _einsum("nrk,nkv->nrv", _dropped(plan, weights, kept), v, plan.precision, values)


def backward_tile(plan, sums, q, k, v, bias, hidden, kept, top, dout, delta):
    """Add a tile to the sums for dq, and dk and dv transposed. Also the cotangent of its biased scores."""
    scores, slope = _scores(plan, q, k, bias, hidden)
    weights = (scores if plan.small else scores.sub_(top)).exp2_()
    _einsum("nvr,nrk->nvk", dout.mT, _dropped(plan, weights, kept), plan.precision, sums[2])
    dweights = _einsum("nrv,nkv->nrk", dout, v, plan.precision, into=plan.room[1])
    dbias = _dropped(plan, dweights, kept).sub_(delta).mul_(weights)
    dscores = dbias if slope is None else dbias * slope
    _einsum("nrk,nkd->nrd", dscores, k, plan.precision, sums[0])
    _einsum("ndr,nrk->ndk", q.mT, dscores, plan.precision, sums[1])
    return dbias


def tangent_tile(plan, sums, q, k, v, bias, hidden, kept, top, dq, dk, dv, dbias):
    """Add a tile to the tangents of the sums of weighted values and of weights, both relative to top."""
    scores, slope = _scores(plan, q, k, bias, hidden)
    weights = (scores if plan.small else scores.sub_(top)).exp2_()
    dscores = _einsum("nrd,nkd->nrk", dq, k, plan.precision)
    dscores = _einsum("nrd,nkd->nrk", q, dk, plan.precision, dscores)
    dscores = dscores * _unit(plan) if slope is None else dscores * slope * _unit(plan)
    dweights = (dscores if dbias is None else dscores + dbias) * weights
    _einsum("nrk,nkv->nrv", _dropped(plan, dweights, kept), v, plan.precision, sums[0])
    _einsum("nrk,nkv->nrv", _dropped(plan, weights, kept), dv, plan.precision, sums[0])
    sums[1].add_(dweights.sum(-1, keepdim=True))


def _scores(plan, q, k, bias, hidden):
    """The scores in units of log 2, and the derivative of the cap. q carries scale / _unit(plan)."""
    scores, slope = _einsum("nrd,nkd->nrk", q, k, plan.precision, into=plan.room[0]), None
    if plan.softcap is not None:
        capped = torch.tanh(scores)
        scores, slope = capped * (plan.softcap * LOG2E), 1 - capped * capped
    if bias is not None:
        scores = scores.add_(bias, alpha=LOG2E) if plan.tame else scores.add_(to_log2(bias))
    for j, rule, most in hidden:
        part = scores.narrow(-1, j, rule.shape[-1])
        if plan.small and most is not None:
            torch.minimum(part, most, out=part)
        else:
            part.masked_fill_(rule, -inf)
    return scores, slope


def _einsum(equation, x, y, precision, onto=None, into=None):
    """einsum of one product of matrices for each n, as bmm, which has the least overhead.

    onto: what the product is added to, in place. into: the Room to use for it.
    """
    if precision != _DIRECT:
        z = einsum(equation, x, y, precision)
        return z if onto is None else onto.add_(z)
    y = y.mT if equation[2] == equation[6] else y  # the last axis of both
    if onto is not None:  # what is not contiguous, bmm would take one by one
        return onto.baddbmm_(x, y) if onto.is_contiguous() else onto.add_(torch.bmm(x, y))
    if into is None:
        return torch.bmm(x, y)
    return torch.bmm(x, y, out=into[x.shape[0], x.shape[1], y.shape[2]])


def _direct(plan, q, v, bias):
    """The plan with what depends on the arrays: memory for its tiles, and how they may be computed."""
    if not switched(q.to(accumulator(q.dtype)), plan.precision):
        plan = plan._replace(precision=_DIRECT)
    room = [Room(plan, q) if readable(q) else None for _ in range(2)]
    many = readable(q) and q.device.type == "cpu" and q.shape[2] * q.shape[3] >= 64
    small = many and 2**-40 <= _largest(v) <= 2**40
    tame = many and bias is not None and _largest(bias) <= 2**40
    return plan._replace(small=small, tame=tame, room=room)


def _largest(x):
    """The largest magnitude in x, any shape; NaN if there is one, or nothing."""
    return max(abs(y.item()) for y in torch.aminmax(x)) if x.numel() else nan


def _as_exact(total):
    """Whether weights are as exact as with the largest score taken off: their sums near 1, and none NaN."""
    low, high = (x.item() for x in torch.aminmax(total))
    return low >= 2**-32 and high <= 2**32


def _unit(plan):
    """What the product of q and k, as a tile computes it, has to be multiplied by to be q k^T * scale."""
    return 1 / LOG2E if plan.softcap is None else plan.softcap


def _dropped(plan, weights, kept):
    return weights if kept is None else torch.where(kept, weights / (1 - plan.dropout.p), 0.0)


def dense(plan, q, k, v, bias, *arrays):
    """What attend gives, in one tile and in operations that have all derivatives."""
    dtype = accumulator(q.dtype)
    sight, dropout = joined(plan, arrays)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    seen = visible(sight, q.shape[-2], k.shape[-2], q)
    if bias is not None:
        bias = bias.to(dtype)
        seen = bias != -inf if seen is None else seen & (bias != -inf)
    if seen is not None:
        q = torch.where(seen.any(-1)[..., None], q, 0.0)
        k, v = (torch.where(seen.any(-2).any(-2)[..., None], x, 0.0) for x in (k, v))
    scores = einsum("bhgqd,bhkd->bhgqk", q, k, plan.precision) * plan.scale
    if plan.softcap is not None:
        scores = plan.softcap * torch.tanh(scores / plan.softcap)
    if bias is not None:
        scores = scores + bias
    if seen is not None:
        scores = torch.where(seen, scores, -inf)
    top = stop_gradient(torch.amax(scores, -1, keepdim=True).clamp(min=torch.finfo(dtype).min))
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    kept = None if dropout is None else dropping.keep(dropout, weights.shape, weights)
    weights = _dropped(plan, weights / torch.where(total == 0, 1.0, total), kept)
    out = einsum("bhgqk,bhkv->bhgqv", weights, v, plan.precision)
    return torch.where(total == 0, 0.0, out), to_log2(top), total


# The tiles of a call, one after the other: some heads, then some queries, then some keys.


def attend(plan, q, k, v, bias, *arrays):
    """out (B, H, G, Tq, Dv), and of each query the largest score and the sum of weights relative to that.

    The latter (B, H, G, Tq, 1), top in units of log 2; all in the accumulator's dtype. Without sinks.
    """
    plan, dtype, factor = _direct(plan, q, v, bias), accumulator(q.dtype), plan.scale / _unit(plan)
    out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype)
    top, total = (q.new_empty((*q.shape[:-1], 1), dtype=dtype) for _ in range(2))
    known = {}
    whole = q, k, v, top, total, out
    for (q_, k_, v_, *results), (b_,), rules in over_heads(plan, whole, (bias,), arrays):
        parts = Parts(1, k_.to(dtype), v_.to(dtype))
        for i0, n_q, tiles in over_queries(plan, q_, k_, b_, rules, known):
            queries = rows_of(q_, i0, n_q, rules.heads).to(dtype) * factor
            carry = _sums(plan, queries, i0, n_q, tiles, parts, b_, rules)
            ends = n_q if rules.sight.q_lengths is None else rules.sight.q_lengths - i0
            if plan.small and tiles and not _as_exact(carry[1].view(-1, n_q)[:, :ends]):
                plan = plan._replace(small=False)  # from here on, for to try takes the time of the tiles
                carry = _sums(plan, queries, i0, n_q, tiles, parts, b_, rules)
            carry[2].div_(carry[1].clamp(min=2**-64))  # it is 0, or far above that
            for x, rows in zip(results, carry, strict=True):
                put(x, i0, n_q, rows)
    return out, top, total


def _sums(plan, queries, i0, n_q, tiles, parts, bias, rules):
    """(largest score, sum of weights, sum of weighted values) of queries, as forward_tile has them."""
    carry = [queries.new_zeros((*queries.shape[:2], n)) for n in (1, 1, parts.arrays[1].shape[-1])]
    if not plan.small:
        carry[0].fill_(torch.finfo(queries.dtype).min)
    for corner, hidden in tiles:
        rows, *sums = rows_in(corner, i0, n_q, queries, *carry)
        (keys, values), *tile = tile_of(corner, parts, bias, rules, rows, hidden, plan.small)
        forward_tile(plan, sums, rows, keys, values, *tile)
    return carry


def backward(plan, q, k, v, bias, out, top, total, dout, _dtop, dtotal, *arrays):
    """dq, dk, dv and, if there is a bias, dbias; each in the dtype of what it belongs to."""
    plan, dtype, factor = _direct(plan, q, v, bias), accumulator(q.dtype), plan.scale / _unit(plan)
    small = plan.small and _largest(k) < inf  # where dscores are 0 they are multiplied by k all the same
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    dk, dv = (torch.zeros(x.mT.shape, dtype=dtype, device=x.device) for x in (k, v))
    dbias = None if bias is None else torch.zeros(bias.shape, dtype=dtype, device=bias.device)
    known = {}
    whole = k, v, dq, dk, dv, total, q, top, out, dout, dtotal
    for (k_, v_, dq_, dk_, dv_, *rows), (b_, db_), rules in over_heads(plan, whole, (bias, dbias), arrays):
        parts, grads, q_ = Parts(1, k_.to(dtype), v_.to(dtype)), Parts(2, dk_, dv_), rows[1]
        for i0, n_q, tiles in over_queries(plan, q_, k_, b_, rules, known):
            weight, queries, base, o, do, dt = (rows_of(x, i0, n_q, rules.heads) for x in rows)
            here = plan._replace(small=small and not base.any())
            share, queries, do, dt = seeing(weight, queries, do, dt)
            queries, do = queries.to(dtype) * factor, do * share
            delta = (do * o).sum(-1, keepdim=True) - dt
            dqueries = torch.zeros_like(queries)
            for corner, hidden in tiles:
                some, into, *others = rows_in(corner, i0, n_q, queries, dqueries, base, do, delta)
                (keys, values), *tile = tile_of(corner, parts, b_, rules, some, hidden, here.small)
                sums = into, *grads[corner[2:]]
                dscores = backward_tile(here, sums, some, keys, values, *tile, *others)
                if db_ is not None:
                    part = take(take(db_, 3, *corner[:2]), 4, *corner[2:])
                    part += dscores.view(*rules.heads, -1, *corner[1::2]).sum_to_size(part.shape)
            put(dq_, i0, n_q, dqueries.mul_(plan.scale))
    dk, dv = dk.mul_(_unit(plan)).mT.to(k.dtype), dv.mT.to(v.dtype)
    return dq, dk, dv, *(() if bias is None else (dbias.to(bias.dtype),))


def tangent(plan, q, k, v, bias, out, top, total, dq, dk, dv, dbias, *arrays):
    """The tangents of what attend gives; top counts as a constant, for what depends on it cancels."""
    plan, dtype, factor = _direct(plan, q, v, bias), out.dtype, plan.scale / _unit(plan)
    dout, dtotal = torch.empty_like(out), torch.empty_like(total)
    known = {}
    whole = k, v, dk, dv, dout, dtotal, total, q, dq, top, out
    for (k_, v_, dk_, dv_, do, dt, *rows), (b_, db_), rules in over_heads(plan, whole, (bias, dbias), arrays):
        parts, q_ = Parts(1, *(x.to(dtype) for x in (k_, v_, dk_, dv_))), rows[1]
        for i0, n_q, tiles in over_queries(plan, q_, k_, b_, rules, known):
            weight, queries, dqueries, base, o = (rows_of(x, i0, n_q, rules.heads) for x in rows)
            here = plan._replace(small=plan.small and not base.any())
            share, queries, dqueries = seeing(weight, queries, dqueries)
            queries, dqueries = queries.to(dtype) * factor, dqueries.to(dtype) * factor
            sums = torch.zeros_like(o), torch.zeros_like(base)
            for corner, hidden in tiles:
                some, dsome, top_, *into = rows_in(corner, i0, n_q, queries, dqueries, base, *sums)
                (keys, values, *moves), *tile = tile_of(corner, parts, b_, rules, some, hidden)
                moves = dsome, *moves, part_of_bias(db_, corner, rules, some)
                tangent_tile(here, into, some, keys, values, *tile, top_, *moves)
            put(do, i0, n_q, (sums[0] - sums[1] * o) * share)
            put(dt, i0, n_q, sums[1])
    return dout, torch.zeros_like(top), dtotal


# What autograd, functorch and dynamo have to be told.


def _differentiable(*floats):
    """attend, with the derivatives that can be asked for."""
    if not torch.compiler.is_compiling():
        return _AttendBothWays.apply
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in floats):
        return _Attend.apply
    return attend  # dynamo gives a Function's forward one argument too many, if it takes any number


class _Attend(torch.autograd.Function):
    """attend, with backward as its derivative."""

    @staticmethod
    def forward(plan, *tensors):
        return attend(plan, *tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.plan, *tensors = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.save_for_forward(*tensors, *output)

    @staticmethod
    def backward(ctx, *cotangents):
        *tensors, out, top, total = ctx.saved_tensors
        arrays = tensors[4:]
        tensors = *tensors[:4], out, top, total, *cotangents, *arrays
        if torch.compiler.is_compiling():  # which has no second derivatives
            grads = backward(ctx.plan, *tensors)
        else:
            grads = Linear.apply(backward, _dense_backward, ctx.plan, *tensors)
        return None, *grads, *(None,) * (4 - len(grads) + len(arrays))

    @staticmethod
    def vmap(info, in_dims, plan, *tensors):
        return folded(partial(_AttendBothWays.apply, plan), info.batch_size, in_dims[1:], tensors)


class _AttendBothWays(_Attend):
    """The same with forward mode, of which dynamo wants to see nothing."""

    @staticmethod
    def jvp(ctx, _plan, *tangents):
        q, k, v, bias, *arrays, out, top, total = ctx.saved_tensors
        at = q, k, v, bias, out, top, total
        tangents = (
            torch.zeros_like(x) if t is None and x is not None else t
            for x, t in zip((q, k, v, bias), tangents, strict=False)
        )
        return Linear.apply(tangent, _dense_tangent, ctx.plan, *at, *tangents, *arrays)


def _dense_backward(plan, q, k, v, bias, _out, top, _total, dout, dtop, dtotal, *arrays):
    f, _, floats = of_floats(lambda *x: dense(plan, *x, *arrays), (q, k, v, bias))
    (_, base, _), pull = torch.func.vjp(f, *floats)
    return pull((dout, dtop, dtotal * torch.exp2(base - top)))  # to each, total is relative to its own top


def _dense_tangent(plan, q, k, v, bias, _out, top, _total, dq, dk, dv, dbias, *arrays):
    f, _, floats = of_floats(lambda *x: dense(plan, *x, *arrays), (q, k, v, bias))
    moves = tuple(x for x in (dq, dk, dv, dbias) if x is not None)
    (_, base, _), (dout, dtop, dtotal) = torch.func.jvp(f, tuple(floats), moves)
    return dout, dtop, dtotal * torch.exp2(base - top)
