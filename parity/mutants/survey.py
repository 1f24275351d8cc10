"""Mutants against the verdict: which cases kill which mutant, and whether its correct twin passes them."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from parity import verdict
from parity.cases import Case, select
from parity.inputs import Inputs
from parity.mutants.arrays import Arrays, load
from parity.mutants.registry import DTYPES, MUTANTS, Mutant
from parity.mutants.trials import LAYERS, Trial, prepare


class Row(NamedTuple):
    """One mutant on one case. killed: it failed and its twin passed. tensor, share: the mutant's worst."""

    mutant: str
    case: str
    dtype: str
    seed: int
    twin_passed: bool
    killed: bool
    tensor: str
    share: float  # of the bound


def run(
    subject: Mutant | type, framework: str | Arrays, inputs: Inputs | dict, dtype: str
) -> dict[str, np.ndarray]:
    """The tensors of a mutant, or of a correct class (a mutant's twin is mutant.right), as NumPy arrays."""
    arrays = load(framework) if isinstance(framework, str) else framework
    implementation = subject.build() if isinstance(subject, Mutant) else subject
    return implementation(arrays, inputs, dtype).run()


def survey(
    cases: Iterable[Case | str] | None = None,
    dtypes: Iterable[str] = DTYPES,
    framework: str = "numpy",
    seeds: Iterable[int] = (0,),
    mutants: Iterable[Mutant] | None = None,
    enough: float = math.inf,
    claim: str = "",
) -> Iterator[Row]:
    """Judge every mutant, and its twin, on every case of its operator, under a claim.

    cases: of the catalogue, or names in trials.LAYERS; the default set and all layers if None.
    claim: the dtype's strict one by default.
    enough: a mutant that so many cases have killed in a dtype and seed meets no further case there.
    """
    arrays = load(framework)
    mutants = list(MUTANTS.values() if mutants is None else mutants)
    kills: Counter = Counter()
    chosen: list[Case | str] = [*select("default"), *LAYERS] if cases is None else list(cases)
    for case in chosen:
        for dtype, seed in product(dtypes, seeds):
            alive = [m for m in mutants if dtype in m.dtypes and kills[m.name, dtype, seed] < enough]
            name = case if isinstance(case, str) else case.name
            for row in _meet(prepare(case, dtype, seed, claim), name, dtype, seed, arrays, alive):
                kills[row.mutant, dtype, seed] += row.killed
                yield row


def killers(rows: Iterable[Row]) -> dict[tuple[str, str, int], list[str]]:
    """(mutant, dtype, seed) -> the cases that killed it; an empty list: it is alive."""
    found = defaultdict(list)
    for row in rows:
        found[row.mutant, row.dtype, row.seed] += [row.case] * row.killed
    return found


def _meet(
    trial: Trial, case: str, dtype: str, seed: int, arrays: Arrays, mutants: list[Mutant]
) -> Iterator[Row]:
    twins = {}
    for mutant in (mutant for mutant in mutants if mutant.operator == trial.operator):
        if mutant.right not in twins:
            tensors = run(mutant.right, arrays, trial.inputs, dtype)
            twins[mutant.right] = tensors, trial.judge(tensors).status == verdict.PASSED
        right, twin_passed = twins[mutant.right]
        wrong = run(mutant, arrays, trial.inputs, dtype)
        changed = {name: x for name, x in wrong.items() if not np.array_equal(x, right[name], equal_nan=True)}
        found = trial.judge(changed)
        tensor, share = (found.worst.name, found.worst.max_share) if found.worst else ("", 0.0)
        killed = twin_passed and found.status == verdict.FAILED
        yield Row(mutant.name, case, dtype, seed, twin_passed, killed, tensor, share)
