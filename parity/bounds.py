"""How far a correct attention may be from the oracle: one bound for each element of each result.

A running error analysis, evaluated on the oracle's own intermediates for the arithmetic that a claim states.
Nothing is tuned: each term is a rounding named in parity.claims, pushed through the formula it occurs in.
n roundings in a row make a relative error of at most gamma(n, u) = (1 + u)^n - 1.

Forward. Let s be a score, p its weight, w = p keep what multiplies v, o the output. The computed score is
off by at most d (`score_errors`), so the computed weights are p e^t / sum p e^t with |t| <= off = d + the
error of exp. Then, exactly and without linearising,

    o~ - o = sum_j p_j (e^t_j - 1) (keep_j v_j - o) / sum_j p_j e^t_j                              (1)

Equal values give no error, a key counts by its weight, and the convex hull of the values bounds the whole.
A sink is one more column, of value 0; dropout puts keep_j v_j in the place of v_j. To this come the
roundings of w, of the product with v, of the division and of the result.

Backward. z = dp - delta, ds = p z. Weights recomputed as exp(s~ - lse~) differ from p by a factor e^t, now
with |t| <= tau = off + the error of lse, so

    |ds~ - ds| <= p (e^tau - 1) |z| + p e^tau e_z + roundings,   e_z = e_dp + e_delta              (2)

delta is dout.o or sum p dp: both are admitted, and in both the error of the weights makes sum p~ z, which
(1) bounds with z in the place of keep v - o, since sum p z = 0. The gradients of q, k, v are products of ds
or w with exact inputs, dbias is a sum of ds, a sink's gradient the sum of -p_sink delta: (2) with dp = 0.

Valid to first order in roundoffs, except in exponents; a factor 1 + 4u in `finish` covers products of two.
Products of inputs below the smallest normal number of the accumulation dtype are not modelled.
Source of the tools: Higham 2002, chapters 3 and 4; Blanchard, Higham & Higham 2021.
"""

from typing import NamedTuple

import numpy as np

from parity.claims import CLAIMS, LARGEST, Claim
from parity.oracle import Array, Backward, Call, Forward, Oracle, sum_to

__all__ = ["CLAIMS", "Claim", "attention", "finish", "gamma", "sizes"]

EXPONENT_LIMIT = 500.0  # an exponent off by more is no evidence anyway, and e^500 can still be squared


def gamma(n: float, u: float) -> float:
    """(1 + u)^n - 1: the largest relative error of n roundings in a row."""
    return float(np.expm1(n * np.log1p(u)))


def finish(claim: Claim, reference: Array, error: Array, underflows: float = 1.0) -> Array:
    """The bound of a result that has this error before it is rounded to io, and so many underflows."""
    error = error * (1.0 + 4.0 * claim.coarsest)
    return error + claim.u_out * (np.abs(reference) + error) + underflows * claim.eta_out


def attention(oracle: Oracle, claim: Claim) -> dict[str, Array]:
    """The bounds of out, lse, weights and, if the oracle had dout, of every gradient; by name, each in shape.

    inf where the claim has to hold a number its dtype cannot (q.k above 65504 in float16): no evidence there.
    0 where nothing is seen, by a query or of a key: there the contract is exact.
    """
    call, fwd, bwd, axes = oracle.call, oracle.forward, oracle.backward, oracle.call.axes
    with np.errstate(over="ignore", invalid="ignore"):  # an absurd bound becomes inf or NaN: no evidence
        errors = forward_errors(call, fwd, claim)
        out = where_seen(call, finish(claim, fwd.out, errors.moved + errors.rounded))
        lse = errors.lse + (claim.u_acc + claim.u_store) * np.abs(fwd.lse)
        bounds = {
            "out": axes.rows(out),
            "lse": axes.rows(np.where(np.isfinite(fwd.lse), lse, 0.0))[..., 0],
            "weights": axes.rows(weight_errors(call, fwd, errors, claim)),
        }
        if bwd is not None:
            ds, ds_sink = score_gradient_errors(call, fwd, bwd, errors, claim)
            bounds |= product_bounds(call, fwd, bwd, errors, ds, claim)
            bounds |= sum_bounds(call, bwd, ds, ds_sink, claim)
        return without_evidence(oracle, claim, bounds)


