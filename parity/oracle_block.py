"""What surrounds attention, in float64 NumPy: norms, activations, rotary, linear maps, the MLP and the block.

Every operation is written once, as op(arithmetic, *inputs, **options) -> (output, vjp), where vjp maps the
cotangent of the output to those of the inputs, in their order. `evaluate` gives names to what comes out.
With EXACT for arithmetic this is the oracle; parity.montecarlo runs the same lines with roundings.

Axes: T positions, C channels, F hidden channels, D head size. Parameters are trees as the packages' functions
take them.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from parity.oracle import EXACT, Array, attention


def evaluate(op: Callable, inputs: dict, dout=None, arithmetic=EXACT, **options) -> dict[str, Array]:
    """The output of op as "out" and, with a cotangent dout, the gradient of each input as "d" + its name.

    inputs: name -> array, or -> tree of arrays; a tree's gradients are named by path, "dparams.attn.w_qkv".
    """
    out, vjp = op(arithmetic, *map(float64, inputs.values()), **options)
    found = {"out": out}
    if dout is not None:
        for name, gradient in zip(inputs, vjp(float64(dout)), strict=True):
            found |= flatten(gradient, f"d{name}")
    return found


def float64(tree):
    """The same tree with float64 arrays for leaves."""
    if isinstance(tree, dict):
        return {key: float64(branch) for key, branch in tree.items()}
    if isinstance(tree, (tuple, list)):
        return tuple(float64(branch) for branch in tree)
    return np.asarray(tree, np.float64)


def flatten(tree, name: str) -> dict[str, Array]:
    """Leaves by dotted path."""
    if isinstance(tree, (dict, tuple)):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {
            path: leaf for key, branch in items for path, leaf in flatten(branch, f"{name}.{key}").items()
        }
    return {name: tree}


def over_rows(x: Array) -> Array:
    """(..., C) -> (N, C)"""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def layer_norm(a, x, gain, bias, eps=1e-5):
    """(x - mean) / sqrt(var + eps) * gain + bias over the last axis, var biased.

    Source: Ba et al. 2016, eq. 4.
    """
    C = x.shape[-1]
    centred = a.computed(x - a.total(x, -1) / C)
    x_hat, normalised_vjp = normalised(a, centred, eps)
    y = a.output(a.computed(a.computed(x_hat * gain) + bias))

    def vjp(dy):
        dx_hat = a.computed(dy * gain)
        dx = normalised_vjp(dx_hat)
        dx = a.output(a.computed(dx - a.total(dx, -1) / C))
        return dx, summed(a, dy * x_hat), summed(a, dy)

    return y, vjp


def rms_norm(a, x, gain, eps=1e-6, offset=0.0):
    """x / sqrt(mean(x^2) + eps) * (offset + gain) over the last axis.

    Source: Zhang & Sennrich 2019, eq. 4.
    """
    x_hat, normalised_vjp = normalised(a, x, eps)
    y = a.output(a.computed(x_hat * a.computed(offset + gain)))

    def vjp(dy):
        return a.output(normalised_vjp(a.computed(dy * (offset + gain)))), summed(a, dy * x_hat)

    return y, vjp


def normalised(a, z, eps):
    """z_hat = z r, r = 1 / sqrt(mean(z^2) + eps). vjp: r (dy - z_hat mean(dy z_hat))."""
    C = z.shape[-1]
    r = a.computed(1.0 / np.sqrt(a.total(z * z, -1) / C + eps), 3)
    z_hat = a.computed(z * r)

    def vjp(dy):
        return a.computed(r * a.computed(dy - z_hat * (a.total(dy * z_hat, -1) / C), 2))

    return z_hat, vjp


def summed(a, rows: Array) -> Array:
    """The gradient of what was added to, or multiplied with, every row: (..., C) -> (C,)."""
    return a.output(a.reduced(over_rows(rows), 0)[0])


def pointwise(value_and_slope, a, x):
    """An activation, from its value and slope at x."""
    y, slope = value_and_slope(a, x)
    return a.output(y), lambda dy: (a.output(a.computed(dy * slope)),)


def gelu_parts(a, x):
    cdf = 0.5 * (1.0 + a.function(erf(x / math.sqrt(2.0))))
    pdf = a.function(np.exp(-0.5 * x * x)) / math.sqrt(2.0 * math.pi)
    return a.computed(x * cdf), a.computed(cdf + x * pdf, 2)


def gelu_tanh_parts(a, x):
    root = math.sqrt(2.0 / math.pi)
    t = a.function(np.tanh(root * (x + 0.044715 * x**3)))
    inner_slope = root * (1.0 + 3.0 * 0.044715 * x * x)
    slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner_slope
    return a.computed(0.5 * x * (1.0 + t)), a.computed(slope, 2)


def silu_parts(a, x):
    s = a.function(sigmoid(x))
    return a.computed(x * s), a.computed(s * (1.0 + x * (1.0 - s)), 2)


def relu_parts(a, x):
    return np.maximum(x, 0.0), (x > 0.0).astype(np.float64)


gelu = partial(pointwise, gelu_parts)  # x Phi(x), exact. Source: Hendrycks & Gimpel 2016
gelu_tanh = partial(pointwise, gelu_tanh_parts)
silu = partial(pointwise, silu_parts)
relu = partial(pointwise, relu_parts)  # of slope 0 at 0

erf = np.vectorize(math.erf, otypes=[np.float64])  # the C library's, accurate to the last place


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0.0, 1.0, e) / (1.0 + e)


def rotary(a, x, positions, theta=10000.0, rotary_dim=None, interleaved=False):
    """Turn each pair of channels by position * theta^(-2n/d), d = rotary_dim or D; leave channels from d on.

    x (..., T, D), positions broadcastable to (..., T). The vjp turns back.
    Source: Su et al. 2021, eq. 34.
    """
    d = x.shape[-1] if rotary_dim is None else rotary_dim
    first, second = pairs(d, interleaved)
    angle = np.asarray(positions, np.float64)[..., None] * theta ** (-np.arange(0, d, 2) / d)  # (..., T, d/2)
    cos, sin = a.stored(a.function(np.cos(angle))), a.stored(a.function(np.sin(angle)))

    def turn(x, sin):
        y = x.copy()
        y[..., first] = a.output(a.computed(x[..., first] * cos - x[..., second] * sin, 2))
        y[..., second] = a.output(a.computed(x[..., second] * cos + x[..., first] * sin, 2))
        return y

    return turn(x, sin), lambda dy: (turn(dy, -sin),)


def pairs(d: int, interleaved: bool) -> tuple[slice, slice]:
    """The two channels that turn together: (2n, 2n + 1) if interleaved, else (n, n + d/2)."""
    if interleaved:
        return slice(0, d, 2), slice(1, d, 2)
    return slice(0, d // 2), slice(d // 2, d)


def linear(a, x, w, b):
    """x w + b; x (..., C), w (C, F), b (F,)."""
    y = a.output(a.output(a.matmul(x, w)) + b)

    def vjp(dy):
        return a.output(a.matmul(dy, w.T)), a.weight_gradient(over_rows(x), over_rows(dy)), summed(a, dy)

    return y, vjp


def mlp(a, params, x, activation=gelu):
    """Two linear maps, an activation between. params: w_fc (C, F), b_fc (F,), w_proj (F, C), b_proj (C,)."""
    h, fc_vjp = linear(a, x, params["w_fc"], params["b_fc"])
    h, activation_vjp = activation(a, h)
    y, proj_vjp = linear(a, h, params["w_proj"], params["b_proj"])

    def vjp(dy):
        dh, dw_proj, db_proj = proj_vjp(dy)
        dx, dw_fc, db_fc = fc_vjp(*activation_vjp(dh))
        return {"w_fc": dw_fc, "b_fc": db_fc, "w_proj": dw_proj, "b_proj": db_proj}, dx

    return y, vjp


def causal_self_attention(a, params, x, n_head):
    """Multi-head causal attention. params: w_qkv (C, 3C), columns q | k | v; b_qkv, w_out (C, C), b_out."""
    qkv, qkv_vjp = linear(a, x, params["w_qkv"], params["b_qkv"])
    q, k, v = (heads(part, n_head) for part in np.split(qkv, 3, -1))  # (..., H, T, D)
    o = attention(q, k, v, causal=True, arithmetic=a)
    y, out_vjp = linear(a, merged(o.out), params["w_out"], params["b_out"])

    def vjp(dy):
        do, dw_out, db_out = out_vjp(dy)
        gradients = vars(o.vjp(heads(do, n_head), a))
        dqkv = np.concatenate([merged(gradients[name]) for name in ("dq", "dk", "dv")], -1)
        dx, dw_qkv, db_qkv = qkv_vjp(dqkv)
        return {"w_qkv": dw_qkv, "b_qkv": db_qkv, "w_out": dw_out, "b_out": db_out}, dx

    return y, vjp


def heads(x: Array, n_head: int) -> Array:
    """(..., T, C) -> (..., H, T, C/H)"""
    return x.reshape(*x.shape[:-1], n_head, -1).swapaxes(-3, -2)


def merged(x: Array) -> Array:
    """(..., H, T, D) -> (..., T, H D)"""
    x = x.swapaxes(-3, -2)
    return x.reshape(*x.shape[:-2], -1)


def block(a, params, x, n_head, eps=1e-5):
    """x + attention(norm(x)), then x + mlp(norm(x)). params: attn; ln1, ln2: (gain, bias); and the MLP's."""
    (gain1, bias1), (gain2, bias2) = params["ln1"], params["ln2"]
    h, ln1_vjp = layer_norm(a, x, gain1, bias1, eps)
    h, attn_vjp = causal_self_attention(a, params["attn"], h, n_head)
    x = a.output(x + h)
    h, ln2_vjp = layer_norm(a, x, gain2, bias2, eps)
    h, mlp_vjp = mlp(a, params, h)
    y = a.output(x + h)

    def vjp(dy):
        dmlp, dh = mlp_vjp(dy)
        dh, *dln2 = ln2_vjp(dh)
        dy = a.output(dy + dh)
        dattn, dh = attn_vjp(dy)
        dh, *dln1 = ln1_vjp(dh)
        return {"attn": dattn, "ln1": tuple(dln1), "ln2": tuple(dln2), **dmlp}, a.output(dy + dh)

    return y, vjp
