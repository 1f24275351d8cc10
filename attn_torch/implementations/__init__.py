"""The ways to compute attention that are there, and which one a call gets."""

from . import blockwise, reference

IMPLEMENTATIONS = {"blockwise": blockwise.attention, "reference": reference.attention}


def choose(implementation, return_weights):
    """The function that a call named `implementation` runs."""
    return IMPLEMENTATIONS["reference" if implementation == "auto" else implementation]
