"""Subjects that are not ours: "path.py:function", "package.module:function", or an entry point.

Loading one runs its author's code, so it happens in a process of its own; the parent reads `describe`.
"""

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from parity.bounds import CLAIMS
from parity.cases import CATALOGUE, Case
from parity.subjects import FRAMEWORKS, Subject, claim, first, takes

GROUP = "parity.subjects"


@dataclass(frozen=True)
class Declaration:
    """What the author of a function says about it, where the signature does not."""

    framework: str | None
    supports: Callable[[Case], bool | str] | None
    claims: Mapping[str, str] | None


def subject(
    *,
    framework: str | None = None,
    supports: Callable[[Case], bool | str] | None = None,
    claims: Mapping[str, str] | None = None,
) -> Callable[[Callable], Callable]:
    """Decorate f(q, k, v, *, ...) to say what its signature does not; the keywords it names are those it can.

    framework: "torch", "jax" (run under jit) or "numpy" (forward only); left out: the one its module imports.
    supports: case -> True, or False, or a reason. claims: dtype -> a name of `parity list claims`; a dtype
    without one is not run; left out: float16, bfloat16, float32 and float64, each strictly.
    Raises ValueError for a framework or claim that does not exist.
    """
    if framework not in (None, *FRAMEWORKS):
        raise ValueError(f"framework must be one of {FRAMEWORKS}, got {framework!r}")
    unknown = sorted(set((claims or {}).values()) - CLAIMS.keys())
    if unknown:
        raise ValueError(f"no claim named {unknown[0]!r}; see `parity list claims`")

    def declare(function: Callable) -> Callable:
        function.__parity__ = Declaration(framework, supports, claims)  # type: ignore[attr-defined]
        return function

    return declare


def installed() -> dict[str, str]:
    """Name -> address of each entry point of the group parity.subjects. Imports none of them."""
    return {point.name: point.value for point in entry_points(group=GROUP)}


@lru_cache
def load(address: str) -> Subject:
    """The subject at an address. Runs the author's code and raises whatever that raises."""
    place, _, name = address.rpartition(":")
    module = from_file(place) if place.endswith(".py") else from_package(place)
    try:
        function = getattr(module, name)
    except AttributeError:
        raise AttributeError(f"{place} has no {name}") from None
    if isinstance(function, Subject):
        return function
    return wrap(function, address)


def from_file(place: str) -> ModuleType:
    """A module from its path; its folder may be imported from."""
    path = Path(place).resolve()
    if not path.exists():
        raise FileNotFoundError(f"no file {place}")
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} is not a Python file")
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def from_package(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    return importlib.import_module(name)


def wrap(function: Callable, name: str) -> Subject:
    """A function as a subject: its signature says which keywords of the contract it takes."""
    if not callable(function):
        raise TypeError(f"{name} is not a function")
    said = getattr(function, "__parity__", Declaration(None, None, None))
    named = tuple(inspect.signature(function).parameters)
    exposes_lse = "return_lse" in named
    framework = said.framework or framework_of(function, name)
    return Subject(
        name,
        framework,
        lambda: partial(function, return_lse=True) if exposes_lse else function,
        said.claims or claim(),
        first(takes(*named), lambda case: refusal(said.supports, case)),
        exposes_lse=exposes_lse,
        forward_only=("cpu",) if framework == "numpy" else (),
        process=name,
    )


def refusal(supports: Callable | None, case: Case) -> str | None:
    answer = True if supports is None else supports(case)
    return answer if isinstance(answer, str) else None if answer else "is not supported, it says"


def framework_of(function: Callable, name: str) -> str:
    """The one framework whose names the function uses, or else its module."""
    known = vars(sys.modules[function.__module__])
    code = getattr(function, "__code__", None)
    used = [known[word] for word in code.co_names if word in known] if code else []
    for values in (used, known.values()):
        homes = (x.__name__ if isinstance(x, ModuleType) else getattr(x, "__module__", "") for x in values)
        libraries = {str(home).partition(".")[0] for home in homes} & {"torch", "jax", "flax"}
        found = {library.replace("flax", "jax") for library in libraries}
        if len(found) == 1:
            return found.pop()
    raise ValueError(f"cannot tell the framework of {name}: say @parity.subject(framework=...)")


def describe(found: Subject) -> dict:
    """A plug-in without its functions, for the parent: what it cannot, case by case."""
    reasons = {name: found.cannot(case) for name, case in CATALOGUE.items()}
    return {
        "name": found.name,
        "framework": found.framework,
        "claims": dict(found.claims),
        "exposes_lse": found.exposes_lse,
        "forward_only": found.forward_only,
        "reasons": {name: reason for name, reason in reasons.items() if reason},
    }


def described(address: str, said: dict) -> Subject:
    """The parent's picture of a plug-in."""
    return Subject(
        said["name"],
        said["framework"],
        lambda: load(address).load(),
        said["claims"],
        lambda case: said["reasons"].get(case.name),
        exposes_lse=said["exposes_lse"],
        forward_only=said["forward_only"],
        process=address,
    )
