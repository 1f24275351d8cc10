"""How much of their bounds correct implementations use, over many seeds: on the catalogue, on cases held out.

A bound is right if nothing correct is ever above 1, and worth having if the median is not far below.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from parity import runner
from parity.cases import Case, select
from parity.heldout import HELD_OUT
from parity.pool import Pool
from parity.subjects import DTYPES, Subject
from parity.worker import Task

SETS = {"catalogue": lambda: tuple(select("full")), "held out": lambda: HELD_OUT}
FIRST_SEED = 1000  # ordinary runs use smaller ones
TIMEOUT = 300.0  # seconds for one cell: nothing here hangs, and a busy machine is no alarm


@dataclass
class Use:
    """Of one set of cases and one claim: the share of its bound of each judged tensor, and what was above."""

    shares: list[float] = field(default_factory=list)
    above: list[dict] = field(default_factory=list)
    no_evidence: int = 0

    def add(self, cell: dict) -> None:
        """Count the tensors of a cell. One that did not run, or fails in its form, is above as well."""
        if cell["status"] in runner.BROKEN:
            self.above.append(cell)
        for tensor in cell.get("tensors", ()):
            if tensor["status"] == "no_evidence":
                self.no_evidence += 1
            else:
                self.shares.append(float(tensor["max_share"]))

    def quantiles(self) -> tuple[float, ...]:
        """The median, the 99th percentile and the largest share; NaN if there are none."""
        return tuple(np.quantile(self.shares or [math.nan], (0.5, 0.99, 1.0), method="higher"))


Uses = dict[str, dict[str, Use]]  # set of cases -> claim -> use


def calibrate(
    uses: Uses, subjects: tuple[Subject, ...], dtypes: tuple[str, ...], outputs: int
) -> Iterator[dict]:
    """Fills uses, and yields every cell.

    outputs: the least number of judged tensors for each claim and set. One seed of everything says how many a
    seed gives; the others follow from that, until there are enough.
    """
    claims = {(s.name, dtype): kept(s, dtype) for s in subjects for dtype in dtypes if dtype in s.claims}
    for name, cases in SETS.items():
        use, seeds = uses.setdefault(name, defaultdict(Use)), dict.fromkeys(claims, range(1))
        while any(seeds.values()):
            for cell in judged(subjects, cases(), seeds):
                use[cell["claim"]].add(cell)
                yield cell
            counts = {claim: len(each.shares) for claim, each in use.items()}
            for pair, those in claims.items():
                done = seeds[pair].stop
                stop = max(needed(counts.get(claim, 0), done, outputs) for claim in those)
                seeds[pair] = range(done, stop)


def kept(subject: Subject, dtype: str) -> set[str]:
    """The claims that a subject is judged by: its own, and the weaker ones that it declares to keep."""
    return {subject.claims[dtype], *(d.claims[dtype] for d in subject.diverges if dtype in (d.claims or ()))}


def needed(found: int, seeds: int, outputs: int) -> int:
    """Seeds that give so many outputs, if so many seeds have given so many."""
    return math.ceil(seeds * outputs / found) if 0 < found < outputs else seeds


def judged(
    subjects: tuple[Subject, ...], cases: tuple[Case, ...], seeds: dict[tuple, range]
) -> Iterator[dict]:
    """The cells of all that the subjects can do. seeds: (subject, dtype) -> which."""
    tasks: dict[str, list[Task]] = defaultdict(list)
    order = range(max((each.stop for each in seeds.values()), default=0))
    for seed, case, (subject, dtype) in product(order, cases, ((s, d) for s in subjects for d in DTYPES)):
        if seed in seeds.get((subject.name, dtype), ()) and not subject.cannot(case):
            backward = "cpu" not in subject.forward_only
            task = Task(subject.name, case, dtype, "cpu", FIRST_SEED + seed, backward)
            tasks[runner.process_of(subject)].append(task)
    named = {subject.name: subject for subject in subjects}
    pool = Pool(tasks, TIMEOUT)
    for task, answer in pool.run(tasks):
        yield runner.judge(named[task.subject], task, answer) | {"seed": task.seed}


def show(uses: Uses, console) -> int:
    """A line for each set and claim, and one for each cell that was above. Returns 1 if there is one."""
    from rich.table import Table

    from parity.report.words import cell_lines, short

    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for heading in ("cases", "claim"):
        table.add_column(heading, no_wrap=True)
    for heading in ("outputs", "median", "99 %", "max", "no evidence", "above 1"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, claims in uses.items():
        for claim, use in sorted(claims.items()):
            figures = (f"{len(use.shares):,}", *map(short, use.quantiles()), use.no_evidence, len(use.above))
            table.add_row(name, claim, *map(str, figures))
    console.print(table)
    above = [cell for claims in uses.values() for use in claims.values() for cell in use.above]
    for cell in above:
        where = " ".join(cell[key] for key in ("subject", "case", "dtype", "claim"))
        console.print(f"above: {where}, seed {cell['seed']}: {'; '.join(cell_lines(cell))}")
    return 1 if above else 0
