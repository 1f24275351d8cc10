"""The arithmetic of the contract: what sums are held in, and float32 products that are float32 everywhere.

What the mathematics needs and the two frameworks spell differently is here: the other files read alike.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from .checks import INTEGERS, Spec

# A name of the contract -> what jax calls it. A device without that mode computes in float32.
MODES = {None: "float32", "float32": "float32", "tensorfloat32": "tensorfloat32", "bfloat16": "bfloat16"}
INDEX = jnp.int32  # dtype of positions, lengths and segment ids


def describe(x):
    """The Spec of an array of this framework, with the extremes of integers; anything else as it is."""
    if not isinstance(x, Array):
        return x
    spec = Spec(tuple(x.shape), x.dtype.name)
    if spec.dtype not in INTEGERS or isinstance(x, jax.core.Tracer) or not x.size:
        return spec
    x = jax.device_get(x)  # x.min() would be traced where a jitted function closes over x
    return spec._replace(low=int(x.min()), high=int(x.max()))


def known(x):
    """The integers of x (n,) as a list, where they can be read without waiting; None elsewhere."""
    return None if isinstance(x, jax.core.Tracer) else jax.device_get(x).tolist()


def accumulator(dtype):
    """float32 for float16 and bfloat16, else dtype itself."""
    return jnp.float32 if dtype in (jnp.float16, jnp.bfloat16) else dtype


def iota(n, like):
    """0 ... n - 1 as (n,) integers on the device of `like`."""
    return jnp.arange(n, dtype=INDEX)


def constant(values, dtype, like):
    """Numbers as a vector (n,) of dtype, on the device of `like`."""
    return jnp.array(values, dtype)


def index(x, furthest):
    """x as positions, cut to what they can be; what lies further is as far."""
    return jnp.clip(x, -furthest, furthest).astype(INDEX)


def label(x):
    """x, integers of any dtype, as something of which equal ones are equal."""
    return x


def take(x, axis, start, size):
    """x[start : start + size] along axis; an axis of size 1 stands for all of it and stays."""
    return x if x.shape[axis] == 1 else lax.dynamic_slice_in_dim(x, start, size, axis)


def rows(table, index):
    """Those rows (..., C) of a table (N, C) that integers (...) below N name; others are NaN."""
    at = table.at[index.astype(INDEX)]
    return at.get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)


def append_zero(x, axis):
    """x with one more entry along axis, of zeros."""
    return jnp.concatenate((x, jnp.zeros_like(x.sum(axis, keepdims=True), dtype=x.dtype)), axis)


def stop_gradient(x):
    """x, as a constant."""
    return lax.stop_gradient(x)


def einsum(equation, x, y, precision=None):
    """jnp.einsum of two operands, in float32 for float32, unless `precision` asks for less.

    precision: None or "float32" (full), "tensorfloat32", "bfloat16". It overrules the global switches, also
      in the backward.
    No index may be repeated within an operand or summed within one alone. Returns (...) in x's dtype.
    """
    return jnp.einsum(equation, x, y, precision=MODES[precision])
