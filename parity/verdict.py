"""The judgement: a tensor, the oracle's value of it, and its bound.

A tensor fails iff it has another shape, or an element of it is farther from the oracle than its bound, or is
NaN or Inf where the oracle is not, or the reverse. A bound that is infinite proves nothing, and one above a
quarter of the size of what it bounds hardly more: a tensor most of whose bounds are such gives no evidence,
which is never a pass.
"""

import math
from dataclasses import asdict, dataclass

import numpy as np

from parity.oracle import Array

PASSED, FAILED, NO_EVIDENCE = "passed", "failed", "no_evidence"
SLACK = 1e-6  # relative, for the float64 arithmetic of oracle, bound and judgement
VACUOUS = 0.25  # a bound above this part of the size of what it bounds is no evidence
MAJORITY = 0.5


@dataclass(frozen=True)
class Judgement:
    """One tensor. Shares are of the bound; worst is the element of the largest. nan, inf: elements that are
    so and should not be. lost: NaN or Inf of the oracle that is something else here. vacuous: the part of
    the elements that prove nothing. atol, rtol: the absolute tolerance, or the relative one, that would
    have passed."""

    name: str
    status: str
    reason: str = ""
    warn: bool = False
    max_share: float = 0.0
    p99_share: float = 0.0
    worst: tuple[int, ...] | None = None
    expected: float | None = None
    got: float | None = None
    bound: float | None = None
    nan: int = 0
    inf: int = 0
    lost: int = 0
    vacuous: float = 0.0
    atol: float = 0.0
    rtol: float = 0.0

    def record(self) -> dict:
        """For JSON, which has no NaN and no Infinity: they become the strings "nan", "inf", "-inf"."""

        def plain(x):
            return str(x) if isinstance(x, float) and not math.isfinite(x) else x

        return {key: plain(value) for key, value in asdict(self).items()}


@dataclass(frozen=True)
class Verdict:
    """All tensors of a run: failed if one failed, no evidence if none passed."""

    tensors: tuple[Judgement, ...]

    @property
    def status(self) -> str:
        found = {tensor.status for tensor in self.tensors}
        return next((status for status in (FAILED, PASSED) if status in found), NO_EVIDENCE)

    @property
    def warn(self) -> bool:
        return any(tensor.warn for tensor in self.tensors)

    @property
    def worst(self) -> Judgement | None:
        """The tensor that uses most of its bound."""
        return max(self.tensors, key=lambda tensor: tensor.max_share, default=None)

    def record(self) -> dict:
        tensors = [tensor.record() for tensor in self.tensors]
        return {"status": self.status, "warn": self.warn, "tensors": tensors}


def judge(
    name: str, got, reference, bound, size: float | None = None, warn_above: float = math.inf
) -> Judgement:
    """Judge one tensor. got: real numbers of any dtype; reference, bound: float64 of the same shape.

    size: how large the elements are if nothing cancels (parity.bounds.sizes), 0 if they can only be 0; by
    default the standard deviation of reference. warn_above: the share of the bound above which to warn.
    """
    got, reference = np.asarray(got, np.float64), np.asarray(reference, np.float64)
    if got.shape != reference.shape:
        return Judgement(name, FAILED, f"shape {got.shape}, wanted {reference.shape}", max_share=math.inf)
    bound = np.broadcast_to(np.where(np.isnan(bound), np.inf, bound), reference.shape)
    size = spread(reference) if size is None else size
    if reference.size == 0:
        return Judgement(name, PASSED, "no elements")
    same = (got == reference) | (np.isnan(got) & np.isnan(reference))
    finite, wanted = np.isfinite(got), np.isfinite(reference)
    proves = bound < np.inf
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.where(same, 0.0, np.abs(got - reference))
        relative = np.where(error > 0.0, error / np.abs(reference), 0.0)
    share = shares(got, reference, bound)
    vacuous = float(np.mean(~proves | (bound > VACUOUS * size if size > 0.0 else False)))
    worst = np.unravel_index(int(np.argmax(share)), share.shape)
    max_share = float(share[worst])
    status = FAILED if max_share > 1.0 + SLACK else NO_EVIDENCE if vacuous > MAJORITY else PASSED
    stray = proves & ~same & wanted
    judged = finite & wanted
    return Judgement(
        name,
        status,
        warn=status != FAILED and max_share > warn_above,
        max_share=max_share,
        p99_share=float(np.quantile(share[proves], 0.99, method="higher")) if proves.any() else 0.0,
        worst=tuple(int(n) for n in worst),
        expected=float(reference[worst]),
        got=float(got[worst]),
        bound=float(bound[worst]),
        nan=int(np.sum(stray & np.isnan(got))),
        inf=int(np.sum(stray & np.isinf(got))),
        lost=int(np.sum(proves & ~same & ~wanted)),
        vacuous=vacuous,
        atol=float(error[judged].max(initial=0.0)),
        rtol=float(relative[judged].max(initial=0.0)),
    )


def shares(got: Array, reference: Array, bound: Array) -> Array:
    """The part of its bound that each element's error is, float64, of their shape.

    0 where both are the same, NaN and Inf included, or where the bound proves nothing; Infinity where one of
    them is NaN or Inf and the other is not.
    """
    same = (got == reference) | (np.isnan(got) & np.isnan(reference))
    finite = np.isfinite(got) & np.isfinite(reference)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        share = np.where(finite, np.abs(got - reference) / bound, np.inf)
    return np.where(same | ~(bound < np.inf), 0.0, share)


def spread(reference: Array) -> float:
    """The standard deviation of the finite values; of equal ones, their magnitude."""
    values = reference[np.isfinite(reference)]
    deviation = float(values.std()) if values.size else 0.0
    return deviation if deviation > 0.0 else float(np.abs(values).max(initial=0.0))


def judge_all(results: dict, references, bounds: dict, sizes=None, warn_above: float = math.inf) -> Verdict:
    """Judge every tensor of results, by name. references: a dict, or an object such as
    parity.oracle.Oracle."""
    references = references if isinstance(references, dict) else vars(references)
    sizes = {} if sizes is None else sizes
    judged = (
        judge(name, got, references[name], bounds[name], sizes.get(name), warn_above)
        for name, got in results.items()
    )
    return Verdict(tuple(judged))
