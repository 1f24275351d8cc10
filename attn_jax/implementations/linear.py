"""A linear map whose own derivatives are known, where JAX could not find them in its loops.

`linear` puts a map and its transpose into a program as one operation. Forward mode runs the one, reverse mode
the other, vmap maps both; the derivative by what the map depends on otherwise is that of a dense formula.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


class Linear(NamedTuple):
    """y = map(constants, x), x = transpose(constants, y); the dense ones are equal, in plain operations."""

    map: object
    transpose: object
    dense_map: object
    dense_transpose: object


def linear(f, constants, x):
    """f.map(constants, x), linear in x, for trees of arrays."""
    y = jax.eval_shape(f.map, constants, x)
    (constants, outer), (x, inner), result = (
        jax.tree.flatten(constants),
        jax.tree.flatten(x),
        jax.tree.structure(y),
    )

    def flat(map_, given):
        return lambda c, z: jax.tree.leaves(map_(outer.unflatten(c), given.unflatten(z)))

    f = Linear(*(flat(g, given) for g, given in zip(f, (inner, result, inner, result), strict=True)))
    return result.unflatten(linear_p.bind(*constants, *x, f=f, n=len(constants)))


linear_p = Primitive("linear")
linear_p.multiple_results = True


def _run(*args, f, n):
    return f.map(list(args[:n]), list(args[n:]))


def _abstract(*args, f, n):
    shapes = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in args)
    return [
        jax.core.ShapedArray(y.shape, y.dtype) for y in jax.eval_shape(lambda *x: _run(*x, f=f, n=n), *shapes)
    ]


def _jvp(primals, tangents, *, f, n):
    y = linear_p.bind(*primals, f=f, n=n)
    dx = [ad.instantiate_zeros(t) for t in tangents[n:]]
    dy = linear_p.bind(*primals[:n], *dx, f=f, n=n)
    moving = [i for i in range(n) if not isinstance(tangents[i], ad.Zero)]
    if moving:

        def dense(*moved):
            at = dict(zip(moving, moved, strict=True))
            return f.dense_map([at.get(i, c) for i, c in enumerate(primals[:n])], list(primals[n:]))

        _, more = jax.jvp(dense, [primals[i] for i in moving], [tangents[i] for i in moving])
        dy = [a + b for a, b in zip(dy, more, strict=True)]
    return y, dy


def _transpose(cotangents, *args, f, n):
    turned = Linear(f.transpose, f.map, f.dense_transpose, f.dense_map)
    x = linear_p.bind(*args[:n], *map(ad.instantiate_zeros, cotangents), f=turned, n=n)
    wanted = (z if ad.is_undefined_primal(arg) else None for z, arg in zip(x, args[n:], strict=True))
    return [None] * n + list(wanted)


def _batch(args, axes, *, f, n):
    size = next(x.shape[axis] for x, axis in zip(args, axes, strict=True) if axis is not None)
    args = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(args, axes, strict=True)]
    outer = [None if axis is None else 0 for axis in axes[:n]]
    inner = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else x
        for x, axis in zip(args[n:], axes[n:], strict=True)
    ]
    f = Linear(*(jax.vmap(g, in_axes=(outer, 0)) for g in f))
    y = linear_p.bind(*args[:n], *inner, f=f, n=n)
    return y, [0] * len(y)


linear_p.def_impl(_run)
linear_p.def_abstract_eval(_abstract)
mlir.register_lowering(linear_p, mlir.lower_fun(_run, multiple_results=True))
ad.primitive_jvps[linear_p] = _jvp
ad.primitive_transposes[linear_p] = _transpose
batching.primitive_batchers[linear_p] = _batch
