"""Norms, GELU, rotary positions and the block as they should be, in steps that a mutant replaces.

Forward and backward are written out, as in parity.mutants.attention.
Axes: B batch, H heads, T positions, D head size, C channels.
"""

import math
from typing import Any

import numpy as np

from parity.mutants.arrays import Arrays


class Layer:
    """What the layers share: inputs as native arrays, results as NumPy ones."""

    floats: tuple[str, ...] = ("x", "gain", "bias", "dout")

    def __init__(self, arrays: Arrays, inputs: dict, dtype: str):
        self.arrays, self.xp, self.inputs = arrays, arrays.xp, inputs
        self.dtype, self.work = dtype, "float64" if dtype == "float64" else "float32"

    def run(self) -> dict[str, np.ndarray]:
        """out and the gradient of every input that has one, named d + its name."""
        with self.arrays.settings(), np.errstate(all="ignore"):
            found = {name: self.store(x) for name, x in self.results(self.load(self.inputs)).items()}
            return {name: np.asarray(self.arrays.numpy(x), np.float64) for name, x in found.items()}

    def results(self, t: dict) -> dict:
        """From the native tensors t, by name, to out and the gradients."""
        raise NotImplementedError

    def load(self, inputs):
        """The float inputs as native arrays."""
        return {name: self.native(x) if name in self.floats else x for name, x in inputs.items()}

    def native(self, x):
        return self.arrays.array(x, self.work)

    def store(self, x):
        return self.arrays.rounded(x, self.dtype)

    def mean(self, x):
        """Over the last axis, which stays with size 1."""
        return self.xp.mean(x, -1, keepdims=True)

    def sum_rows(self, x):
        """(..., C) -> (C,)"""
        return self.xp.sum(x.reshape(-1, x.shape[-1]), 0)


class LayerNorm(Layer):
    """(x - mean) / sqrt(var + eps) * gain + bias, eps = 1e-5. x, dout (N, C); gain, bias (C,)."""

    operator = "layer_norm"

    def results(self, t):
        gain, dout = self.gain(t["gain"]), t["dout"]
        x_hat, r = self.normalise(t["x"])
        dx_hat = dout * gain
        out = x_hat * gain + self.bias(t["bias"])
        dgain, dbias = self.sum_rows(dout * x_hat), self.sum_rows(dout)
        return {"out": out, "dx": self.dx(dx_hat, x_hat, r), "dgain": dgain, "dbias": dbias}

    def normalise(self, x):
        """x_hat and 1 / sqrt(var + eps)."""
        centred = x - self.centre(x)
        r = self.inverse_root(self.variance(x, centred))
        return centred * r, r

    def centre(self, x):
        return self.mean(x)

    def variance(self, x, centred):
        return self.mean(centred * centred)

    def eps(self):
        return 1e-5

    def inverse_root(self, var):
        return 1 / self.xp.sqrt(var + self.eps())

    def gain(self, gain):
        return gain

    def bias(self, bias):
        return bias

    def dx(self, dx_hat, x_hat, r):
        return r * (dx_hat - self.mean(dx_hat) - x_hat * self.mean(dx_hat * x_hat))


class RMSNorm(LayerNorm):
    """x / sqrt(mean(x^2) + eps) * (offset + gain), eps = 1e-6. x, dout (N, C); gain (C,)."""

    operator = "rms_norm"

    def results(self, t):
        dout, scale = t["dout"], self.offset_gain(t["offset"], t["gain"])
        x_hat, r = self.normalise(t["x"])
        dx = self.dx(dout * scale, x_hat, r)
        return {"out": x_hat * scale, "dx": dx, "dgain": self.sum_rows(dout * x_hat)}

    def centre(self, x):
        return 0.0

    def eps(self):
        return 1e-6

    def offset_gain(self, offset, gain):
        return offset + gain

    def dx(self, dx_hat, x_hat, r):
        return r * (dx_hat - x_hat * self.mean(dx_hat * x_hat))


