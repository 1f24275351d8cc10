"""Cases and subjects by pattern, as they are named on the command line."""

import fnmatch
import os
import sys
from enum import StrEnum
from importlib.machinery import PathFinder
from pathlib import Path

import typer


class Dtype(StrEnum):
    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"
    float64 = "float64"


def cases(patterns: list[str] | None, budget: str) -> tuple:
    """The cases that match; of the whole catalogue where patterns are given, else of the budget."""
    from parity.blocks import BLOCKS
    from parity.cases import BUDGETS, select

    known = every_case()
    if not patterns:
        blocks = [case for case in BLOCKS.values() if BUDGETS.index(case.budget) <= BUDGETS.index(budget)]
        return (*select(budget), *blocks)
    found = [name for pattern in patterns for name in matching(pattern, known, "case")]
    return tuple(known[name] for name in dict.fromkeys(found))


def every_case() -> dict:
    from parity.blocks import BLOCKS
    from parity.cases import CATALOGUE

    return {**CATALOGUE, **BLOCKS}


def subjects(patterns: list[str] | None) -> tuple:
    """Built-in subjects that match, and addresses of plug-ins; by default what is built in or installed."""
    from parity.subjects import built_in, plugin

    known = {**built_in(), **plugin.installed()}
    if not patterns:
        return tuple(known.values())
    addresses = [pattern for pattern in patterns if ":" in pattern]
    for address in addresses:
        check_address(address)
    found = [
        name for pattern in patterns if ":" not in pattern for name in matching(pattern, known, "subject")
    ]
    return (*(known[name] for name in dict.fromkeys(found)), *dict.fromkeys(addresses))


def check_address(address: str) -> None:
    """Raise BadParameter if there is no such file, or no such package; imports nothing."""
    place, _, _ = address.rpartition(":")
    package = place.partition(".")[0]
    if place.endswith(".py"):
        problem = "" if Path(place).is_file() else f"no file {place}"
    else:
        found = PathFinder.find_spec(package, [os.getcwd(), *sys.path])
        problem = "" if found else f"no package {package!r}"
    if problem:
        raise typer.BadParameter(f"{address}: {problem}", param_hint="--subject")


def matching(pattern: str, names, what: str) -> list[str]:
    """The names that a pattern with * and ? matches; brackets are ordinary. Raises BadParameter for none."""
    found = fnmatch.filter(names, pattern.replace("[", "[[]"))
    if not found:
        raise typer.BadParameter(
            f"no {what} matches {pattern!r}; see `parity list {what}s`", param_hint=f"--{what}"
        )
    return found
