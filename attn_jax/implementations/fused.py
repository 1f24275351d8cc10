"""The framework's own kernels, where they give exactly what the contract says once they are mended.

All rules of visibility come to one mask, (B, H G, Tq, Tk). Zeros stand for keys that no query reads and for
queries that read none, since 0 * NaN is NaN. Of derivatives only the first, in reverse mode, is promised.

Axes: B batch, H kv heads, G query heads per kv head, q and k positions, d head size, v the values' head size.
"""

from math import inf

import jax
import jax.numpy as jnp
from jax.nn import dot_product_attention

from ..arithmetic import MODES
from ..visibility import visible

# jax.nn.dot_product_attention. Mended: a query that reads none gives 0, where jax.nn gives the mean of v; a
# row of biases of -inf is a mask, where jax.nn gives NaN; float32 is float32 on every device.


def cannot(wanted, q, k, v, sight, *, scale, softcap, bias, sinks, dropout, precision):
    """Why the kernels cannot give a call's results, or None. wanted: "lse", "weights", both or none."""
    reasons = {
        "gives no weights": "weights" in wanted,
        "gives no log-sum-exp": "lse" in wanted,
        "has no sinks": sinks is not None,
        "has no dropout": dropout is not None,
        "has no softcap": softcap is not None,
        "takes no empty axis": 0 in (*q.shape, *k.shape, *v.shape),
        "computes float64 in float32": q.dtype == jnp.float64,
        "compiles no float16 for a CPU": q.dtype == jnp.float16 and jax.default_backend() == "cpu",
        "needs values of the size of the keys": q.shape[-1] != v.shape[-1],
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def attention(q, k, v, sight, *, scale, softcap=None, bias=None, sinks=None, dropout=None, precision=None):
    """softmax(cap(q k^T * scale) + bias) v over the keys that each query sees.

    q (B, H, G, Tq, D); k (B, H, Tk, D); v (B, H, Tk, Dv); bias (B, H, G, Tq, Tk), any axis possibly 1.
    Returns out (B, H, G, Tq, Dv) in q's dtype, and None for the log-sum-exp.
    """
    (B, H, G, Tq, D), Tk = q.shape, k.shape[-2]
    causal = only_causal(sight) and Tq >= Tk and bias is None
    seen = None if causal else visible(sight, Tq, Tk, q)
    if bias is not None:
        seen = bias != -inf if seen is None else seen & (bias != -inf)
        bias = jnp.where(
            bias != -inf, bias, 0.0
        )  # a finite number and a mask: jax.nn does not guard a row of -inf
    if seen is not None:
        reads = seen.any(-1)[..., None]  # (B, H, G, Tq, 1)
        read = seen.any(-2).any(-2)[..., None]  # (B, H, Tk, 1)
        q, k, v = jnp.where(reads, q, 0.0), jnp.where(read, k, 0.0), jnp.where(read, v, 0.0)
    mask, bias = (
        None if x is None else jnp.broadcast_to(x, (x.shape[0], H, G, Tq, Tk)).reshape(-1, H * G, Tq, Tk)
        for x in (seen, bias)
    )
    q = q.reshape(B, H * G, Tq, D)
    with jax.default_matmul_precision(MODES[precision]):
        out = dot_product_attention(
            *(jnp.swapaxes(x, 1, 2) for x in (q, k, v)), bias, mask, scale=scale, is_causal=causal
        )  # (B, Tq, H G, Dv)
    out = jnp.swapaxes(out, 1, 2).reshape(B, H, G, Tq, v.shape[-1])  # (B, H, G, Tq, Dv)
    return out if seen is None else jnp.where(reads, out, 0.0), None


def only_causal(sight):
    """Whether key j <= i is the only rule, counted from the first query and key."""
    others = (sight.window, *sight[3:])
    offset = sight.q_offset
    return sight.causal and isinstance(offset, int) and offset == 0 and all(x is None for x in others)