class Errors(NamedTuple):
    """Of the forward pass. Pairs: off, the |t| of (1); slope, the error of 1 - tanh^2.

    Rows: sink_off as off; lse; norm, the error of log of what divides the weights of the backward pass; mass,
    the least that sum p e^t can be. (B, H, G, Tq, Dv): moved, by wrong weights; rounded, on the way.
    """

    off: Array
    slope: Array
    sink_off: Array
    lse: Array
    norm: Array
    mass: Array
    moved: Array
    rounded: Array


def where_seen(call: Call, rows: Array) -> Array:
    """Zero for a query that sees nothing."""
    return np.where(call.visible.any(-1, keepdims=True), rows, 0.0)


def score_errors(call: Call, fwd: Forward, claim: Claim) -> tuple[Array, Array]:
    """Errors of the score and of 1 - tanh^2. Pairs.

    q.k: accumulation, operands, q scaled before or after; then scaled, capped, biased, each step stored.
    """
    c, u_acc, u_store = abs(call.scale), claim.u_acc, claim.u_store
    per_product = gamma(call.q.shape[-1], u_acc) + 2 * claim.u_input + 2 * max(u_store, u_acc)
    scaled = np.abs(call.scale * fwd.product)
    error = c * per_product * (np.abs(call.q) @ np.abs(call.k).mT) + (4 * u_acc + 2 * u_store) * scaled
    slope, tanh = np.zeros(1), np.zeros(1)
    if call.softcap is not None and fwd.capped is not None:
        tanh, off, x = np.abs(fwd.capped), error / abs(call.softcap), scaled / abs(call.softcap)
        steepest = 1.0 / np.cosh(np.clip(x - off, 0.0, 300.0)) ** 2  # derivative of tanh, within the error
        tanh_off = steepest * off + (claim.u_function + u_acc + 3 * u_store) * tanh
        error = abs(call.softcap) * tanh_off
        slope = np.minimum((2 * tanh + tanh_off) * tanh_off + 3 * (u_acc + u_store), 1.0)
    if call.bias is not None:
        before = scaled if call.softcap is None else abs(call.softcap) * tanh
        rounding = (u_acc + u_store) * np.abs(np.where(call.visible, fwd.scores, 0.0))
        absorbed = before if u_store <= u_acc else 3 * before  # the nearest number is as near as the bias
        error = error + np.minimum(rounding, absorbed)
    return error, slope


def forward_errors(call: Call, fwd: Forward, claim: Claim) -> Errors:
    """From the errors of the scores to those of the output.

    Subtracting the maximum m costs u|s - m|. Online, 3u(|s| + |m|): running maxima only rise, so that their
    differences telescope, but exp2 scales each term; and the sum and the output are rescaled every 16 keys.
    """
    u_acc, u_store = claim.u_acc, claim.u_store
    peak = np.abs(fwd.peak)

    def shifted(s):
        near = (u_acc + u_store) * np.abs(s - fwd.peak)
        far = 3 * u_acc * (np.abs(s) + peak) if claim.online else 0.0
        return near + far + claim.u_function + u_store  # and exp

    off, slope = score_errors(call, fwd, claim)
    off = off + shifted(np.where(call.visible, fwd.scores, fwd.peak))
    off = np.where(call.visible, np.minimum(off, EXPONENT_LIMIT), 0.0)
    sink_off = shifted(fwd.peak if call.sinks is None else call.sinks)
    less, more = (  # than 1, at the least and at the most, is sum p e^t
        (fwd.p * np.expm1(x)).sum(-1, keepdims=True) + fwd.p_sink * np.expm1(y)
        for x, y in ((-off, -sink_off), (off, sink_off))
    )
    mass = 1.0 + less
    n = row_roundings(call)
    row = gamma(n, u_acc)
    if claim.online:
        row = row + n / 16 * 4 * u_acc  # the factors exp(old maximum - new one)
    log = np.where(fwd.lse == -np.inf, 0.0, np.abs(fwd.lse - fwd.peak))
    norm = np.maximum(np.log1p(more), -np.log1p(less)) + row + n * claim.eta
    lse = norm + 4 * u_acc * (peak + log + 1)
    norm = lse if claim.online else norm + u_acc + u_store

    moved, hull = weighted_distances(fwd.p * np.expm1(off), call, fwd)
    moved = np.minimum((moved + fwd.p_sink * np.expm1(sink_off) * np.abs(fwd.out)) / mass, hull)
    out = np.abs(fwd.out) + moved
    most = np.minimum(fwd.p * np.exp(off) / mass, 1.0) * call.keep  # the largest computed w
    per_weight = claim.u_operand + claim.u_input + 2 * u_store + 2 * u_acc + gamma(n, u_acc)
    rounded = per_weight * (most @ np.abs(call.v)) + (row + 4 * u_acc + 2 * u_store) * out
    per_weight = claim.eta + claim.eta_store  # exp, and what enters the product
    lost = per_weight * ((call.visible * call.keep) @ np.abs(call.v)) + claim.eta * n * out
    return Errors(off, slope, sink_off, lse, norm, mass, moved, rounded + lost)


