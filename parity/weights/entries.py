"""What a family's file says of its tensors: which of them make which parameters, by which pattern.

Tensors of a file, each through the pattern and then side by side along the last axis, are parameters side
by side. That read from the right to the left writes the file.
Paths of the tree and names of tensors may hold a * for the number of the layer.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from .pattern import arranged, arranged_shape, inverse
from .stored import BITS, Stored, narrowed, widened


class Entry(NamedTuple):
    """Tensors None stand for zeros that a file leaves out. widths: of the last axes, if there are several."""

    parameters: tuple[str, ...]
    tensors: tuple[str | None, ...]
    pattern: str
    sizes: Mapping[str, int] = {}
    widths: tuple[int, ...] = ()


# ---- what families say


def array(path, name, pattern="n c -> n c", **sizes):
    return [Entry((path,), (name,), pattern, sizes)]


def norm(path, name, bias=True):
    gain = Entry((f"{path}/0",), (f"{name}.weight",), "c -> c")
    return [gain, gain._replace(parameters=(f"{path}/1",), tensors=(f"{name}.bias",))] if bias else [gain]


def linear(path, *names, bias=True, pattern="o i -> i o", widths=(), **sizes):
    """w_... and b_... of a linear map: linear("attn/out", "dense") is attn/w_out and attn/b_out.

    bias: whether there are any, or for each name whether it has one. Where only some have, the others' is 0.
    """
    *above, last = path.split("/")
    has = bias if isinstance(bias, tuple) else (bias,) * len(names)
    weight = Entry(
        ("/".join([*above, f"w_{last}"]),), tuple(f"{n}.weight" for n in names), pattern, sizes, widths
    )
    if not any(has):
        return [weight]
    of_bias = " -> ".join(side.replace("i", "").strip() for side in pattern.split(" -> "))
    biases = tuple(f"{n}.bias" if b else None for n, b in zip(names, has, strict=True))
    return [
        weight,
        weight._replace(parameters=("/".join([*above, f"b_{last}"]),), tensors=biases, pattern=of_bias),
    ]


def gated(tensor):
    """A gated MLP whose gate stands before its other half in one tensor."""
    return [Entry(("w_gate", "w_fc"), (f"{tensor}.weight",), "o i -> i o")]


def qkv(k, *names, bias=True, path="attn/qkv"):
    """w_qkv and b_qkv of three tensors, or for path="cross_attn/kv" of two. k: the model's keywords."""
    q, kv = head_widths(k)
    return linear(path, *names, bias=bias, widths=(q, kv, kv)[-len(names) :])


def head_widths(k):
    """Channels of all heads of q, and of k or v."""
    D = k.get("head_dim") or k["n_embd"] // k["n_head"]
    return k["n_head"] * D, (k.get("n_kv_head") or k["n_head"]) * D


def within(tensors, entries, path=""):
    """Entries whose tensors' names begin with tensors, and whose paths begin with path."""
    return [
        e._replace(
            parameters=tuple(path + p for p in e.parameters),
            tensors=tuple(t if t is None else tensors + t for t in e.tensors),
        )
        for e in entries
    ]


def layers(n_layer, tensors, entries):
    """Entries of one block as those of all blocks; tensors: what their names begin with, as "layers.*."."""
    starred = within(tensors, entries, "blocks/*/")

    def numbered(names, i):
        return tuple(name if name is None else name.replace("*", str(i)) for name in names)

    return [
        e._replace(parameters=numbered(e.parameters, i), tensors=numbered(e.tensors, i))
        for i in range(n_layer)
        for e in starred
    ]


# ---- from a file


