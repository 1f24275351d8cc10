"""The case catalogue: each input on which an attention implementation can go wrong, as data, with its reason.

B batch, H heads, Tq/Tk positions, D head size, Dv value size. The axes of a shape are all different, so that
an implementation which takes one for another cannot pass. Cases share a few shape families, because each
shape costs a compilation: the options vary inside a family. `parity.inputs.make` turns a case into arrays.
"""

from parity.cases.case import Case
from parity.cases.options import DROPOUT, HEADS, LAYOUTS, MASKS, SCORES, TOGETHER
from parity.cases.reports import REPORTS
from parity.cases.shapes import SHAPES
from parity.cases.values import VALUES

__all__ = ["BUDGETS", "CATALOGUE", "REPORTS", "Case", "select"]

BUDGETS = ("quick", "default", "full")
CASES = (*VALUES, *MASKS, *SCORES, *HEADS, *DROPOUT, *LAYOUTS, *TOGETHER, *SHAPES)
CATALOGUE = {case.name: case for case in CASES}


def select(budget: str = "default") -> list[Case]:
    """The cases of a budget: "quick", "default" (quick ones included) or "full" (all). Raises ValueError."""
    if budget not in BUDGETS:
        raise ValueError(f"budget must be one of {BUDGETS}, got {budget!r}")
    return [case for case in CATALOGUE.values() if BUDGETS.index(case.budget) <= BUDGETS.index(budget)]
