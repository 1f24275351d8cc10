"""The two products of a tile, with no key or value converted where that would take longer than to read it.

bfloat16 numbers are multiplied as they are, for their products are exact in float32; a float32 weight is
three of them then.

Axes: N heads, R queries, k keys, d head size, v the values' head size.
"""

import jax.numpy as jnp
from jax import lax

from ..arithmetic import accumulator, einsum

FEW = 16  # queries of a kv head, at most, whose time is that of reading keys and values


def exact(dtype):
    """Whether XLA multiplies numbers of this dtype as they are, into float32."""
    return dtype == jnp.bfloat16  # float16 it would convert, all of it, before the product


def as_read(x):
    """x as the products take it."""
    return x if exact(x.dtype) else x.astype(accumulator(x.dtype))


def scored(q, k):
    """The products of exact q (N, R, d) and k (N, k, d), (N, R, k) in float32."""
    R = q.shape[1]
    q = jnp.repeat(q, 2, 1) if R == 1 else q  # one row by itself is a tenth as fast
    return _exactly("nrd,nkd->nrk", q, k)[:, :R]


def largest(scores):
    """The largest of each row, (N, R, 1), never -inf. XLA makes the weights in the same pass."""
    least = jnp.finfo(scores.dtype).min
    if scores.shape[2] == 1:  # where XLA forgets what a reduction begins with
        return jnp.maximum(scores, least)
    return lax.reduce(scores, least, lax.max, (2,))[..., None]


def weighted(weights, v, precision):
    """Few weights (N, R, k) times v (N, k, v), some keys at a time: XLA's sum over many is half as fast."""
    (N, R, Tk), most = weights.shape, 512 if exact(v.dtype) else 1024
    n = next((n for n in range(most, most // 2, -1) if Tk % n == 0), Tk)
    weights = _three(weights) if exact(v.dtype) else weights
    parts = weights.reshape(N, weights.shape[1], Tk // n, n), v.reshape(N, Tk // n, n, v.shape[2])
    if exact(v.dtype):
        out = _exactly("nmjk,njkv->njmv", *parts)
    else:
        out = lax.optimization_barrier(einsum("nmjk,njkv->njmv", *parts, precision))  # or it is one sum again
    return out.sum(1).reshape(N, weights.shape[1] // R, R, v.shape[2]).sum(1)


def _exactly(equation, x, y):
    """einsum in float32 of what is exact. In another order of axes, for who reads it, XLA cannot give it."""
    return lax.optimization_barrier(jnp.einsum(equation, x, y, preferred_element_type=jnp.float32))


def _three(x):
    """float32 x (N, R, k) as the sums of three bfloat16, (N, 3 R, k)."""
    parts = []
    for _ in range(3):
        bits = lax.bitcast_convert_type(x, jnp.uint32) & jnp.uint32(0xFFFF0000)
        parts.append(lax.bitcast_convert_type(bits, jnp.float32))
        x = x - parts[-1]
    return jnp.concatenate(parts, 1).astype(jnp.bfloat16)
