"""Deliberately wrong implementations, by theme, and their correct twins: who judges the judge.

A mutant is a correct class with one step replaced; the wrong line ends in `# wrong:` and what would be right,
or what is not. The verdict must reject every mutant and accept every twin.
"""

from parity.mutants import backward, block, dropout, heads, masking, norms, online, precision, scaling
from parity.mutants.registry import DTYPES, MUTANTS, Mutant
from parity.mutants.survey import Row, killers, run, survey

THEMES = (scaling, masking, heads, dropout, online, backward, precision, norms, block)

__all__ = ["DTYPES", "MUTANTS", "THEMES", "Mutant", "Row", "killers", "run", "survey"]
