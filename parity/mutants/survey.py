"""Mutants against the verdict: which cases kill which mutant, and whether its correct twin passes them."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from parity import bounds, claims, oracle, verdict
from parity.cases import Case, select
from parity.inputs import Inputs, make
from parity.mutants.arrays import Arrays, load
from parity.mutants.registry import DTYPES, MUTANTS, Mutant


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


def run(subject: Mutant | type, framework: str | Arrays, inputs: Inputs, dtype: str) -> dict[str, np.ndarray]:
    """The tensors of a mutant, or of a correct class (a mutant's twin is mutant.right), as NumPy arrays."""
    arrays = load(framework) if isinstance(framework, str) else framework
    implementation = subject.build() if isinstance(subject, Mutant) else subject
    return implementation(arrays, inputs, dtype).run()


def survey(
    cases: Iterable[Case] | None = None,
    dtypes: Iterable[str] = DTYPES,
    framework: str = "numpy",
    seeds: Iterable[int] = (0,),
    mutants: Iterable[Mutant] | None = None,
) -> Iterator[Row]:
    """Judge every mutant of attention, and its twin, on every case under the dtype's strict claim."""
    arrays = load(framework)
    mutants = [m for m in (MUTANTS.values() if mutants is None else mutants) if m.operator == "attention"]
    for case in select("default") if cases is None else cases:
        for dtype, seed in ((dtype, seed) for dtype in dtypes for seed in seeds):
            alive = [m for m in mutants if dtype in m.dtypes]
            yield from _judge(case, dtype, seed, arrays, alive)


def _judge(case: Case, dtype: str, seed: int, arrays: Arrays, mutants: list[Mutant]) -> Iterator[Row]:
    inputs = make(case, dtype, seed)
    truth = oracle.attention(inputs.q, inputs.k, inputs.v, inputs.dout, **inputs.options)
    bound = bounds.attention(truth, claims.CLAIMS[dtype])
    twins = {}
    for mutant in mutants:
        if mutant.right not in twins:
            tensors = run(mutant.right, arrays, inputs, dtype)
            passed = verdict.judge_all(tensors, truth, bound).status == verdict.PASSED
            twins[mutant.right] = tensors, passed
        right, twin_passed = twins[mutant.right]
        wrong = run(mutant, arrays, inputs, dtype)
        changed = {name: x for name, x in wrong.items() if not np.array_equal(x, right[name], equal_nan=True)}
        judged = verdict.judge_all(changed, truth, bound)
        worst = judged.worst
        failed = judged.status == verdict.FAILED
        yield Row(
            mutant.name, case.name, dtype, seed, twin_passed, twin_passed and failed,
            worst.name if worst else "", worst.max_share if worst else 0.0,
        )  # fmt: skip
