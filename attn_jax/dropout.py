"""Dropout on attention weights, whose keep-mask is a pure function of (seed, batch, head, query, key).

The generator is counter-based: the same bits come out in either framework, in any tiling and order.
Source: Salmon, Moraes, Dror & Shaw 2011, Threefry-2x32 with 20 rounds, as in Random123.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from . import checks
from .arithmetic import describe, iota, take

WORD = 0xFFFFFFFF
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


class Dropout(NamedTuple):
    """Drop with probability p, by a seed or a mask. i0, j0: the tile's corner among queries and keys."""

    p: float
    seed: int | Array | None = None  # 0 <= seed < 2**32
    mask: Array | None = None  # (B, H, G, Tq, Tk) bool, any axis possibly 1, True = keep
    i0: int | Array = 0
    j0: int | Array = 0
    stream: Array | None = None  # (B, H, G, 1, 1) batch * query heads + head; None: all of both are here


def keep(dropout, shape, like):
    """(B, H, G, n_q, n_k) bool, True = keep; any axis of a given mask may be 1. On the device of `like`."""
    if dropout.mask is not None:
        return dropout.mask
    B, H, G, n_q, n_k = shape
    stream = iota(B * H * G, like).reshape(B, H, G, 1, 1) if dropout.stream is None else dropout.stream
    i = (iota(n_q, like) + dropout.i0)[None, None, None, :, None]
    j = (iota(n_k, like) + dropout.j0)[None, None, None, None, :]
    bits, _ = threefry2x32((word(dropout.seed, like), word(stream, like)), (word(i, like), word(j, like)))
    return bits >= jnp.uint32(int(dropout.p * 2**32))  # (B, H, G, n_q, n_k)


def tile(dropout, i0, n_q, j0, n_k):
    """The dropout among queries i0 ... i0 + n_q - 1 and keys j0 ... j0 + n_k - 1."""
    mask = dropout.mask
    if mask is not None:
        mask = take(take(mask, -2, i0, n_q), -1, j0, n_k)
    return dropout._replace(mask=mask, i0=dropout.i0 + i0, j0=dropout.j0 + j0)


def word(x, like):
    """x as a 32-bit word; uint32 wraps by itself."""
    return jnp.asarray(x).astype(jnp.uint32) if isinstance(x, Array) else jnp.uint32(x)


def threefry2x32(key, counter):
    """Two pseudo-random words from two words of key and two of counter: arrays that broadcast together."""
    x0, x1 = counter
    schedule = (*key, key[0] ^ key[1] ^ jnp.uint32(PARITY))
    x0, x1 = x0 + schedule[0], x1 + schedule[1]
    for group in range(5):
        for r in ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = (x1 << r | x1 >> (32 - r)) ^ x0
        x0 = x0 + schedule[(group + 1) % 3]
        x1 = x1 + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return x0, x1


def spread(seed, n, like):
    """n seeds in place of one, for as many places that drop; without a seed, None as often."""
    if seed is None:
        return (None,) * n
    checks.seed(describe(seed))
    words = (word(seed, like), word(WORD, like)), (word(iota(n, like), like), word(0, like))
    return tuple(threefry2x32(*words)[0])
