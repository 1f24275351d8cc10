"""Which mutants were killed, and by what: in several frameworks' arithmetic, under several claims."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from parity.claims import CLAIMS
from parity.mutants.registry import MUTANTS
from parity.mutants.survey import Row, survey

SCHEMA = 1
ENOUGH = 2  # killers of a mutant after which it meets no further case
Key = tuple[str, str, str]  # (mutant, framework, claim)


@dataclass
class Proof:
    """kills: for each mutant, framework and claim, what killed it. trials: of a mutant, and its
    twin, on a case; failed: those in which the twin did not pass, (framework, claim, row).
    """

    kills: dict[Key, list[Row]] = field(default_factory=dict)
    trials: int = 0
    failed: list[tuple[str, str, Row]] = field(default_factory=list)

    @property
    def alive(self) -> list[Key]:
        return [key for key, rows in self.kills.items() if not rows]

    @property
    def exit_code(self) -> int:
        """0 if there are mutants, all are killed and every twin passed."""
        return 0 if self.kills and not self.alive and not self.failed else 1

    def run(self, frameworks: Iterable[str], claims: Iterable[str]) -> Iterator[Key | None]:
        """Yield a key whenever a mutant is killed for the first time, else None, once a trial.

        Twins keep the strict claims; under another one it is no failure if one does not pass, and no kill.
        kills grows by one framework and claim at a time, so that an interrupted run holds whole ones only.
        """
        for framework in frameworks:
            for claim in claims:
                found = {key: [] for key in wanted([framework], [claim])}
                io = CLAIMS[claim].io
                for row in survey(dtypes=[io], framework=framework, enough=ENOUGH, claim=claim):
                    rows = found[key := (row.mutant, framework, claim)]
                    self.trials += 1
                    if not row.twin_passed and claim == io:
                        self.failed.append((framework, claim, row))
                    rows += [row] * row.killed
                    yield key if row.killed and len(rows) == 1 else None
                self.kills |= found

    def themes(self) -> dict[str, list[str]]:
        """Theme -> the names of its mutants that have been tried."""
        names = defaultdict(list)
        for name in dict.fromkeys(name for name, _, _ in self.kills):
            names[MUTANTS[name].theme].append(name)
        return names

    def of(self, name: str) -> tuple[int, int, Counter]:
        """Of one mutant: in how many arithmetics it was killed, was tried; (case, tensor) -> kills."""
        each = [rows for (mutant, _, _), rows in self.kills.items() if mutant == name]
        by = Counter((row.case, row.tensor) for rows in each for row in rows)
        return sum(bool(rows) for rows in each), len(each), by


def wanted(frameworks: Iterable[str], claims: Iterable[str]) -> list[Key]:
    """All that has to be killed: a mutant counts in the dtypes in which it can be told from its twin."""
    return [
        (m.name, framework, claim)
        for framework in frameworks
        for claim in claims
        for m in MUTANTS.values()
        if CLAIMS[claim].io in m.dtypes
    ]


def record(proof: Proof) -> dict:
    """As JSON: by mutant, framework and claim the kills, each a case, a tensor and its share of the bound."""

    def said(row: Row) -> dict:
        share = row.share if math.isfinite(row.share) else str(row.share)
        return {"case": row.case, "tensor": row.tensor, "share": share}

    mutants = []
    for name in dict.fromkeys(name for name, _, _ in proof.kills):
        m, by = MUTANTS[name], defaultdict(dict)
        for (mutant, framework, claim), rows in proof.kills.items():
            if mutant == name:
                by[framework][claim] = [said(row) for row in rows]
        what = {"name": name, "theme": m.theme, "does": m.does, "origin": m.origin}
        mutants.append(what | {"gradient_only": m.gradient_only, "killed_by": by})
    failed = [
        {"framework": framework, "claim": claim, "of": row.mutant, "case": row.case}
        for framework, claim, row in proof.failed
    ]
    keys = ("mutant", "framework", "claim")
    return {
        "schema": SCHEMA,
        "summary": {
            "mutants": len(mutants),
            "tried": len(proof.kills),
            "killed": len(proof.kills) - len(proof.alive),
            "trials": proof.trials,
            "twins_failed": len(failed),
            "exit_code": proof.exit_code,
        },
        "alive": [dict(zip(keys, key, strict=True)) for key in proof.alive],
        "twins_failed": failed,
        "mutants": mutants,
    }


def lines(proof: Proof) -> Iterator[str]:
    """A line for each theme and each of its mutants; then the mutants alive, and the twins that failed."""
    for theme, names in proof.themes().items():
        found = {name: proof.of(name) for name in names}
        killed = sum(k == tried for k, tried, _ in found.values())
        yield f"{theme}: {killed} killed, {len(names) - killed} alive"
        for name, (k, tried, by) in found.items():
            cases = ", ".join(f"{case} ({tensor})" for (case, tensor), _ in by.most_common(2))
            yield f"  {name:32} {k}/{tried}  {cases}".rstrip()
    for name, framework, claim in proof.alive:
        yield f"alive: {name} in {framework}, claim {claim}: {MUTANTS[name].does}"
    for framework, claim, row in proof.failed:
        yield f"a twin failed: of {row.mutant} in {framework}, claim {claim}, on {row.case}"
