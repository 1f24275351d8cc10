"""Correctness before timing: the very program that will be timed, at the timed shape, against the float64 oracle.

The oracle holds every pair, too many at long lengths, so it is asked about some rows of queries only. To compare
gradients the program gets a cotangent that is zero outside these rows: then dq is theirs alone, dk and dv come
from them alone, exactly, and the bound of the smaller problem holds for the whole.
"""

from functools import lru_cache

import numpy as np

from benchmarks.cells import Cell
from benchmarks.program import Program
from parity import bounds, inputs, oracle, verdict
from parity.cases import Case

ROWS = 32  # queries: the last ones, which see most, and as many from the middle


def judge(cell: Cell, claim: str, program: Program, on) -> dict:
    """{"verdict": parity's word, "max_share": the largest error as a share of its bound, "reason": of a failure}."""
    judged = []
    for start in sorted({max(0, cell.Tq - ROWS), max(0, cell.Tq // 2 - ROWS)}):
        rows = slice(start, min(start + ROWS, cell.Tq))
        exact, allowed = expected(cell.case(), cell.dtype, rows.start, rows.stop, claim)
        judged += verdict.judge_all(results(cell, rows, program, on), exact, allowed).tensors
    found = verdict.Verdict(tuple(judged))
    wrong = [t for t in judged if t.status == verdict.FAILED]
    reasons = [t.reason or f"{t.name} is off by {t.max_share:.3g} times its bound" for t in wrong]
    return {"verdict": found.status, "max_share": found.worst.max_share, "reason": "; ".join(reasons)}


@lru_cache(maxsize=4)  # the next contender of the cell asks for the same
def expected(case: Case, dtype: str, start: int, stop: int, claim: str) -> tuple[oracle.Oracle, dict]:
    """The oracle's answer for queries start to stop against all keys, and the bounds of its tensors."""
    given = made(case, dtype)
    q, dout = (x[..., start:stop, :] for x in (given.q, given.dout))
    exact = oracle.attention(q, given.k, given.v, dout, **given.options | {"q_offset": start})
    return exact, bounds.attention(exact, bounds.CLAIMS[claim])


@lru_cache(maxsize=1)
def made(case: Case, dtype: str) -> inputs.Inputs:
    """The case's arrays in NumPy, made once for all contenders."""
    return inputs.make(case, dtype)


def made_block(cell: Cell) -> tuple[dict, np.ndarray, np.ndarray]:
    """(parameter tree, x, dout), each x and dout (B, T, C)."""
    return inputs.make_block(cell.C, cell.H, cell.B, cell.T, cell.dtype)


def forget():
    """Let go of what is kept for the next contender of a cell."""
    made.cache_clear()
    expected.cache_clear()


def results(cell: Cell, rows: slice, program: Program, on) -> dict[str, np.ndarray]:
    """The program's tensors, as float64, of the rows alone; a gradient of q outside them makes it NaN."""
    if not cell.backward:
        (out,) = program.call()
        return {"out": on.fetch(out)[..., rows, :]}
    given = made(cell.case(), cell.dtype)
    dout = np.zeros_like(given.dout)
    dout[..., rows, :] = given.dout[..., rows, :]
    out, dq, dk, dv = map(on.fetch, program.call(on.place(dout, cell.dtype)))
    stray = np.any(np.delete(dq, np.r_[rows], axis=-2))
    return {"out": out[..., rows, :], "dq": np.where(stray, np.nan, dq[..., rows, :]), "dk": dk, "dv": dv}
