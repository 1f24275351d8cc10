"""What a mutant is, and the list of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DTYPES = ("float16", "bfloat16", "float32", "float64")
MUTANTS: dict[str, "Mutant"] = {}


@dataclass(frozen=True)
class Mutant:
    """A correct class with one step replaced by a wrong one. Its twin is the class as it is."""

    name: str
    theme: str  # the file it is in
    does: str  # what it does wrong, in one line
    origin: str  # the public report, or what it is a slip of
    right: type[Any]
    step: str
    wrong: Callable
    gradient_only: bool  # out and lse are right
    dtypes: tuple[str, ...]  # those in which it differs from its twin by more than the claim allows

    @property
    def operator(self) -> str:
        """What it is a mutant of: "attention", "layer_norm", "block", ..."""
        return self.right.operator

    def build(self) -> type:
        """The class with the wrong step."""
        return type(self.right.__name__, (self.right,), {self.step: self.wrong})


def mutant(right: type[Any], step: str, origin: str = "", gradient_only: bool = False, dtypes=DTYPES):
    """Register the decorated method as a mutant of `right`: its name and docstring become the mutant's.

    Raises AttributeError where `right` has no such step, ValueError where the name is taken or unexplained.
    """

    def register(wrong):
        getattr(right, step)
        name = wrong.__name__.replace("_", "-")
        if name in MUTANTS or not wrong.__doc__:
            raise ValueError(f"a mutant needs a name of its own and a docstring, got {name!r}")
        theme = wrong.__module__.rpartition(".")[2]
        does = wrong.__doc__.strip().splitlines()[0]
        MUTANTS[name] = Mutant(name, theme, does, origin, right, step, wrong, gradient_only, tuple(dtypes))
        return wrong

    return register
