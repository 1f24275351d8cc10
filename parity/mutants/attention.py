"""Attention as it should be, in steps that a mutant replaces one at a time, in any framework's arithmetic.

Forward and backward are written out, so that a slip of either is one line. Float16 and bfloat16 are stored;
the work is done in float32 (float64 for float64), as the contract says. What positions alone decide (what a
query sees, which weights dropout keeps) is NumPy; all that rounds is the framework's.

Axes: B batch, H kv heads, G query heads per kv head, Tq/Tk positions, D head size, Dv value size.
"""

import math

import numpy as np

from parity.inputs import Inputs
from parity.mutants.arrays import Arrays
from parity.oracle import threefry2x32

NEG_INF = float("-inf")


class Attention:
    """One call: `Attention(arrays, inputs, dtype).run()` gives out, lse and the gradients as NumPy arrays."""

    operator = "attention"

    def __init__(self, arrays: Arrays, inputs: Inputs, dtype: str):
        self.arrays, self.xp, self.inputs, self.options = arrays, arrays.xp, inputs, inputs.options
        self.dtype, self.work = dtype, "float64" if dtype == "float64" else "float32"
        self.batch, self.heads = inputs.q.shape[:-3], inputs.q.shape[-3:-2]
        self.kv_heads = inputs.k.shape[-3:-2]
        self.Tq, self.D = inputs.q.shape[-2:]
        self.Tk, self.Dv = inputs.v.shape[-2:]
        self.B, self.Hq, self.H = math.prod(self.batch), math.prod(self.heads), math.prod(self.kv_heads)
        self.G = self.Hq // self.H
        self.i = np.arange(self.Tq).reshape(1, 1, 1, -1, 1)
        self.j = np.arange(self.Tk).reshape(1, 1, 1, 1, -1)

    def run(self) -> dict[str, np.ndarray]:
        """out, lse, dq, dk, dv, and dbias and dsinks where there are any; shaped as in the contract."""
        with self.arrays.settings(), np.errstate(all="ignore"):
            self.seen = np.broadcast_to(self.visible(), (self.B, self.H, self.G, self.Tq, self.Tk))
            self.kept = self.keep() if self.options.get("dropout_p") else None
            q, k, v, dout = self.guard(*(self.load(name) for name in ("q", "k", "v", "dout")))
            out, lse = self.attend(q, k, v)
            out = self.store(out)
            return self.collect(out=out, lse=lse, **self.backward(q, k, v, dout, out, lse))

    # ---- arrays in and out

    def head_order(self):
        """The query heads, such that each group of G reads one kv head."""
        return np.arange(self.Hq)

    def load(self, name):
        """(*batch, Hq, T, X) -> (B, H, G, T, X), or with H for Hq -> (B, H, 1, T, X); native."""
        x = self.read(name)
        if name in ("k", "v"):
            return self.native(x.reshape(self.B, self.H, 1, *x.shape[-2:]))
        per_head = x.reshape(self.B, self.Hq, *x.shape[-2:])[:, self.head_order()]
        return self.native(per_head.reshape(self.B, self.H, self.G, *x.shape[-2:]))

    def read(self, name):
        return getattr(self.inputs, name)

    def native(self, x):
        return self.arrays.array(x, "bool" if np.asarray(x).dtype == bool else self.work)

    def pairs(self, x):
        """What broadcasts to (*batch, Hq, Tq, Tk) -> (B, H, G, Tq, Tk), NumPy."""
        full = np.broadcast_to(x, (*self.batch, *self.heads, self.Tq, self.Tk))
        per_head = full.reshape(self.B, self.Hq, self.Tq, self.Tk)[:, self.head_order()]
        return per_head.reshape(self.B, self.H, self.G, self.Tq, self.Tk)

    def collect(self, **tensors):
        """Native (B, H, G, T, X) to NumPy in the contract's shapes."""
        found = {}
        for name, x in tensors.items():
            x = np.asarray(self.arrays.numpy(x), np.float64)
            if name in ("out", "lse", "dq"):
                per_head = x.reshape(self.B, self.Hq, *x.shape[3:])[:, np.argsort(self.head_order())]
                x = per_head.reshape(*self.batch, *self.heads, *x.shape[3:])
                x = x[..., 0] if name == "lse" else x
            elif name in ("dk", "dv"):
                x = x.reshape(*self.batch, *self.kv_heads, *x.shape[3:])
            found[name] = x
        return found

    def store(self, x):
        return self.arrays.rounded(x, self.dtype)

    def guard(self, q, k, v, dout):
        """Zero what has no part in the result: 0 times NaN is NaN."""
        return self.drop_blind(q), self.drop_unread(k), self.drop_unread(v), self.drop_blind(dout)

    def drop_blind(self, x):  # (B, H, G, Tq, X)
        return self.xp.where(self.native(self.seen.any(-1, keepdims=True)), x, 0.0)

    def drop_unread(self, x):  # (B, H, 1, Tk, X)
        read = np.any(self.seen, axis=(2, 3), keepdims=True).mT
        return self.xp.where(self.native(read), x, 0.0)

    # ---- what a query sees: NumPy, (B | 1, H | 1, G | 1, Tq | 1, Tk | 1) bool

    def visible(self):
        by_position = self.causal() & self.window() & self.lengths() & self.segments()
        return by_position & self.mask() & self.bias_shows()

    def per_batch(self, name, default):
        return np.asarray(self.options.get(name, default)).reshape(-1, 1, 1, 1, 1)

    def q_lengths(self):
        return self.per_batch("q_lengths", self.Tq)

    def kv_lengths(self):
        return self.per_batch("kv_lengths", self.Tk)

    def offset(self):
        if isinstance(self.options.get("q_offset"), str):  # "bottom_right"
            return self.bottom_right()
        return self.per_batch("q_offset", 0)

    def bottom_right(self):
        return self.kv_lengths() - self.q_lengths()

    def causal(self):
        return self.j <= self.i + self.offset() if self.options.get("causal") else np.True_

    def window_sides(self):
        window = self.options.get("window", (None, None))
        return (window, window) if isinstance(window, int) else window

    def window(self):
        left, right = self.window_sides()
        at = self.i + self.offset()
        seen = np.True_ if left is None else self.j >= at - left
        return seen if right is None else seen & (self.j <= at + right)

    def lengths(self):
        return (self.i < self.q_lengths()) & (self.j < self.kv_lengths())

    def segments(self):
        if "q_segment_ids" not in self.options:
            return np.True_
        q_ids = self.options["q_segment_ids"].reshape(-1, 1, 1, self.Tq, 1)
        return q_ids == self.options["kv_segment_ids"].reshape(-1, 1, 1, 1, self.Tk)

    def mask(self):
        return self.pairs(self.options["mask"]) if "mask" in self.options else np.True_

    def bias_hides(self):
        return self.pairs(self.options["bias"]) == NEG_INF

    def bias_shows(self):
        return ~self.bias_hides() if "bias" in self.options else np.True_

    # ---- dropout: NumPy, (B, H, G, Tq, Tk) bool

    def keep(self):
        if "dropout_mask" in self.options:
            return self.pairs(self.options["dropout_mask"])
        word = self.word((self.options["dropout_seed"], self.stream()), (self.i, self.j))
        return word >= np.uint32(math.floor(self.options["dropout_p"] * 2.0**32))

    def stream(self):
        """The second key word: b * Hq + h."""
        heads = np.arange(self.B * self.Hq).reshape(self.B, self.Hq)[:, self.head_order()]
        return heads.reshape(self.B, self.H, self.G, 1, 1)

    def word(self, key, counter):
        return threefry2x32(key, counter)[0]

    def drop(self, p):
        """Normalised weights after dropout."""
        return p if self.kept is None else self.xp.where(self.native(self.kept), p * self.gain(), 0.0)

    def gain(self):
        return 1 / (1 - self.options["dropout_p"])

    # ---- scores

    def score(self, q, k):  # (B, H, G, Tq, Tk)
        return self.hide(self.add_bias(self.cap(self.scaled(self.product(q, k)))))

    def product(self, q, k):
        return q @ k.mT

    def scale(self):
        scale = self.options.get("scale")
        return 1 / math.sqrt(max(self.D, 1)) if scale is None else scale

    def scaled(self, product):
        return product * self.scale()

    def cap(self, s):
        c = self.options.get("softcap")
        return s if c is None else c * self.xp.tanh(s / c)

    def bias(self):
        """(B, H, G, Tq, Tk) native, 0 where it is -inf: hide() is for those."""
        return self.native(np.where(self.bias_hides(), 0.0, self.pairs(self.options["bias"])))

    def add_bias(self, s):
        return s + self.bias() if "bias" in self.options else s

    def hide(self, s):
        return self.xp.where(self.native(self.seen), s, NEG_INF)

    def sinks(self, s):
        """One sink for each row of s, -inf without sinks: (B, H, G, Tq, 1)."""
        sinks = self.options.get("sinks", np.full(self.Hq, NEG_INF))[self.head_order()]
        shape = (self.B, self.H, self.G, self.Tq, 1)
        return self.xp.broadcast_to(self.native(sinks.reshape(1, self.H, self.G, 1, 1)), shape)

    # ---- softmax and output

    def attend(self, q, k, v):
        """out (B, H, G, Tq, Dv) and lse (B, H, G, Tq, 1)."""
        p, lse = self.softmax(self.score(q, k))
        return self.mix(self.drop(p), v), lse

    def softmax(self, s):
        columns = self.xp.concatenate([s, self.sinks(s)], -1)  # the sink is one more key, with value 0
        peak = self.peak(columns)
        e = self.exp(columns - peak)
        mass = self.total(e)
        return self.normalise(e[..., :-1], mass), self.log_mass(peak, mass)

    def peak(self, columns):
        return self.finite(self.xp.amax(columns, -1, keepdims=True))

    def finite(self, x):
        """0 for -inf, the peak and the lse of a row that sees nothing."""
        return self.xp.where(x > NEG_INF, x, 0.0)

    def exp(self, x):
        return self.xp.exp(x)

    def total(self, e):
        return self.xp.sum(e, -1, keepdims=True)

    def normalise(self, e, mass):
        return e / self.xp.where(mass > 0.0, mass, 1.0)

    def log_mass(self, peak, mass):
        return peak + self.xp.log(mass)

    def mix(self, p, v):
        return p @ v

    # ---- backward

    def backward(self, q, k, v, dout, out, lse):
        s = self.backward_score(q, k)
        p = self.recompute(s, lse)
        dp = self.drop_backward(dout @ v.mT)
        delta = self.delta(p, dp, dout, out)
        ds = self.ds(p, dp, delta, s)
        dx = self.uncap(ds, q, k)
        gradients = {"dq": self.store(self.dq(dx, k)), "dk": self.store(self.dk(dx, q))}
        gradients["dv"] = self.store(self.dv(p, dout))
        if "bias" in self.options:
            gradients["dbias"] = self.store(self.dbias(ds, dx))
        if "sinks" in self.options:
            gradients["dsinks"] = self.store(self.dsinks(s, lse, delta))
        return gradients

    def backward_score(self, q, k):
        return self.score(q, k)

    def recompute(self, s, lse):
        return self.exp(s - self.finite(lse))

    def drop_backward(self, dp):
        return self.drop(dp)

    def delta(self, p, dp, dout, out):
        """sum_j p dp = dout . out, the term of the softmax's normaliser: (B, H, G, Tq, 1)."""
        return self.xp.sum(dout * out, -1, keepdims=True)

    def ds(self, p, dp, delta, s):
        return p * (dp - delta)

    def uncap(self, ds, q, k):
        """Through the soft cap: times 1 - tanh^2."""
        c = self.options.get("softcap")
        if c is None:
            return ds
        return ds * self.cap_slope(self.xp.tanh(self.scaled(self.product(q, k)) / c))

    def cap_slope(self, capped):
        return 1.0 - capped * capped

    def dq(self, dx, k):
        return (dx @ k) * self.scale()

    def dk(self, dx, q):
        return self.sum_group((dx.mT @ q) * self.scale())

    def dv(self, p, dout):
        return self.sum_group(self.drop(p).mT @ dout)

    def sum_group(self, x):  # (B, H, G, Tk, X) -> (B, H, 1, Tk, X)
        return self.xp.sum(x, 2, keepdims=True)

    def dbias(self, ds, dx):
        """ds summed over the axes along which the bias was repeated; the shape of the bias."""
        per_head = ds.reshape(self.B, self.Hq, self.Tq, self.Tk)
        per_head = per_head[:, np.argsort(self.head_order())]
        full = per_head.reshape(*self.batch, *self.heads, self.Tq, self.Tk)
        shape = self.options["bias"].shape
        for _ in range(full.ndim - len(shape)):
            full = self.sum_axis(full, 0)[0]
        for axis in (axis for axis, size in enumerate(shape) if size == 1):
            full = self.sum_axis(full, axis)
        return full

    def sum_axis(self, x, axis):
        return self.xp.sum(x, axis, keepdims=True)

    def dsinks(self, s, lse, delta):
        per_head = self.sum_rows(-self.sink_weight(s, lse) * delta)
        return per_head.reshape(self.Hq)[np.argsort(self.head_order())]

    def sink_weight(self, s, lse):
        return self.exp(self.sinks(s) - self.finite(lse))

    def sum_rows(self, x):  # (B, H, G, Tq, 1) -> (1, H, G, 1, 1)
        return self.xp.sum(x, (0, 3), keepdims=True)