def row_roundings(call: Call) -> float:
    """Roundings in a row while the weights of a query are summed: one per key, two per tile."""
    Tk = call.k.shape[-2]
    return float(Tk + 2 * np.ceil(Tk / 16) + 8)


def weighted_distances(A: Array, call: Call, fwd: Forward) -> tuple[Array, Array]:
    """sum_j A_ij |keep_ij v_jd - o_id|, and the largest such distance over what is visible, or the sink.

    The latter only where some A is large enough for it to matter, else inf. (B, H, G, Tq, Dv) each.
    """
    total, farthest = np.empty(fwd.out.shape), np.full(fwd.out.shape, np.inf)
    distance = np.empty(A.shape)
    for d in range(fwd.out.shape[-1]):
        o = fwd.out[..., d, None]  # (B, H, G, Tq, 1)
        np.subtract(call.keep * call.v[..., d][..., None, :], o, out=distance)
        np.abs(distance, out=distance)
        total[..., d] = np.einsum("...k,...k->...", A, distance)
        if A.max(initial=0.0) > 0.05:
            seen = np.where(call.visible, distance, 0.0).max(-1, initial=0.0)
            farthest[..., d] = seen if call.sinks is None else np.maximum(seen, np.abs(o[..., 0]))
    return total, farthest


def recomputed(p: Array, off: Array, norm: Array) -> tuple[Array, Array]:
    """p (e^tau - 1) and p e^tau: how far off a weight of the backward pass can be, and how large."""
    tau = np.minimum(off + norm, EXPONENT_LIMIT)
    return p * np.expm1(tau), p * np.exp(tau)


def weight_errors(call: Call, fwd: Forward, errors: Errors, claim: Claim) -> Array:
    """Of w = p keep, before it is rounded for a product. Pairs; 0 where hidden."""
    off, most = recomputed(fwd.p, errors.off, errors.norm)
    error = off + (2 * claim.u_store + 4 * claim.u_acc) * most + claim.eta + claim.eta_store
    return np.where(call.visible, error * call.keep, 0.0)


def score_gradient_errors(
    call: Call, fwd: Forward, bwd: Backward, errors: Errors, claim: Claim
) -> tuple[Array, Array]:
    """Of ds (pairs, 0 where hidden) and of the sink's -p_sink delta (rows), by (2)."""
    u_acc, u_store, n = claim.u_acc, claim.u_store, row_roundings(call)
    per_product = gamma(call.v.shape[-1], u_acc) + 2 * claim.u_input
    dp_error = per_product * call.keep * (np.abs(bwd.dout) @ np.abs(call.v).mT)
    dp_error = dp_error + (claim.u_dp + u_store + 3 * u_acc) * np.abs(bwd.dp)
    delta, z = np.abs(bwd.delta), np.abs(bwd.dp - bwd.delta)
    dp_error, dp, z = (np.where(call.visible, x, 0.0) for x in (dp_error, np.abs(bwd.dp), z))
    dp = dp + dp_error

    wrong = (fwd.p * np.expm1(errors.off) * z).sum(-1, keepdims=True)
    wrong = (wrong + fwd.p_sink * np.expm1(errors.sink_off) * delta) / errors.mass
    wrong = np.minimum(wrong, np.maximum(z.max(-1, keepdims=True, initial=0.0), delta))
    out = np.abs(fwd.out) + errors.moved + errors.rounded
    from_out = errors.rounded + (claim.u_out + gamma(out.shape[-1], u_acc)) * out + claim.eta_out
    most = np.minimum(fwd.p * np.exp(errors.off) / errors.mass, 1.0)
    from_sum = most * (dp_error + (gamma(n, claim.u_reduce) + 2 * u_store + u_acc) * dp) + claim.eta * dp
    if claim.squared_sum:  # L sum e (dp / L^2) and L (dp / L), for sum p dp and dp
        L = fwd.mass
        from_sum = from_sum + most * (3 * u_store + claim.eta_store * L * L) * dp + claim.eta_store * L
        from_sum = from_sum + claim.eta_store * L * L * most
        dp_error = dp_error + claim.eta_store * L
    from_out = (from_out * np.abs(bwd.dout)).sum(-1, keepdims=True)
    from_sum = from_sum.sum(-1, keepdims=True) + errors.norm * delta  # the weights may not sum to one
    delta_error = wrong + np.maximum(from_out, from_sum)
    delta_error = delta_error + u_store * (delta + delta_error)
    delta = delta + delta_error

    per_step = 2 * u_store + 2 * u_acc  # z and p z stored, or p dp and p delta
    off, most = recomputed(fwd.p, errors.off, errors.norm)
    lost = claim.eta * (1 + dp + delta) + claim.eta_store * (1 + z)  # p dp and p delta; exp and p
    ds = off * z + most * (dp_error + delta_error + per_step * (dp + delta)) + lost
    off, most = recomputed(fwd.p_sink, errors.sink_off, errors.norm)
    ds_sink = off * np.abs(bwd.delta) + most * (delta_error + per_step * delta) + claim.eta * (1 + delta)
    return np.where(call.visible, ds, 0.0), ds_sink


