"""First derivatives that were written by hand, in forms that autograd, functorch and vmap can go on from."""

from functools import partial

import torch


class Linear(torch.autograd.Function):
    """tiled(plan, *tensors), with the derivatives of dense(plan, *tensors): equal, in plain operations."""

    @staticmethod
    def forward(tiled, dense, plan, *tensors):
        return tiled(plan, *tensors)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, dense, plan, *tensors = inputs
        ctx.dense = partial(dense, plan)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx, *cotangents):
        f, at, floats = of_floats(ctx.dense, ctx.saved_tensors)
        grads = dict(zip(at, torch.func.vjp(f, *floats)[1](cotangents), strict=True))
        return None, None, None, *map(grads.get, range(len(ctx.saved_tensors)))

    @staticmethod
    def jvp(ctx, _tiled, _dense, _plan, *tangents):
        f, at, floats = of_floats(ctx.dense, ctx.saved_tensors)
        moves = (
            torch.zeros_like(x) if tangents[i] is None else tangents[i]
            for i, x in zip(at, floats, strict=True)
        )
        return torch.func.jvp(f, tuple(floats), tuple(moves))[1]

    @staticmethod
    def vmap(info, in_dims, tiled, dense, plan, *tensors):
        return folded(partial(Linear.apply, tiled, dense, plan), info.batch_size, in_dims[3:], tensors)


def of_floats(f, tensors):
    """f as a function of the floating-point ones of its tensors, their places, and they themselves."""
    at = [i for i, x in enumerate(tensors) if x is not None and x.is_floating_point()]

    def of(*floats):
        filled = list(tensors)
        for i, x in zip(at, floats, strict=True):
            filled[i] = x
        return tuple(f(*filled))

    return of, at, [tensors[i] for i in at]


def folded(f, n, in_dims, tensors):
    """vmap of f as one call with n times the batch, the first axis of every tensor, where 1 stands for all.

    f(q, k, v, bias, ...) returns tensors like q, k, v, bias, or as large as the batch.
    """
    sizes = [
        None if x is None else x.movedim(axis or 0, 0).shape[axis is not None]
        for x, axis in zip(tensors, in_dims, strict=True)
    ]
    B = sizes[0]

    def fold(x, axis):
        if x is None:
            return None
        x = x.expand(n, *x.shape) if axis is None else x.movedim(axis, 0)
        return x.expand(n, B, *x.shape[2:]).flatten(0, 1)

    def unfold(i, y):
        y = y.unflatten(0, (n, B))
        return y.sum(1, keepdim=True) if i == 3 and sizes[3] == 1 else y

    results = f(*map(fold, tensors, in_dims))
    return tuple(unfold(i, y) for i, y in enumerate(results)), (0,) * len(results)
