"""Normalisation over the last axis: by mean and variance, or by the mean square alone.

The arithmetic is float32 at least (float64 for float64); only the result is rounded to x's dtype.
Axis: C channels.
"""

import jax.numpy as jnp
from jax import Array

from . import checks
from .arithmetic import accumulator, describe


def layer_norm(x: Array, gain: Array, bias: Array | None, eps=1e-5) -> Array:
    """Layer normalisation over the last axis.

    y = (x - mean(x)) / sqrt(var(x) + eps) * gain + bias; var(x), biased, is the mean square of x - mean(x).

    x: (..., C) float16/bfloat16/float32/float64.  gain, bias: (C,); a bias may be None.
    Returns (..., C) in x's dtype.
    Raises ValueError if gain or bias is not (C,), TypeError if one is wider than the arithmetic or no float.
    Source: Ba, Kiros & Hinton 2016, eq. 4.
    """
    checks.epsilon(eps)
    x_hat, gain, bias = _widened(x, gain=gain, bias=bias)
    x_hat = x_hat - jnp.mean(x_hat, -1, keepdims=True)  # before squaring: mean(x^2) - mean(x)^2 cancels
    var = jnp.mean(x_hat * x_hat, -1, keepdims=True)  # (..., 1)
    y = x_hat / jnp.sqrt(var + eps) * gain
    return (y if bias is None else y + bias).astype(x.dtype)


def rms_norm(x: Array, gain: Array, eps=1e-6, *, offset=0.0) -> Array:
    """Root-mean-square normalisation over the last axis.

    y = x / sqrt(mean(x^2) + eps) * (offset + gain).

    x: (..., C) float16/bfloat16/float32/float64.  gain: (C,).
    offset: 1.0 where the gain is stored as its distance from one; added in the dtype of the arithmetic.
    Returns (..., C) in x's dtype.
    Raises ValueError if gain is not (C,), TypeError if it is wider than the arithmetic or no float.
    Source: Zhang & Sennrich 2019, eq. 4.
    """
    checks.epsilon(eps)
    x_hat, gain = _widened(x, gain=gain)
    mean_square = jnp.mean(x_hat * x_hat, -1, keepdims=True)  # (..., 1)
    return (x_hat / jnp.sqrt(mean_square + eps) * (offset + gain)).astype(x.dtype)


def normalise(x: Array, params, *, norm="layer", norm_offset=0.0, eps=None) -> Array:
    """layer_norm ("layer") or rms_norm ("rms") of x, each with its own eps if that is None.

    x: (..., C). params: (gain, bias), or (gain,) alone. norm_offset: the offset of rms_norm.
    """
    given = {} if eps is None else {"eps": eps}
    if norm == "rms":
        return rms_norm(x, *params, offset=norm_offset, **given)
    gain, bias = params if len(params) == 2 else (*params, None)
    return layer_norm(x, gain, bias, **given)


def _widened(x, **vectors):
    """x in the dtype of the arithmetic, and each vector (C,) as (..., C) in it too, if that is exact."""
    checks.array("x", describe(x))
    dtype = accumulator(x.dtype)
    if dtype not in (jnp.float32, jnp.float64):
        raise TypeError(f"x: got dtype {describe(x).dtype}, wanted float16, bfloat16, float32 or float64")
    wide = [x.astype(dtype)]
    for name, vector in vectors.items():
        if vector is None:
            wide.append(None)
            continue
        got, axis = describe(vector), tuple(x.shape[-1:])
        checks.array(name, got)
        if got.shape != axis:
            raise ValueError(f"{name}: got shape {got.shape}, wanted {axis}, the last axis of x")
        if accumulator(vector.dtype) not in (jnp.float32, dtype):
            raise TypeError(f"{name}: got dtype {got.dtype}, wanted {describe(x).dtype}, the dtype of x")
        wide.append(jnp.broadcast_to(vector.astype(dtype), x.shape))
    return wide