def product_bounds(
    call: Call, fwd: Forward, bwd: Backward, errors: Errors, ds: Array, claim: Claim
) -> dict[str, Array]:
    """dq, dk, dv: ds or w through a matrix product with k, q or dout.

    The scaled c ds is what is stored, so that its underflow is not multiplied by c. Where all is stored, so
    are c q, and the product of ds with k before it is scaled.
    """
    c, u_acc, u_store = abs(call.scale), claim.u_acc, claim.u_store
    G, Tq = call.q.shape[2:4]
    if fwd.capped is not None:
        slope = 1.0 - fwd.capped**2
        ds = ds * slope + (np.abs(bwd.ds) + ds) * errors.slope + 2 * (u_store + u_acc) * np.abs(bwd.dx)
    dx = np.abs(bwd.dx) + ds
    w_error = weight_errors(call, fwd, errors, claim)
    w = fwd.p * call.keep + w_error
    per_operand = claim.u_operand + claim.u_input

    def pairs(error, most, n):
        return error + (per_operand + gamma(n, u_acc)) * most

    scaled = c * ds + c * u_store * dx + claim.eta * call.visible
    dq = pairs(scaled, c * dx, call.k.shape[-2]) @ np.abs(call.k) + (4 * u_acc + u_store) * np.abs(bwd.dq)
    dq = dq + c * claim.eta_store
    dk = pairs(scaled, c * dx, Tq * G).mT @ np.abs(call.q) + (4 * u_acc + u_store) * np.abs(bwd.dk_heads)
    dk = dk + claim.eta_store * dx.sum(-2)[..., None]
    dv = pairs(w_error, w, Tq * G).mT @ np.abs(bwd.dout)
    if claim.query_block:
        dk = dk + partial_sums(call.scale * bwd.dx, call.q, claim)
        dv = dv + partial_sums(fwd.p * call.keep, bwd.dout, claim)
    bounds = {"dq": call.axes.rows(where_seen(call, finish(claim, bwd.dq, dq)))}
    seen = np.any(call.visible, axis=(2, 3), keepdims=True).mT  # (B, H, 1, Tk, 1): a key, by some query
    blocks = np.ceil(Tq / claim.query_block) if claim.query_block else 0
    for name, error, heads in (("dk", dk, bwd.dk_heads), ("dv", dv, bwd.dv_heads)):
        if G > 1:  # each head's share in io, then their sum
            error = error + claim.u_out * (np.abs(heads) + error)
        total = finish(claim, heads.sum(2, keepdims=True), error.sum(2, keepdims=True), G + blocks)
        bounds[name] = call.axes.keys(np.where(seen, total, 0.0))
    return bounds


def partial_sums(left: Array, right: Array, claim: Claim) -> Array:
    """Rounding to io of left^T right after each block of queries. (B, H, G, Tk, X)."""
    partial = np.zeros((*left.shape[:-2], left.shape[-1], right.shape[-1]))
    error = np.zeros(partial.shape)
    for i in range(0, left.shape[-2], claim.query_block):
        rows = slice(i, i + claim.query_block)
        partial = partial + left[..., rows, :].mT @ right[..., rows, :]
        error = error + claim.u_out * np.abs(partial)
    return error


