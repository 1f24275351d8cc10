"""Axes by name: "(h t d) i -> i (t h d)" is how an array of a file becomes a parameter. Turned round, back.

An axis of the left is one name, several in parentheses, or 1. The right has the same names. "" leaves all.
"""

from collections.abc import Mapping
from math import prod

import numpy as np


def inverse(pattern: str) -> str:
    """The pattern of the way back."""
    return " -> ".join(reversed(pattern.split(" -> ")))


def arranged(x: np.ndarray, pattern: str, sizes: Mapping[str, int]) -> np.ndarray:
    """x with its axes as on the pattern's right; a view where that can be. sizes: of names in parentheses."""
    if not pattern:
        return x
    left, right = map(_axes, pattern.split(" -> "))
    length = _lengths(x.shape, pattern, sizes)
    names = [name for group in left for name in group]
    x = x.reshape([length[name] for name in names])
    x = x.transpose([names.index(name) for group in right for name in group])
    return x.reshape([prod(length[name] for name in group) for group in right])


def arranged_shape(shape: tuple[int, ...], pattern: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape that arranged gives an array of this shape. Raises ValueError if the pattern is of others."""
    if not pattern:
        return shape
    length = _lengths(shape, pattern, sizes)
    return tuple(prod(length[name] for name in group) for group in _axes(pattern.split(" -> ")[1]))


def _axes(side: str) -> list[list[str]]:
    """ "(h d) 1 i" -> [["h", "d"], [], ["i"]]"""
    groups, inside = [], False
    for word in side.replace("(", "( ").replace(")", " )").split():
        if word == "(":
            groups.append([])
            inside = True
        elif word == ")":
            inside = False
        elif inside:
            groups[-1].append(word)
        else:
            groups.append([] if word == "1" else [word])
    return groups


def _lengths(shape, pattern, sizes):
    """The length of every name; of those in parentheses one may be what the others leave."""
    left, length = _axes(pattern.split(" -> ")[0]), {}
    fits = len(left) == len(shape)
    for group, n in zip(left, shape, strict=False):
        known = {name: sizes[name] for name in group if name in sizes}
        rest = [name for name in group if name not in known]
        share, over = divmod(n, prod(known.values()) or 1)
        fits &= not over and (len(rest) == 1 or (not rest and share == 1))
        length |= known | dict.fromkeys(rest, share)
    if not fits:
        raise ValueError(f"got shape {tuple(shape)}, wanted {pattern.split(' -> ')[0]!r} with {dict(sizes)}")
    return length
