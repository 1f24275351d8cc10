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


def linear(a, x, w, b=None):
    """x w + b; x (..., C), w (C, F), b (F,), or none."""
    y = a.output(a.matmul(x, w))
    if b is not None:
        y = a.output(y + b)

    def vjp(dy):
        dx, dw = a.output(a.matmul(dy, w.T)), a.weight_gradient(over_rows(x), over_rows(dy))
        return (dx, dw) if b is None else (dx, dw, summed(a, dy))

    return y, vjp


def projection(a, params, name, x):
    """linear by params' w_name, and b_name if there is one. vjp: dx, and the gradients under their names."""
    names = [key for key in (f"w_{name}", f"b_{name}") if key in params]
    y, vjp = linear(a, x, *(params[key] for key in names))

    def named(dy):
        dx, *gradients = vjp(dy)
        return dx, dict(zip(names, gradients, strict=True))

    return y, named


def chain(x, steps):
    """Steps one after another, each x -> (y, vjp), vjp: dy -> (dx, gradients by name). A step too."""
    pulls = []
    for step in steps:
        x, pull = step(x)
        pulls.append(pull)

    def vjp(dy):
        gradients = {}
        for pull in reversed(pulls):
            dy, more = pull(dy)
            gradients |= more
        return dy, gradients

    return x, vjp


def mlp(a, params, x, activation=gelu):
    """Two linear maps, an activation between. params: w_fc (C, F), b_fc (F,), w_proj (F, C), b_proj (C,).

    With w_gate (C, F), b_gate it is activation(x w_gate + b_gate) (x w_fc + b_fc). Each b may be left out.
    Source: Shazeer 2020, eq. 6.
    """
    h, fc_vjp = projection(a, params, "fc", x)
    gated = "w_gate" in params
    gate, gate_vjp = projection(a, params, "gate", x) if gated else (h, fc_vjp)
    active, activation_vjp = activation(a, gate)
    y, proj_vjp = projection(a, params, "proj", a.output(active * h) if gated else active)

    def vjp(dy):
        dh, gradients = proj_vjp(dy)
        if not gated:
            dx, more = fc_vjp(*activation_vjp(dh))
            return gradients | more, dx
        dx, more = fc_vjp(a.output(dh * active))
        dx_gate, most = gate_vjp(*activation_vjp(a.output(dh * h)))
        return gradients | more | most, a.output(dx + dx_gate)

    return y, vjp


def multi_head_attention(
    a, params, x, n_head, qk_norm="none", norm="layer", eps=None, offset=0.0, turn=None, **options
):
    """Multi-head attention of x to itself; options: parity.oracle.attention's.

    params: w_qkv (C, (H + 2 Hkv) D), columns q | k | v; w_out (H D, C); b_qkv, b_out, each possibly left out;
    q_norm and k_norm for qk_norm "head" (each head's own) or "all" (all heads as one vector).
    turn: rotary's options; q and k are turned after they are normalised.
    """
    width = len(params["w_out"])
    qkv, qkv_vjp = projection(a, params, "qkv", x)
    kv_width = (qkv.shape[-1] - width) // 2
    q, k, v = np.split(qkv, [width, width + kv_width], -1)

    def split(t):
        return heads(t, t.shape[-1] * n_head // width), lambda dt: (merged(dt), {})

    def turned(t):
        y, vjp = rotary(a, t, **turn)
        return y, lambda dy: (*vjp(dy), {})

    def prepared(t, name):
        normed = [lambda t: named_norm(a, params, name, t, norm, eps, offset)] if qk_norm != "none" else []
        order = [*normed, split] if qk_norm == "all" else [split, *normed]
        return chain(t, [*order, turned] if turn is not None else order)

    q, q_vjp = prepared(q, "q_norm")  # (..., H, T, D)
    k, k_vjp = prepared(k, "k_norm")
    o = attention(q, k, split(v)[0], arithmetic=a, **options)
    y, out_vjp = projection(a, params, "out", merged(o.out))

    def vjp(dy):
        do, gradients = out_vjp(dy)
        back = vars(o.vjp(heads(do, n_head), a))
        (dq, by_q), (dk, by_k) = q_vjp(back["dq"]), k_vjp(back["dk"])
        dx, by_qkv = qkv_vjp(np.concatenate([dq, dk, merged(back["dv"])], -1))
        return gradients | by_q | by_k | by_qkv, dx

    return y, vjp


def causal_self_attention(a, params, x, n_head, **options):
    """multi_head_attention, causal."""
    return multi_head_attention(a, params, x, n_head, causal=True, **options)


def heads(x: Array, n_head: int) -> Array:
    """(..., T, H D) -> (..., H, T, D)"""
    return x.reshape(*x.shape[:-1], n_head, -1).swapaxes(-3, -2)


def merged(x: Array) -> Array:
    """(..., H, T, D) -> (..., T, H D)"""
    x = x.swapaxes(-3, -2)
    return x.reshape(*x.shape[:-2], -1)


def named_norm(a, params, name, x, norm, eps, offset):
    """The norm of params' name, a step of a chain. norm: "layer", with a bias or without, or "rms"."""
    vectors = params[name]
    if norm == "rms":
        y, vjp = rms_norm(a, x, vectors[0], 1e-6 if eps is None else eps, offset)
    else:
        gain, bias = vectors if len(vectors) == 2 else (*vectors, np.zeros(vectors[0].shape))
        y, vjp = layer_norm(a, x, gain, bias, 1e-5 if eps is None else eps)

    def named(dy):
        dx, *gradients = vjp(dy)
        return dx, {name: tuple(gradients[: len(vectors)])}

    return y, named


def block(
    a,
    params,
    x,
    n_head,
    eps=None,
    norm="layer",
    offset=0.0,
    placement="pre",
    parallel=False,
    activation=gelu,
    **options,
):
    """x + attention(norm(x)), then x + mlp(norm(x)). params: attn; ln1, ln2: (gain, bias); and the MLP's.

    placement: "pre"; "post", norm(x + f(x)); "output", x + norm(f(x)); "sandwich", x + norm(f(norm(x))) with
    ln1_post, ln2_post. parallel: both branches read the same x. options: multi_head_attention's.
    """
    norms = {"norm": norm, "eps": eps, "offset": offset}

    def normed(name):
        return lambda x: named_norm(a, params, name, x, **norms)

    def attn(x):
        y, vjp = multi_head_attention(a, params["attn"], x, n_head, **{"causal": True, **norms, **options})

        def named(dy):
            gradients, dx = vjp(dy)
            return dx, {"attn": gradients}

        return y, named

    def feed(x):
        y, vjp = mlp(a, params, x, activation)
        return y, lambda dy: vjp(dy)[::-1]

    def residual(**branches):
        def step(x):
            y, pulls = x, []
            for name, f in branches.items():
                before = [normed(name)] if placement in ("pre", "sandwich") else []
                after = {"output": [normed(name)], "sandwich": [normed(f"{name}_post")]}.get(placement, [])
                h, pull = chain(x, [*before, f, *after])
                y = a.output(y + h)
                pulls.append(pull)

            def vjp(dy):
                dx, gradients = dy, {}
                for pull in pulls:
                    dh, more = pull(dy)
                    dx, gradients = a.output(dx + dh), gradients | more
                return dx, gradients

            return y, vjp

        last = [normed(name) for name in branches] if placement == "post" else []
        return lambda x: chain(x, [step, *last])

    y, vjp = chain(
        x, [residual(ln1=attn, ln2=feed)] if parallel else [residual(ln1=attn), residual(ln2=feed)]
    )
    return y, lambda dy: vjp(dy)[::-1]