class Leaf:
    """A parameter that is read from its file whenever NumPy asks for it, as np.asarray(leaf) does.

    shape. dtype: the name of the one in the file; bfloat16 is read as the same numbers in float32.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str, bits: Callable[[], np.ndarray]):
        self.shape, self.dtype, self.bits = shape, dtype, bits

    def __array__(self, dtype=None, copy=None):
        x = widened(self.bits(), self.dtype)
        return np.array(x, dtype, copy=copy)


def leaves(entry: Entry, stored: Mapping[str, Stored]):
    """(path, Leaf) of each parameter. Raises ValueError if a tensor has another shape or dtype."""
    parts = [stored[name] for name in entry.tensors if name is not None]
    names = ", ".join(name for name in entry.tensors if name is not None)
    for dtype in {part.dtype for part in parts} - BITS.keys():
        raise ValueError(f"{names}: got dtype {dtype}, wanted {', '.join(BITS)}")
    try:
        shapes = [arranged_shape(part.shape, entry.pattern, entry.sizes) for part in parts]
    except ValueError as error:
        raise ValueError(f"{names}: {error}") from None
    if len({part.dtype for part in parts}) > 1 or len({shape[:-1] for shape in shapes}) > 1:
        raise ValueError(
            f"{names}: got {[(p.shape, p.dtype) for p in parts]}, wanted what stands side by side"
        )
    widths = entry.widths or (shapes[0][-1],)
    given = [w for w, name in zip(widths, entry.tensors, strict=True) if name is not None]
    if [shape[-1] for shape in shapes] != given:
        raise ValueError(f"{names}: got {[p.shape for p in parts]}, wanted {given} of heads' channels")
    n = len(entry.parameters)
    if sum(widths) % n:
        raise ValueError(f"{names}: got {sum(widths)} channels, wanted a multiple of {n}")
    shape, dtype = (*shapes[0][:-1], sum(widths) // n), parts[0].dtype
    for i, path in enumerate(entry.parameters):
        share = slice(None) if n == 1 else slice(i * shape[-1], (i + 1) * shape[-1])

        def bits(share=share):
            return whole(entry, stored, widths)[..., share]

        yield path, Leaf(shape, dtype, bits)


def whole(entry, stored, widths):
    """The tensors of an entry side by side, as bits."""
    parts = [
        None if name is None else arranged(stored[name].bits(), entry.pattern, entry.sizes)
        for name in entry.tensors
    ]
    if len(parts) == 1:
        return parts[0]
    like = next(part for part in parts if part is not None)
    zeros = [np.zeros((*like.shape[:-1], w), like.dtype) for w in widths]
    return np.concatenate([z if p is None else p for p, z in zip(parts, zeros, strict=True)], -1)


# ---- to a file


def tensors(entry: Entry, tree: Mapping, dtype: str | None):
    """(name, (dtype, shape, what gives its bits)) of every tensor of the entry.

    tree: path -> an array or a Leaf. Raises ValueError if shapes or dtypes are not those of the entry.
    """
    parts = [tree[path] for path in entry.parameters]
    dtype = dtype or dtype_of(parts[0])
    shape = tuple(parts[0].shape)
    total = shape[-1] * len(parts)
    widths = entry.widths or (total,)
    where = ", ".join(entry.parameters)
    if {tuple(p.shape) for p in parts} != {shape} or sum(widths) != total:
        raise ValueError(f"{where}: got {[tuple(p.shape) for p in parts]}, wanted {sum(widths)} channels")
    start = 0
    for name, width in zip(entry.tensors, widths, strict=True):
        there = slice(start, start + width)
        start += width

        def bits(there=there, name=name):
            x = arranged(_columns(entry, parts, dtype)[..., there], inverse(entry.pattern), entry.sizes)
            if name is None and x.any():
                raise ValueError(f"{where}: got numbers from column {there.start} on, wanted zeros")
            return x

        if name is None:
            bits()
            continue
        back = arranged_shape((*shape[:-1], width), inverse(entry.pattern), entry.sizes)
        yield name, (dtype, back, bits)


def _columns(entry, parts, dtype):
    """The parameters of an entry side by side, as bits of dtype."""
    bits = []
    for path, part in zip(entry.parameters, parts, strict=True):
        exact = part.bits() if isinstance(part, Leaf) and part.dtype == dtype else None
        exact = narrowed(np.asarray(part), dtype) if exact is None else exact
        if exact is None:
            raise ValueError(f"{path}: got {dtype_of(part)}, wanted what {dtype} holds exactly")
        bits.append(exact)
    return bits[0] if len(bits) == 1 else np.concatenate(bits, -1)


def dtype_of(x) -> str:
    return x.dtype if isinstance(x, Leaf) else x.dtype.name
