"""The smallest input that still fails: drop options, cut axes, round values, as long as the failure stays.

Greedy and without a plan: a step is kept if the subject still fails on what is left. What is left may mean
something else than before, for the oracle judges every step anew.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from parity.inputs import Inputs, represent

TOGETHER = (("q_segment_ids", "kv_segment_ids"), ("dropout_p", "dropout_seed", "dropout_mask"))
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
    for name in made.options:
        group = next((names for names in TOGETHER if name in names), (name,))
        left = {n: x for n, x in made.options.items() if n not in group}
        yield f"without {name}", replace(made, options=left)
    if made.layout != "contiguous":
        yield "contiguous", replace(made, layout="contiguous")


# ---- axes


def with_shorter_axes(made: Inputs) -> Iterator[Step]:
    """Each axis cut to one, to a half, by one: its beginning and its end."""
    for axis in range(made.q.ndim - 3):
        yield from ((f"batch axis {axis}", cut_batch(made, axis, part)) for part in parts(made.q.shape[axis]))
    if made.q.ndim > 2:
        yield from ((f"kv heads {part}", cut_heads(made, part)) for part in parts(made.k.shape[-3]))
        group = made.q.shape[-3] // max(made.k.shape[-3], 1)
        yield from ((f"heads in a group {part}", cut_group(made, part)) for part in parts(group))
    for name, size in (("q", made.q.shape[-2]), ("k", made.k.shape[-2])):
        yield from ((f"{name} positions {part}", cut_positions(made, name, part)) for part in parts(size))
    for name, size in (("d", made.q.shape[-1]), ("v", made.v.shape[-1])):
        yield from ((f"{name} size {part}", cut_size(made, name, part)) for part in parts(size))


def parts(size: int) -> Iterator[slice]:
    """Shorter pieces of an axis, the shortest first."""
    for length in sorted({1, size // 2, size - 1}):
        if 0 < length < size:
            yield slice(0, length)
            yield slice(size - length, size)


def cut_batch(made: Inputs, axis: int, part: slice) -> Inputs:
    rank = made.q.ndim
    at = (slice(None),) * axis + (part,)

    def cut(x):  # q, k, v, dout
        return x[at]

    def cut_option(name, x):
        if name in ("q_offset", "q_lengths", "kv_lengths", "q_segment_ids", "kv_segment_ids"):
            return x[at]
        return cut_axis(x, axis - rank, part) if name != "sinks" else x

    return applied(made, cut, cut, cut, cut, cut_option)


def cut_heads(made: Inputs, part: slice) -> Inputs:
    group = made.q.shape[-3] // made.k.shape[-3]
    wide = slice(part.start * group, part.stop * group)

    def option(name, x):
        if name == "sinks":
            return x[wide]
        return cut_axis(x, -3, wide) if over_pairs(name) else x

    q, k = (lambda x: x[..., wide, :, :]), (lambda x: x[..., part, :, :])
    return applied(made, q, k, k, q, option)


def cut_group(made: Inputs, part: slice) -> Inputs:
    heads, group = made.k.shape[-3], made.q.shape[-3] // made.k.shape[-3]
    kept = np.arange(heads * group).reshape(heads, group)[:, part].ravel()

    def option(name, x):
        if name == "sinks":
            return x[kept]
        return cut_axis(x, -3, kept) if over_pairs(name) else x

    q = lambda x: x[..., kept, :, :]  # noqa: E731
    return applied(made, q, same, same, q, option)


def cut_positions(made: Inputs, which: str, part: slice) -> Inputs:
    """Of the queries or of the keys. Lengths beyond the new end end there."""
    axis, own = (-2, "q_") if which == "q" else (-1, "kv_")
    length = part.stop - part.start

    def option(name, x):
        if name == f"{own}segment_ids":
            return x[..., part]
        if name == f"{own}lengths":
            return np.minimum(x, length) if isinstance(x, np.ndarray) else min(x, length)
        return cut_axis(x, axis, part) if over_pairs(name) else x

    cut = lambda x: x[..., part, :]  # noqa: E731
    return (
        applied(made, cut, same, same, cut, option)
        if which == "q"
        else applied(made, same, cut, cut, same, option)
    )


def cut_size(made: Inputs, which: str, part: slice) -> Inputs:
    cut = lambda x: x[..., part]  # noqa: E731
    if which == "d":
        return applied(made, cut, cut, same, same, lambda name, x: x)
    return applied(made, same, same, cut, cut, lambda name, x: x)


def applied(made: Inputs, q, k, v, dout, option) -> Inputs:
    options = {
        n: option(n, x) if isinstance(x, np.ndarray) or n.endswith("lengths") else x
        for n, x in made.options.items()
    }
    return replace(made, q=q(made.q), k=k(made.k), v=v(made.v), dout=dout(made.dout), options=options)


def same(x):
    return x


def over_pairs(name: str) -> bool:
    """Whether an option broadcasts to (*batch, H, Tq, Tk)."""
    return name in ("mask", "bias", "dropout_mask")


def cut_axis(x: np.ndarray, axis: int, part) -> np.ndarray:
    """An axis counted from the end cut, unless it is broadcast."""
    if x.ndim < -axis or x.shape[axis] == 1:
        return x
    return np.take(x, np.arange(x.shape[axis])[part], axis)


# ---- options and values


def with_simpler_options(made: Inputs) -> Iterator[Step]:
    """Arrays without broadcast axes that they do not need, numbers nearer to 0."""
    for name, x in made.options.items():
        simpler: list = []
        if isinstance(x, np.ndarray) and x.size and over_pairs(name):
            simpler = [np.take(x, [0], axis) for axis in range(x.ndim) if x.shape[axis] > 1]
        elif (
            isinstance(x, np.ndarray)
            and x.size
            and (x == x.flat[0]).all()
            and name.endswith(("offset", "lengths"))
        ):
            simpler = [int(x.flat[0])]
        elif name == "window" and isinstance(x, tuple):
            sides = [((0, None) if side else (None,) if side == 0 else ()) for side in x]  # None: no bound
            simpler = [(side, x[1]) for side in sides[0]] + [(x[0], side) for side in sides[1]]
        elif isinstance(x, int) and not isinstance(x, bool) and abs(x) > 1:
            simpler = [x // abs(x), x - x // abs(x)]
        yield from ((f"{name} simpler", replace(made, options={**made.options, name: y})) for y in simpler)


def with_rounder_values(made: Inputs, dtype: str) -> Iterator[Step]:
    """Whole numbers, or one decimal, where that changes something."""
    for digits in (0, 1):
        for name in ("dout", "v", "k", "q"):
            x = getattr(made, name)
            rounder: dict = {name: represent(np.round(x, digits), dtype)}
            if not np.array_equal(rounder[name], x, equal_nan=True):
                yield f"{name} rounded", replace(made, **rounder)