class Gelu(Layer):
    """x times the normal distribution's cdf. x, dout of one shape."""

    operator = "gelu"

    def results(self, t):
        return {"out": self.value(t["x"]), "dx": t["dout"] * self.slope(t["x"])}

    def value(self, x):
        return x * self.cdf(x)

    def slope(self, x):
        return self.cdf(x) + x * self.density(x)

    def cdf(self, x):
        return 0.5 * (1 + self.arrays.erf(x / math.sqrt(2)))

    def density(self, x):
        return self.xp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


class Rotary(Layer):
    """Pairs (x[d], x[d + D/2]) turned by position / theta^(2d/D), theta = 1e4. x (T, D); positions (T,).

    The angles are NumPy, in float64.
    """

    operator = "rotary"

    def results(self, t):
        D = t["x"].shape[-1]
        frequencies = self.theta() ** (-np.arange(0, D, 2) / self.frequency_span(D))
        angle = self.angles(self.positions(t["positions"])[:, None] * frequencies)  # (T, D / 2)
        cos, sin = self.native(np.cos(angle)), self.native(np.sin(angle))
        out, dx = self.turn(t["x"], cos, sin), self.turn(t["dout"], cos, self.backward_sign() * sin)
        return {"out": out, "dx": dx}

    def theta(self):
        return 1e4

    def frequency_span(self, D):
        return D

    def positions(self, positions):
        return positions

    def angles(self, angle):
        return angle

    def turn(self, x, cos, sin):
        first, second = self.halves(x)
        return self.join(first * cos - second * sin, second * cos + first * sin)

    def halves(self, x):
        half = x.shape[-1] // 2
        return x[..., :half], x[..., half:]

    def join(self, first, second):
        return self.xp.concatenate([first, second], -1)

    def backward_sign(self):
        return -1.0


