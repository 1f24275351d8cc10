"""Inputs: seed and case name to arrays, once, in NumPy, for every framework.

Each tensor has its own counter-based stream, keyed by (case, tensor, seed): a case can be made again alone,
and a new tensor changes no other. Values do not depend on the dtype, except that they are rounded to it.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from parity import fills, oracle
from parity.cases import Case

LARGEST = {"float16": 65504.0, "bfloat16": float.fromhex("0x1.fep127"), "float32": 3.4028234663852886e38}
LAYOUTS = {  # name -> (the tensors it is for, what it is); lay_out makes it
    "contiguous": ("", "as made"),
    "bthd": ("q k v", "transposed views of contiguous (*batch, T, H, D)"),
    "offset": ("q k v", "x[..., 3:, :] of a longer T axis: storage starts before the first element"),
    "every second": ("q k v", "x[..., ::2, :] of a T axis twice as long"),
    "expanded": ("k v", "one head expanded over the head axis, stride 0; their heads are made equal"),
    "column": ("q k v", "transposed views of contiguous (*batch, H, D, T): stride(-1) is T"),
    "dout expanded": ("dout", "one row of one head expanded, stride 0; its rows are made equal"),
    "dout bthd": ("dout", "a transposed view of contiguous (*batch, T, H, Dv)"),
}


@dataclass(frozen=True)
class Inputs:
    """Float64 arrays that the dtype represents exactly; options: the contract's keywords, arrays made."""

    q: np.ndarray  # (*batch, H, Tq, D)
    k: np.ndarray  # (*batch, Hkv, Tk, D)
    v: np.ndarray  # (*batch, Hkv, Tk, Dv)
    dout: np.ndarray  # (*batch, H, Tq, Dv)
    options: dict
    layout: str  # a key of LAYOUTS: the strides a converter gives to the tensors named there; the values stay


def stream(*key) -> np.random.Generator:
    """An independent generator for this key, the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


def round_to(x, dtype: str) -> np.ndarray:
    """x rounded to the nearest value of dtype, ties to even, as float64.

    NaN and Inf stay, overflow gives Inf, subnormals of dtype are kept.
    dtype: "float16", "bfloat16", "float32" or "float64".
    """
    x = np.asarray(x, np.float64)
    if dtype == "bfloat16":
        # From float64 in one rounding: 8 significant bits, exponents down to those of the subnormals.
        _, exponent = np.frexp(x)
        spacing = np.ldexp(1.0, np.maximum(exponent - 8, -133))
        with np.errstate(invalid="ignore"):
            y = np.where(np.isfinite(x), np.rint(x / spacing) * spacing, x)
        return np.where(np.abs(y) > LARGEST["bfloat16"], np.copysign(np.inf, x), y)
    with np.errstate(over="ignore"):
        return x.astype(dtype).astype(np.float64)


def represent(x, dtype: str) -> np.ndarray:
    """round_to, but a finite x stays finite: the dtype's largest value instead of an overflow."""
    x = np.asarray(x, np.float64)
    largest = LARGEST.get(dtype, np.inf)
    return round_to(np.where(np.isfinite(x), np.clip(x, -largest, largest), x), dtype)


def make(case: Case, dtype: str, seed: int = 0) -> Inputs:
    """The arrays of a case. dtype names the storage the values are rounded to."""
    dout_shape = (*case.q[:-1], case.v_dim)
    shapes = {"q": case.q, "k": case.kv, "v": case.v_shape, "dout": dout_shape}
    arrays = {name: stream(case.name, name, seed).standard_normal(shape) for name, shape in shapes.items()}
    fills.FILLS[case.fill](arrays, lambda name: stream(case.name, "fill", name, seed))
    if case.layout == "expanded":
        arrays |= {name: np.repeat(arrays[name][..., :1, :, :], case.n_kv_head, -3) for name in "kv"}
    if case.layout == "dout expanded":
        arrays["dout"] = np.broadcast_to(arrays["dout"][..., :1, :1, :], dout_shape)
    options = {name: _option(case, name, value, dtype, seed) for name, value in case.options.items()}
    if case.poison:
        _poison(case, arrays, options)
    rounded = {name: represent(array, dtype) for name, array in arrays.items()}
    return Inputs(**rounded, options=options, layout=case.layout)


