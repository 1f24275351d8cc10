"""What is judged: one file per library, and whatever a user names.

A subject says where its function comes from, which arithmetic it claims for each dtype, which cases it cannot
express, and where it differs from the contract. Capability is stated here and never discovered by catching.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from parity.cases import Case

DTYPES = ("float16", "bfloat16", "float32", "float64")
HALF = DTYPES[:2]
FRAMEWORKS = ("torch", "jax", "numpy")
LIBRARIES = (
    "attn_torch",
    "attn_jax",
    "torch_sdpa",
    "torch_multihead",
    "torch_flex",
    "jax_nn",
    "flax_attention",
)


@dataclass(frozen=True)
class Subject:
    """One implementation of attention.

    load: () -> f(q, k, v, **the keywords of the contract that it names), on the framework's arrays in the
      contract's layout; f returns out, or (out, lse) if exposes_lse. Only load imports the framework.
    claims: dtype name -> a name of parity.bounds.CLAIMS; a dtype without one is not claimed.
    cannot: case -> why this subject cannot express it, or None.
    diverges: declared differences from the contract (parity.subjects.divergences), each checked both ways.
    forward_only: device kinds on which the library has no backward.
    constants: float keywords it takes without giving their gradient.
    block: the implementation of attention by which the package's own blocks run; "": it has none.
    process: where it runs: a plug-in's address; "": with all others of its framework.
    """

    name: str
    framework: str
    load: Callable[[], Callable]
    claims: Mapping[str, str]
    cannot: Callable[[Case], str | None] = lambda case: None
    diverges: tuple = ()
    exposes_lse: bool = False
    forward_only: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    block: str = ""
    process: str = ""


def claim(suffix: str = "", dtypes: tuple[str, ...] = DTYPES) -> dict[str, str]:
    """dtype -> the claim of that dtype with this suffix: claim("-direct")["float32"] is "float32-direct"."""
    return {dtype: dtype + suffix for dtype in dtypes}


def first(*reasons: Callable) -> Callable[[Case], str | None]:
    """case -> the first reason that is not false, or None."""
    return lambda case: next((reason for reason in (r(case) for r in reasons) if reason), None)


def find(name: str) -> Subject:
    """The subject of that name, or at that address (parity.subjects.plugin). Raises KeyError for neither."""
    known = built_in()
    if name not in known and ":" in name:
        from parity.subjects import plugin

        return plugin.load(name)
    return known[name]


def takes(*keywords: str) -> Callable[[Case], str | None]:
    """case -> "has no ..." for the keywords of the contract the case sets and these do not name."""

    def reason(case: Case) -> str | None:
        missing = [name for name in case.options if name not in keywords]
        return f"has no {', '.join(missing)}" if missing else None

    return reason


def built_in() -> dict[str, Subject]:
    """Name -> subject, of this package. Imports no framework."""
    modules = [importlib.import_module(f"parity.subjects.{library}") for library in LIBRARIES]
    return {subject.name: subject for module in modules for subject in module.SUBJECTS}