class Block(Layer):
    """x + attention(norm(x)), then x + mlp(norm(x)), causal. x, dout (B, T, C); params: make_block's tree."""

    operator = "block"

    def load(self, inputs):
        weights = {name: self.native(x) for name, x in flatten(inputs["params"]).items()}
        return super().load({name: x for name, x in inputs.items() if name != "params"}) | weights

    def results(self, t):
        w, store, self.n_head = t, self.store, t["n_head"]
        x, dout = t["x"], t["dout"]
        h, back_ln1 = self.norm(x, w["ln1_gain"], w["ln1_bias"])
        q, k, v = self.heads(store(h @ w["w_qkv"] + w["b_qkv"]))
        y, back_attention = self.attention(q, k, v)
        y = store(self.merge(y))
        x1 = self.residual(x, store(y @ w["w_out"] + self.output_bias(w["b_out"])), h)
        h2, back_ln2 = self.second_norm(x, x1, w)
        f = store(h2 @ w["w_fc"] + w["b_fc"])
        g = store(self.activation(f))
        out = self.residual(x1, store(g @ w["w_proj"] + w["b_proj"]), h2)
        d = {}
        dg, d["w_proj"], d["b_proj"] = self.linear_backward(dout, g, w["w_proj"])
        df = store(dg * self.activation_slope(f))
        dh2, d["w_fc"], d["b_fc"] = self.linear_backward(df, h2, w["w_fc"])
        dx1, d["ln2_gain"], d["ln2_bias"] = back_ln2(dh2)
        dx1 = self.residual_backward(dout, dx1)
        dy, d["w_out"], d["b_out"] = self.linear_backward(dx1, y, w["w_out"])
        dqkv = store(self.unheads(*back_attention(self.unmerge(dy))))
        dh, d["w_qkv"], d["b_qkv"] = self.linear_backward(dqkv, h, w["w_qkv"])
        dx, d["ln1_gain"], d["ln1_bias"] = back_ln1(dh)
        gradients = {f"dparams.{PATHS[name]}": gradient for name, gradient in d.items()}
        return {"out": out, "dx": self.residual_backward(dx1, dx), **gradients}

    def norm(self, x, gain, bias):
        """layer_norm of x and its backward: dh -> dx, dgain, dbias."""
        layer = LayerNorm(self.arrays, {}, self.dtype)
        x_hat, r = self.normalise(layer, x)

        def backward(dh):
            dx = layer.dx(dh * gain, x_hat, r)
            return self.store(dx), self.sum_rows(dh * x_hat), self.sum_rows(dh)

        return self.store(x_hat * gain + bias), backward

    def normalise(self, layer, x):
        return layer.normalise(x)

    def second_norm(self, x, x1, w):
        return self.norm(x1, w["ln2_gain"], w["ln2_bias"])

    def residual(self, x, delta, h):
        """h is the normalised stream that the sublayer has read."""
        return self.store(x + delta)

    def output_bias(self, bias):
        return bias

    def residual_backward(self, dout, dx):
        return self.store(dout + dx)

    def linear_backward(self, dy, x, weight):
        """dx, dweight, dbias of x @ weight + bias. dy (B, T, out), x (B, T, in), weight (in, out)."""
        flat_x, flat_dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        return self.store(dy @ weight.mT), flat_x.mT @ flat_dy, self.sum_rows(dy)

    def split(self, qkv):
        """(B, T, 3C) -> q, k, v, each (B, T, C)"""
        C = qkv.shape[-1] // 3
        return qkv[..., :C], qkv[..., C : 2 * C], qkv[..., 2 * C :]

    def heads(self, qkv):
        return tuple(self.unmerge(x) for x in self.split(qkv))

    def unheads(self, dq, dk, dv):
        return self.xp.concatenate([self.merge(x) for x in (dq, dk, dv)], -1)

    def unmerge(self, x):
        """(B, T, C) -> (B, H, T, D)"""
        B, T, C = x.shape
        return self.xp.swapaxes(x.reshape(B, T, self.n_head, C // self.n_head), 1, 2)

    def merge(self, x):
        """(B, H, T, D) -> (B, T, C)"""
        B, H, T, D = x.shape
        return self.xp.swapaxes(x, 1, 2).reshape(B, T, H * D)

    def attention(self, q, k, v):
        """Causal attention and its backward: dy -> dq, dk, dv. All (B, H, T, D)."""
        scale = self.scale(q.shape[-1])
        s = self.xp.where(self.arrays.array(self.visible(q.shape[-2]), "bool"), (q @ k.mT) * scale, -np.inf)
        e = self.xp.exp(s - self.xp.amax(s, -1, keepdims=True))
        p = e / self.xp.sum(e, -1, keepdims=True)
        y = self.store(p @ v)

        def backward(dy):
            dp = dy @ v.mT
            ds = p * (dp - self.delta(dy, y))
            return (ds @ k) * scale, (ds.mT @ q) * scale, p.mT @ dy

        return y, backward

    def scale(self, D):
        return 1 / math.sqrt(D)

    def visible(self, T):
        return np.tri(T, dtype=bool)

    def delta(self, dy, y):
        return self.xp.sum(dy * y, -1, keepdims=True)

    def activation(self, f):
        return Gelu(self.arrays, {}, self.dtype).value(f)

    def activation_slope(self, f):
        return Gelu(self.arrays, {}, self.dtype).slope(f)


def flatten(params: dict) -> dict[str, np.ndarray]:
    """The parameters of make_block by short names, the keys of PATHS."""
    flat = {}
    for name, path in PATHS.items():
        leaf: Any = params
        for key in path.split("."):
            leaf = leaf[int(key) if key.isdigit() else key]
        flat[name] = leaf
    return flat


PATHS = {  # short name -> path in the tree
    "ln1_gain": "ln1.0",
    "ln1_bias": "ln1.1",
    "w_qkv": "attn.w_qkv",
    "b_qkv": "attn.b_qkv",
    "w_out": "attn.w_out",
    "b_out": "attn.b_out",
    "ln2_gain": "ln2.0",
    "ln2_bias": "ln2.1",
    "w_fc": "w_fc",
    "b_fc": "b_fc",
    "w_proj": "w_proj",
    "b_proj": "b_proj",
}
