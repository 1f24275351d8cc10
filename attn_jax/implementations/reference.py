"""Attention as the page writes it: every score in memory. The slowest file, and the one to read first.

Axes: B batch, H kv heads, G query heads per kv head, q and k positions, d head size, v the values' head size.
"""

from math import inf

import jax.numpy as jnp

from .. import dropout as dropping
from ..arithmetic import accumulator, einsum, stop_gradient
from ..visibility import visible


def cannot(wanted, q, k, v, sight, **options):
    """None: it gives everything."""


def attention(q, k, v, sight, *, scale, softcap=None, bias=None, sinks=None, dropout=None, precision=None):
    """softmax(cap(q k^T * scale) + bias) v over the keys that each query sees.

    q (B, H, G, Tq, D); k (B, H, Tk, D); v (B, H, Tk, Dv); bias (B, H, G, Tq, Tk), any axis possibly 1; sinks
    (H, G).
    Returns out (B, H, G, Tq, Dv) in q's dtype, lse (B, H, G, Tq) and weights (B, H, G, Tq, Tk) in the
    accumulator's. A query that sees nothing: out 0, weights 0, lse -inf, or its sink.
    Source: Vaswani et al. 2017, eq. 1; empty rows as in ONNX Attention-23; sinks as in Xiao et al. 2023.
    """
    dtype = q.dtype
    q, k, v = (x.astype(accumulator(dtype)) for x in (q, k, v))
    seen = visible(sight, q.shape[-2], k.shape[-2], q)  # (B, H, G, Tq, Tk), any axis possibly 1
    if bias is not None:
        bias = bias.astype(q.dtype)
        seen = bias != -inf if seen is None else seen & (bias != -inf)
    if seen is not None:
        q, k, v = drop_unread(q, k, v, seen)
    scores = einsum("bhgqd,bhkd->bhgqk", q, k, precision) * scale
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if seen is not None:
        scores = jnp.where(seen, scores, -inf)  # before the softmax: the rest of the row renormalises
    weights, lse = softmax(scores, sinks)
    if dropout is not None:
        kept = dropping.keep(dropout, weights.shape, weights)
        weights = jnp.where(kept, weights / (1 - dropout.p), 0.0)
    out = einsum("bhgqk,bhkv->bhgqv", weights, v, precision)
    if seen is not None:
        out = jnp.where(
            seen.any(-1)[..., None], out, 0.0
        )  # so that no gradient enters a row that sees nothing
    return out.astype(dtype), lse, weights


def softmax(scores, sinks):
    """exp(scores) over its sum along the last axis, to which the sink adds; and the logarithm of that sum."""
    top = jnp.max(scores, -1, keepdims=True)  # (B, H, G, Tq, 1)
    if sinks is not None:
        sinks = sinks.astype(scores.dtype)[None, :, :, None, None]
        top = jnp.maximum(top, sinks)
    top = stop_gradient(jnp.where(top == -inf, 0.0, top))
    weights = jnp.exp(scores - top)  # (B, H, G, Tq, Tk)
    total = jnp.sum(weights, -1, keepdims=True)  # (B, H, G, Tq, 1)
    if sinks is not None:
        total = total + jnp.exp(sinks - top)
    nothing = total == 0
    total = jnp.where(nothing, 1.0, total)
    lse = jnp.where(nothing, -inf, top + jnp.log(total))
    return weights / total, lse[..., 0]


def drop_unread(q, k, v, seen):
    """Zero the keys that no query reads and the queries that read none: hidden scores do not stop 0 * NaN."""
    read = seen.any(-2).any(-2)[..., None]  # (B, H, Tk, 1)
    reads = seen.any(-1)[..., None]  # (B, H, G, Tq, 1)
    return jnp.where(reads, q, 0.0), jnp.where(read, k, 0.0), jnp.where(read, v, 0.0)
