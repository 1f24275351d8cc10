"""Where in a tensor its errors sit and how large they are, small enough to be kept for every cell of a run.

A level is one hexadecimal digit: 0 for an element that is exactly right, n + 1 for a share of the bound up to
EDGES[n], the last for more than all of them, NaN and Inf included. A dot: no bound there proves anything.
"""

import numpy as np

from parity.oracle import Array
from parity.verdict import SLACK, shares

EDGES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
HEADS, POSITIONS = 16, 64  # rows and columns of the largest heat map; more are drawn together
DIGITS = "0123456789ab"


def attention(name: str, got, reference, bound) -> dict:
    """The heat map and the histogram of one tensor of attention, all three of one shape.

    "heat": a line for each head and in it a level for each query (of dk and dv: each key), the largest over
    everything else; "heat_of": [heads, positions] before several shared a level; "histogram": how many
    elements have each level. Nothing for a tensor without elements.
    """
    got, reference = np.asarray(got, np.float64), np.asarray(reference, np.float64)
    if got.size == 0:
        return {}
    bound = np.broadcast_to(bound, reference.shape)
    proved = bound < np.inf
    levels = np.where(proved, level(shares(got, reference, bound)), -1)
    flat = by_head(name, levels)  # (heads, positions)
    drawn = pool(pool(flat, HEADS, 0), POSITIONS, 1)
    return {
        "heat": ["".join("." if n < 0 else DIGITS[n] for n in row) for row in drawn],
        "heat_of": list(flat.shape),
        "histogram": np.bincount(levels[proved], minlength=len(DIGITS)).tolist(),
    }


def level(share: Array) -> Array:
    """The level of each share, ints. What passes at a bound is of the level that ends there."""
    above = np.searchsorted(np.asarray(EDGES) * (1.0 + SLACK), share)
    return np.where(share == 0.0, 0, above + 1)


def by_head(name: str, levels: Array) -> Array:
    """(heads, positions): the largest over the leading axes, and over the last unless that is the positions.

    lse (..., H, Tq); dsinks (H,); others (..., H, T, D), or (T, D) without heads.
    """
    if name == "dsinks":
        return levels[:, None]
    rows = np.atleast_2d(levels if name == "lse" else levels.max(-1))
    return rows.max(tuple(range(rows.ndim - 2)))


def pool(levels: Array, most: int, axis: int) -> Array:
    """The same with at most so many entries along an axis, each the largest of equally many neighbours."""
    size = -(-levels.shape[axis] // most)
    return np.maximum.reduceat(levels, np.arange(0, levels.shape[axis], size), axis)