def sum_bounds(call: Call, bwd: Backward, ds: Array, ds_sink: Array, claim: Claim) -> dict[str, Array]:
    """dbias and dsinks: sums over the axes that they were broadcast along."""
    bounds = {}
    if call.bias is not None:
        n = bwd.ds.size / max(call.bias.size, 1)
        error = ds + gamma(n, claim.u_reduce) * (np.abs(bwd.ds) + ds)
        if n > 1:  # each ds in io, then their sum
            error = error + claim.u_out * (np.abs(bwd.ds) + error) + claim.eta_out
        reference, error = (sum_to(call.axes.rows(x), call.bias.shape) for x in (bwd.ds, error))
        seen = sum_to(call.axes.rows(call.visible), call.bias.shape) > 0
        bounds["dbias"] = np.where(seen, finish(claim, reference, error), 0.0)
    if call.sinks is not None:
        n = bwd.ds_sink.size / max(call.sinks.size, 1)
        error = ds_sink + gamma(n, claim.u_reduce) * (np.abs(bwd.ds_sink) + ds_sink)
        reference, error = (x.sum((0, 3)).reshape(-1) for x in (bwd.ds_sink, error))
        bounds["dsinks"] = finish(claim, reference, error)
    return bounds


def sizes(oracle: Oracle) -> dict[str, float]:
    """How large each result is on average if nothing in it cancels: what a bound has to be small against.

    0 where an input makes the result 0 whatever is computed from it; 1 for weights and for a log-sum-exp.
    """
    call, fwd, bwd = oracle.call, oracle.forward, oracle.backward
    w = fwd.p * call.keep
    found = {"out": w @ np.abs(call.v), "lse": np.ones(1), "weights": np.ones(1)}
    if bwd is not None:
        dp = np.where(call.visible, np.abs(bwd.dp), 0.0)
        delta = (fwd.p * dp).sum(-1, keepdims=True)
        ds = fwd.p * (dp + delta)
        dx = abs(call.scale) * (ds if fwd.capped is None else ds * (1.0 - fwd.capped**2))
        found["dq"], found["dk"] = dx @ np.abs(call.k), (dx.mT @ np.abs(call.q)).sum(2)
        found["dv"] = (w.mT @ np.abs(bwd.dout)).sum(2)
        if call.bias is not None:
            found["dbias"] = sum_to(call.axes.rows(ds), call.bias.shape)
        if call.sinks is not None:
            found["dsinks"] = (fwd.p_sink * delta).sum((0, 3))
    return {name: float(size.mean()) if size.size else 0.0 for name, size in found.items()}


def without_evidence(oracle: Oracle, claim: Claim, bounds: dict[str, Array]) -> dict[str, Array]:
    """inf where an intermediate that the claim stores, or the result, may be too large for its dtype."""
    call, fwd, bwd, axes = oracle.call, oracle.forward, oracle.backward, oracle.call.axes
    stored, multiplied = 0.999 * LARGEST[claim.store], 0.999 * LARGEST[claim.operand]
    over = call.visible & ((np.abs(fwd.product) > stored) | (np.abs(fwd.scores) > stored))
    rows = over.any(-1, keepdims=True)
    lost = {"out": axes.rows(rows), "lse": axes.rows(rows)[..., 0], "weights": axes.rows(rows)}
    if bwd is not None:
        z = bwd.dp - bwd.delta
        large = (np.abs(bwd.dp) > stored) | (np.abs(z) > stored) | (np.abs(bwd.dx) > multiplied)
        if claim.squared_sum:  # to infinity, and L^-2 to 0
            large = large | (fwd.mass**2 > stored)
        rows = rows | (call.visible & large).any(-1, keepdims=True)
        heads = rows.any((2, 3), keepdims=True)  # (B, H, 1, 1, 1)
        by_key = axes.keys(np.broadcast_to(heads, (*heads.shape[:3], axes.Tk, 1)))
        lost |= {"dq": axes.rows(rows), "dk": by_key, "dv": by_key}
        if call.bias is not None:
            pairs = axes.rows(np.broadcast_to(rows, over.shape))
            lost["dbias"] = sum_to(pairs, call.bias.shape) > 0
        if call.sinks is not None:
            lost["dsinks"] = rows.any((0, 3)).reshape(-1)
    for name, bound in bounds.items():
        dtype = claim.accumulate if name in ("lse", "weights") else claim.io
        reference = np.abs(getattr(oracle, name))
        reference = np.where(reference == np.inf, 0.0, reference)
        outside = np.isnan(bound) | (reference + bound > LARGEST[dtype]) | lost[name]
        bounds[name] = np.where(outside, np.inf, bound)
    return bounds
