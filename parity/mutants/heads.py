"""Heads, sinks and memory: which head reads which, what a sink does, and arrays read in the wrong order."""

import numpy as np

from parity.inputs import LAYOUTS, lay_out
from parity.mutants.attention import NEG_INF, Attention
from parity.mutants.registry import mutant

# ---- grouped heads


@mutant(Attention, "head_order", origin="C38: heads tiled")
def heads_tiled(self):
    """Query head h reads kv head h mod Hkv."""
    return np.arange(self.Hq).reshape(self.G, self.H).T.reshape(-1)  # wrong: h // G


@mutant(Attention, "load", origin="C38: one kv head for all")
def first_kv_head_for_all(self, name):
    """Every query head reads kv head 0."""
    x = Attention.load(self, name)
    return self.xp.broadcast_to(x[:, :1], x.shape) if name in ("k", "v") else x  # wrong: [:, :1]


@mutant(Attention, "load", origin="C38: repeated on the time axis")
def keys_repeated_in_time(self, name):
    """k and v are repeated along positions, each G times, and cut off at Tk."""
    x = Attention.load(self, name)
    if name in ("q", "dout"):
        return x
    return x[:, :, :, np.arange(self.Tk) // self.G]  # wrong: repeated on axis 3, not on the heads


@mutant(Attention, "collect", origin="C8, transposed head merge")
def heads_not_transposed_back(self, **tensors):
    """The output is returned as (B, T, H, Dv) memory under the shape (B, H, T, Dv)."""
    found = Attention.collect(self, **tensors)
    if self.heads:
        found["out"] = found["out"].swapaxes(-2, -3).reshape(found["out"].shape)  # wrong: transposed
    return found


@mutant(Attention, "read", origin="C8: BHTD taken for BTHD")
def read_as_bthd(self, name):
    """q, k and v are taken for (B, T, H, D)."""
    x = Attention.read(self, name)
    if not self.heads or name == "dout":
        return x
    return x.reshape(*x.shape[:-3], x.shape[-2], x.shape[-3], x.shape[-1]).swapaxes(-2, -3)  # wrong: as it is


@mutant(Attention, "mix", origin="a tile of values one row off")
def values_rolled(self, p, v):
    """Each weight multiplies the value of the neighbouring key."""
    return p @ self.xp.roll(v, 1, -2)  # wrong: rolled


# ---- sinks


@mutant(Attention, "sinks", origin="C35: a keyword that is dropped")
def sinks_ignored(self, s):
    """The sinks are left out."""
    return self.native(np.full((self.B, self.H, self.G, self.Tq, 1), NEG_INF))  # wrong: the sinks


@mutant(Attention, "add_bias", origin="C35: transformers#41083")
def sink_added_to_scores(self, s):
    """The sink is added to every score as well."""
    s = Attention.add_bias(self, s)
    return s + self.sinks(s) if "sinks" in self.options else s  # wrong: only in the denominator


@mutant(Attention, "log_mass", origin="C35: lse without the sink")
def lse_without_sink(self, peak, mass):
    """lse leaves the sink out."""
    if "sinks" not in self.options:
        return Attention.log_mass(self, peak, mass)
    sink = self.exp(self.sinks(mass) - peak)
    return Attention.log_mass(self, peak, self.xp.clip(mass - sink, 0.0, np.inf))  # wrong: - sink


@mutant(Attention, "peak", "C35: the maximum", dtypes=("float16", "bfloat16", "float32"))
def sink_not_in_the_maximum(self, columns):
    """The maximum leaves the sink out: a large one overflows."""
    return Attention.peak(self, columns[..., :-1])  # wrong: [..., :-1]


@mutant(Attention, "sinks", origin="C35: one sink for a kv head")
def sink_of_kv_head(self, s):
    """The query heads of a group share the first one's sink."""
    sinks = Attention.sinks(self, s)
    return self.xp.broadcast_to(sinks[:, :, :1], sinks.shape)  # wrong: [:, :, :1]


@mutant(Attention, "sinks", origin="C35: a sink that is scaled")
def sink_scaled(self, s):
    """The sinks are scaled like scores."""
    return Attention.sinks(self, s) * self.scale()  # wrong: * scale


# ---- memory


def memory(self, name):
    """The storage behind a tensor of this case's layout, flat, from the first element of the view on."""
    x = Attention.read(self, name)
    if name not in LAYOUTS[self.inputs.layout][0].split():
        return None, x
    view = lay_out(x, self.inputs.layout)
    base = view if view.base is None else view.base
    start = (view.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // x.itemsize
    return base.reshape(-1)[start:], x


@mutant(Attention, "read", origin="C6, C31: strides ignored")
def strides_ignored(self, name):
    """q, k and v are read as if contiguous."""
    flat, x = memory(self, name)
    if flat is None or name == "dout":
        return x
    return np.resize(flat, x.size).reshape(x.shape)  # wrong: the strides


@mutant(Attention, "read", origin="C5: strides of dout ignored", gradient_only=True)
def strides_of_dout_ignored(self, name):
    """dout is read as if contiguous; past its memory lies 0."""
    flat, x = memory(self, name)
    if flat is None or name != "dout":
        return x
    return np.concatenate([flat, np.zeros(x.size)])[: x.size].reshape(x.shape)  # wrong: the strides


@mutant(Attention, "read", origin="C6: the storage offset ignored")
def storage_offset_ignored(self, name):
    """A slice of a longer axis is read from the start of its storage."""
    x = Attention.read(self, name)
    if self.inputs.layout != "offset" or name == "dout":
        return x
    longer = np.concatenate([np.zeros_like(x[..., :3, :]), x], -2)
    return longer[..., : x.shape[-2], :]  # wrong: [..., 3:, :]