def _option(case: Case, name: str, value, dtype: str, seed: int):
    """One keyword of the contract: a recipe filled, a tuple as an array, a Python value as it is."""
    if name in ("mask", "bias", "dropout_mask"):
        recipe, axes = value
        made = fills.RECIPES[recipe](stream(case.name, name, seed), full_shape(case, axes))
        return represent(made, dtype) if name == "bias" else made
    if name in ("q_segment_ids", "kv_segment_ids"):
        ids = np.array([list(row) for row in value], np.int32)
        return ids.reshape(*case.batch, ids.shape[-1])
    if name == "sinks":
        return represent(value, dtype)
    if name in ("q_offset", "q_lengths", "kv_lengths") and isinstance(value, tuple):
        return np.array(value, np.int32)  # (*batch,)
    return value


def full_shape(case: Case, axes: str) -> tuple[int, ...]:
    """The shape that an axes string of a case stands for, "b1qk" for instance: b is every batch axis."""
    sizes = {"b": case.batch, "h": (case.n_head,), "q": (case.Tq,), "k": (case.Tk,), "1": (1,)}
    return sum((sizes[axis] for axis in axes), ())


def _poison(case: Case, arrays: dict, options: dict) -> None:
    """NaN and Inf where the contract says that they have no effect."""
    seen = visible(case, arrays, options)  # (*batch, H, Tq, Tk)
    if "queries" in case.poison:
        blind = ~seen.any(-1).reshape(case.q[:-1])
        arrays["q"][blind] = np.nan
        arrays["dout"][blind] = np.nan
    if "keys" in case.poison:
        by_kv_head = seen.any(-2).reshape(*case.batch, case.n_kv_head, -1, case.Tk)
        unread = ~by_kv_head.any(-2).reshape(case.kv[:-1])
        arrays["k"][unread] = np.nan
        arrays["v"][unread] = np.inf


def visible(case: Case, arrays: dict, options: dict) -> np.ndarray:
    """What each query sees, (*batch, H, Tq, Tk) bool."""
    seen = oracle.attention(arrays["q"], arrays["k"], arrays["v"], **options).call.visible
    return seen.reshape(*case.batch, case.n_head, case.Tq, case.Tk)


def lay_out(x: np.ndarray, layout: str) -> np.ndarray:
    """x (..., H, T, X) as a view with the strides of a layout, on memory of its own; the values stay."""
    x = np.ascontiguousarray(x)
    if layout in ("bthd", "dout bthd"):
        return np.ascontiguousarray(x.swapaxes(-2, -3)).swapaxes(-2, -3)
    if layout == "column":
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "offset":
        longer = np.zeros((*x.shape[:-2], x.shape[-2] + 3, x.shape[-1]), x.dtype)
        longer[..., 3:, :] = x
        return longer[..., 3:, :]
    if layout == "every second":
        longer = np.zeros((*x.shape[:-2], 2 * x.shape[-2], x.shape[-1]), x.dtype)
        longer[..., ::2, :] = x
        return longer[..., ::2, :]
    if layout == "expanded":
        return np.broadcast_to(x[..., :1, :, :].copy(), x.shape)
    if layout == "dout expanded":
        return np.broadcast_to(x[..., :1, :1, :].copy(), x.shape)
    return x


# ---- the block, norms and activations

