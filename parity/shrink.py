"""The smallest input that still fails: drop options, cut axes, round values, as long as the failure stays.

Greedy and without a plan: a step is kept if the subject still fails on what is left. What is left may mean
something else than before, for the oracle judges every step anew.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from parity.inputs import Inputs, represent

TOGETHER = (("q_segment_ids", "kv_segment_ids"), ("dropout_p", "dropout_seed", "dropout_mask"))
OVER_PAIRS = ("mask", "bias", "dropout_mask")  # broadcast to (*batch, H, Tq, Tk)
Step = tuple[str, Inputs]


def shrink(made: Inputs, dtype: str, fails: Callable[[Inputs], bool], most: int = 500) -> tuple[Inputs, int]:
    """The smallest inputs found on which fails is true, and how often it was asked, at most `most` times."""
    asked, shrunk = 0, True
    while shrunk:
        shrunk = False
        for _, smaller in steps(made, dtype):
            if asked == most:
                return made, asked
            asked += 1
            if fails(smaller):
                made, shrunk = smaller, True
                break
    return made, asked


def alike(cell: dict, first: dict) -> bool:
    """Whether a cell fails as the first one did: in the tensor that was worst, or with the same exception."""
    if cell["status"] != first["status"] or first["status"] == "error":
        return cell["status"] == first["status"] and kind(cell) == kind(first)
    failed = [tensor["name"] for tensor in cell.get("tensors", ()) if tensor["status"] == "failed"]
    worst = max(first.get("tensors", ()), key=lambda t: float(t["max_share"]), default=None)
    return worst["name"] in failed if worst else kind(cell) == kind(first)


def kind(cell: dict) -> str:
    """The first word of a reason: an exception's class, or a tensor's name."""
    return cell["reason"].partition(":")[0].partition(" ")[0]


def steps(made: Inputs, dtype: str) -> Iterator[Step]:
    """Each way to make it one step smaller, the boldest first: (what was done, what is left)."""
    yield from without_options(made)
    yield from with_shorter_axes(made)
    yield from with_simpler_options(made)
    yield from with_rounder_values(made, dtype)


def without_options(made: Inputs) -> Iterator[Step]:
    groups = [next((names for names in TOGETHER if name in names), (name,)) for name in made.options]
    for group in dict.fromkeys(groups):
        left = {n: x for n, x in made.options.items() if n not in group}
        yield f"without {group[0]}", replace(made, options=left)
    if made.layout != "contiguous":
        yield "contiguous", replace(made, layout="contiguous")


# ---- axes: each cut to one, to a half, by one, from its beginning and from its end


def with_shorter_axes(made: Inputs) -> Iterator[Step]:
    for axis in range(made.q.ndim - 3):
        yield from ((f"batch axis {axis}", cut_batch(made, axis, part)) for part in parts(made.q.shape[axis]))
    if made.q.ndim > 2:
        Hq, H = made.q.shape[-3], made.k.shape[-3]
        yield from ((f"kv heads {part}", cut_heads(made, part, slice(None))) for part in parts(H))
        yield from ((f"heads {part}", cut_heads(made, slice(None), part)) for part in parts(Hq // max(H, 1)))
    yield from ((f"q positions {part}", cut_queries(made, part)) for part in parts(made.q.shape[-2]))
    yield from ((f"k positions {part}", cut_keys(made, part)) for part in parts(made.k.shape[-2]))
    for part in parts(made.q.shape[-1]):
        yield f"d size {part}", replace(made, q=made.q[..., part], k=made.k[..., part])
    for part in parts(made.v.shape[-1]):
        yield f"v size {part}", replace(made, v=made.v[..., part], dout=made.dout[..., part])


def parts(size: int) -> Iterator[slice]:
    """Shorter pieces of an axis, the shortest first."""
    for length in sorted({1, size // 2, size - 1}):
        if 0 < length < size:
            yield slice(0, length)
            yield slice(size - length, size)


def cut_batch(made: Inputs, axis: int, part: slice) -> Inputs:
    at, from_end = (slice(None),) * axis + (part,), axis - made.q.ndim
    arrays = {name: getattr(made, name)[at] for name in ("q", "k", "v", "dout")}

    def cut(name, x):
        return cut_axis(x, from_end, part) if name in OVER_PAIRS else x if name == "sinks" else x[at]

    return replace(made, **arrays, options=changed(made.options, cut))


def cut_heads(made: Inputs, kv: slice, in_group: slice) -> Inputs:
    """Some kv heads, and of the query heads that read each of them some."""
    heads = np.arange(made.q.shape[-3]).reshape(made.k.shape[-3], -1)[kv, in_group].ravel()

    def cut(name, x):
        return x[heads] if name == "sinks" else cut_axis(x, -3, heads) if name in OVER_PAIRS else x

    q, dout = made.q[..., heads, :, :], made.dout[..., heads, :, :]
    k, v = made.k[..., kv, :, :], made.v[..., kv, :, :]
    return replace(made, q=q, k=k, v=v, dout=dout, options=changed(made.options, cut))


def cut_queries(made: Inputs, part: slice) -> Inputs:
    options = cut_positions(made.options, -2, part, "q_lengths", "q_segment_ids")
    return replace(made, q=made.q[..., part, :], dout=made.dout[..., part, :], options=options)


def cut_keys(made: Inputs, part: slice) -> Inputs:
    options = cut_positions(made.options, -1, part, "kv_lengths", "kv_segment_ids")
    return replace(made, k=made.k[..., part, :], v=made.v[..., part, :], options=options)


def cut_positions(options: dict, axis: int, part: slice, lengths: str, ids: str) -> dict:
    """The options for fewer positions. Lengths beyond the new end end there."""

    def cut(name, x):
        return x[..., part] if name == ids else cut_axis(x, axis, part) if name in OVER_PAIRS else x

    cut_options = changed(options, cut)
    if lengths in options:
        shorter = np.minimum(options[lengths], part.stop - part.start)
        cut_options[lengths] = shorter if isinstance(options[lengths], np.ndarray) else int(shorter)
    return cut_options


def changed(options: dict, cut: Callable) -> dict:
    """cut(name, array) of every array among the options."""
    return {n: cut(n, x) if isinstance(x, np.ndarray) else x for n, x in options.items()}


def cut_axis(x: np.ndarray, axis: int, part) -> np.ndarray:
    """An axis counted from the end cut, unless it is broadcast."""
    if x.ndim < -axis or x.shape[axis] == 1:
        return x
    return np.take(x, np.arange(x.shape[axis])[part], axis)


# ---- options and values


def with_simpler_options(made: Inputs) -> Iterator[Step]:
    for name, x in made.options.items():
        for y in simpler(name, x):
            yield f"{name} simpler", replace(made, options={**made.options, name: y})


def simpler(name: str, x) -> list:
    """Simpler values of an option: over fewer axes, one number for equal ones, a number nearer to 0."""
    if isinstance(x, np.ndarray) and x.size:
        if name in OVER_PAIRS:
            return [np.take(x, [0], axis) for axis in range(x.ndim) if x.shape[axis] > 1]
        alike = name.endswith(("offset", "lengths")) and (x == x.flat[0]).all()
        return [int(x.flat[0])] if alike else []
    if name == "window" and isinstance(x, tuple):
        sides = [((0, None) if side else (None,) if side == 0 else ()) for side in x]  # None: no bound
        return [(side, x[1]) for side in sides[0]] + [(x[0], side) for side in sides[1]]
    if isinstance(x, int) and not isinstance(x, bool) and abs(x) > 1:
        return [x // abs(x), x - x // abs(x)]
    return []


def with_rounder_values(made: Inputs, dtype: str) -> Iterator[Step]:
    """Whole numbers, or one decimal, where that changes something."""
    for digits in (0, 1):
        for name in ("dout", "v", "k", "q"):
            x = getattr(made, name)
            rounder: dict = {name: represent(np.round(x, digits), dtype)}
            if not np.array_equal(rounder[name], x, equal_nan=True):
                yield f"{name} rounded", replace(made, **rounder)