class Tiled(Attention):
    """The same with an online softmax: tiles of keys, a running maximum, sum and accumulator."""

    def tiles(self):
        """(first, past the last) key of each tile."""
        size = 4 if self.Tk < 64 else 128
        return [(j0, min(j0 + size, self.Tk)) for j0 in range(0, self.Tk, size)]

    def attend(self, q, k, v):
        s = self.score(q, k)
        peak, mass, acc = self.start(s)
        for j0, j1 in self.tiles():
            tile = self.tile(s, j0, j1)
            new_peak = self.new_peak(peak, tile)
            fade = self.fade(peak, self.finite(new_peak))
            e = self.exp(tile - self.finite(new_peak))
            mass = self.add_mass(mass, fade, e)
            acc = self.add_values(acc, fade, self.drop_tile(e, j0, j1), v[:, :, :, j0:j1])
            peak = new_peak
        return self.finish(peak, mass, acc)

    def start(self, s):
        """The sink is there before the first key."""
        peak = self.sinks(s)
        acc = self.native(np.zeros((self.B, self.H, self.G, self.Tq, self.Dv)))
        return peak, self.xp.where(peak > NEG_INF, self.xp.zeros_like(peak) + 1.0, 0.0), acc

    def tile(self, s, j0, j1):
        return s[..., j0:j1]

    def new_peak(self, peak, tile):
        return self.xp.maximum(peak, self.xp.amax(tile, -1, keepdims=True))

    def fade(self, peak, new_peak):
        """What the earlier tiles shrink by when the maximum rises."""
        return self.exp(peak - new_peak)

    def add_mass(self, mass, fade, e):
        return mass * fade + self.total(e)

    def drop_tile(self, e, j0, j1):
        if self.kept is None:
            return e
        return self.xp.where(self.native(self.kept[..., j0:j1]), e * self.gain(), 0.0)

    def add_values(self, acc, fade, e, v):
        return acc * fade + e @ v

    def finish(self, peak, mass, acc):
        return self.normalise(acc, mass), self.log_mass(self.finite(peak), mass)