NORM_FILLS = {
    "normal": lambda x: x,
    "tiny": lambda x: 2e-3 * x,  # variance near eps: where eps is, and how large
    "tinier": lambda x: 1e-4 * x,
    "constant": lambda x: np.full_like(x, 1.5),  # no variance at all: eps alone
    "ramp": lambda x: 1e4 + 0.01 * np.broadcast_to(np.arange(x.shape[-1]), x.shape),  # one-pass variance
    "mean 1000": lambda x: 1000 + x,
    "offset": lambda x: 10 + x,
    "outlier": lambda x: np.where(np.arange(x.shape[-1]) == 0, 1000 * x, x),
}
NORMS = {  # name -> (fill, C)
    "norm-normal": ("normal", 96),
    "norm-tiny": ("tiny", 96),
    "norm-tinier": ("tinier", 24),
    "norm-constant": ("constant", 24),
    "norm-16": ("normal", 16),  # n against n - 1
    "norm-offset": ("offset", 96),
    "norm-ramp": ("ramp", 24),
    "norm-mean-1000": ("mean 1000", 40),
    "norm-mean-1000-wide": ("mean 1000", 768),
    "norm-outlier": ("outlier", 56),
}


def make_norm(name: str, dtype: str, seed: int = 0) -> dict[str, np.ndarray]:
    """x (5, C), gain (C,), bias (C,), dout (5, C) for a name in NORMS; float64, rounded to dtype."""
    fill, C = NORMS[name]
    shapes = {"x": (5, C), "gain": (C,), "bias": (C,), "dout": (5, C)}
    made = {tensor: stream(name, tensor, seed).standard_normal(shape) for tensor, shape in shapes.items()}
    made |= {"x": NORM_FILLS[fill](made["x"]), "gain": 1 + 0.2 * made["gain"], "bias": 0.2 * made["bias"]}
    return {tensor: represent(array, dtype) for tensor, array in made.items()}


ACTIVATIONS = {  # name -> (first, last) of the values, which are equally spaced
    "gelu-range": (-9, 9),
    "gelu-middle": (-2, 2),
    "gelu-tail": (-4, -3),  # where exact and tanh GELU differ most, for their size
}


def make_activation(name: str, dtype: str, seed: int = 0) -> dict[str, np.ndarray]:
    """x (19, 20), dout (19, 20) for a name in ACTIVATIONS; float64, rounded to dtype."""
    x = np.linspace(*ACTIVATIONS[name], 380).reshape(19, 20)
    dout = stream(name, "dout", seed).standard_normal(x.shape)
    return {"x": represent(x, dtype), "dout": represent(dout, dtype)}


def make_block(n_embd: int, n_head: int, B: int, T: int, dtype: str, seed: int = 0):
    """(parameter tree, x (B, T, C), dout (B, T, C)) of the block; float64, rounded to dtype.

    The tree has the functional block's keys, (in, out)-oriented; gains and biases are not 1 and 0, so that
    one left out shows. The values do not depend on n_head, which must divide n_embd (ValueError).
    """
    if n_embd % n_head:
        raise ValueError(f"n_head must divide n_embd, got n_embd={n_embd}, n_head={n_head}")
    C, F = n_embd, 4 * n_embd

    def draw(name, *shape, mean=0.0, sd=1.0):
        made = mean + sd * stream("block", C, name, seed).standard_normal(shape)
        return represent(made, dtype)

    params = {
        "attn": {
            "w_qkv": draw("w_qkv", C, 3 * C, sd=C**-0.5),
            "b_qkv": draw("b_qkv", 3 * C, sd=0.1),
            "w_out": draw("w_out", C, C, sd=C**-0.5),
            "b_out": draw("b_out", C, sd=0.1),
        },
        "ln1": (draw("ln1 gain", C, mean=1.0, sd=0.2), draw("ln1 bias", C, sd=0.2)),
        "ln2": (draw("ln2 gain", C, mean=1.0, sd=0.2), draw("ln2 bias", C, sd=0.2)),
        "w_fc": draw("w_fc", C, F, sd=C**-0.5),
        "b_fc": draw("b_fc", F, sd=0.1),
        "w_proj": draw("w_proj", F, C, sd=F**-0.5),
        "b_proj": draw("b_proj", C, sd=0.1),
    }
    return params, draw("x", B, T, C), draw("dout", B, T, C)
