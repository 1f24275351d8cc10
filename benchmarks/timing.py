"""The run: cells in groups whose times will be compared, and in each round one visit to every contender.

A round visits all contenders of a group, of both frameworks, in a random order; the next round in the reverse
of it (A B C, C B A): what drifts slowly falls on all alike. The parent asks, one worker computes, the other
waits.
"""

import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import contenders, environment, memory, roofline
from benchmarks.cells import DECODING, Cell
from benchmarks.tables import SCHEMA
from benchmarks.worker import Died, Session, fix_threads

FEWEST, MOST = 4, 20  # rounds
# Seconds a call. One is left out if beyond LONG (of a baseline LONG_BASE) and thrice the fastest, or LONGEST.
LONG, LONG_BASE, LONGEST = 1.0, 5.0, 60.0
ROOM = 0.6  # of the free memory: a call expected to take more is left out


def groups(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells to interleave: one direction, dtype and length; attention's variants together. Short first.

    Steps of several batches are apart: two times as many models would be in memory.
    """

    def key(cell):
        apart = (cell.variant == "step" and cell.B, cell.variant == "block", cell.variant == "decode")
        return (*apart, cell.dtype, cell.passes, cell.T)

    return [list(together) for _, together in itertools.groupby(sorted(cells, key=key), key)]


def orders(n: int, rounds: int, seed: int) -> Iterator[list[int]]:
    """One order of n contenders for each round: a random one, its reverse, another random one, ..."""
    rng = random.Random(seed)
    for _ in range(0, rounds, 2):
        order = rng.sample(range(n), n)
        yield order
        yield order[::-1]


def rounds_for(warm_s: list[float], budget_s: float) -> int:
    """As many rounds as the budget holds, within FEWEST and MOST, and even: each order has its reverse."""
    rounds = int(budget_s / max(sum(warm_s), 1e-9))
    return max(FEWEST, min(MOST, rounds // 2 * 2))


def refusal(cell: Cell, name: str, history: dict[tuple[str, str], dict], free: float) -> str | None:
    """Why not to try: beyond its last length, time and memory should grow with T squared, in decoding with T.

    history: (workload, contender) -> its last row that ran. free: bytes of memory.
    """

    def expected(name, what):
        last = history.get((cell.workload, name))
        power = 1 if cell.variant in DECODING else 2
        return last and last[what] * (cell.T / last["cell"]["T"]) ** power * cell.B / last["cell"]["B"]

    patience = LONG_BASE if name in contenders.BASELINES[cell.kind].values() else LONG
    others = [expected(other, "warm_s") for workload, other in history if workload == cell.workload]
    seconds, grown = expected(name, "warm_s"), expected(name, "grown")
    if seconds and seconds > min(LONGEST, max(patience, 3 * min(others))):
        return f"would take about {seconds:.0f} s a call"
    if grown and grown > ROOM * free:
        return f"would take about {grown / 2**30:.0f} GiB"
    return None


def known(cell: Cell, name: str) -> dict:
    """The row of a cell and contender before anything ran."""
    return {
        "cell": asdict(cell),
        "workload": cell.workload,
        "subject": name,
        "framework": contenders.everyone()[name].framework,
        "pairs": cell.pairs(),
        "flops": cell.flops(),
        "dense_flops": cell.dense_flops(),
        "read_bytes": cell.read_bytes(),
        "result_bytes": cell.result_bytes(),
        "samples": [],
    }


def measure(
    name: str, cells: list[Cell], names: list[str], device: str, threads: int, seed: int, budget_s: float
) -> dict:
    """The record of a run (see tables.py), or, if it is stopped, of what was measured until then.

    budget_s: seconds of rounds a group. Progress goes to stderr.
    """
    fix_threads(threads)
    surroundings = environment.describe(device, threads, seed)
    plan = groups(cells)
    columns = (BarColumn(12), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting the workers", total=len(plan))
        run = Run(names, device, threads, seed, lambda text: bar.update(task, description=text))
        missing, stopped = len(plan), ""
        try:
            for group in plan:
                bar.console.print(run.group(group, budget_s))
                bar.advance(task)
                missing -= 1
        except (KeyboardInterrupt, Died) as error:
            stopped = str(error) or "interrupted"
            bar.console.print(f"{stopped}: {missing} of {len(plan)} groups of cells were not measured")
        run.close()
    record = {"schema": SCHEMA, "name": name, "environment": surroundings, "frameworks": run.frameworks}
    return record | {"missing": missing, "stopped": stopped, "roofs": run.roofs, "rows": run.rows}


class NoDevice(RuntimeError):
    """No framework can run on the device that was asked for."""


class Run:
    """The workers of one run and what has been measured. rows: one dict for each cell and contender."""

    def __init__(self, names: list[str], device: str, threads: int, seed: int, say: Callable[[str], None]):
        self.names, self.device, self.threads, self.seed, self.say = names, device, threads, seed, say
        frameworks = sorted({contenders.everyone()[name].framework for name in names}, reverse=True)
        self.sessions: dict[str, Session] = {}
        self.frameworks: dict[str, dict] = {}  # what each reports of itself
        self.absent: dict[str, str] = {}  # why another is not there
        for framework in frameworks:
            session = Session(framework, device, threads)
            try:
                self.frameworks[framework] = session.ask("describe")
                self.sessions[framework] = session
            except RuntimeError as error:
                self.absent[framework] = str(error)
        if not self.sessions:
            raise NoDevice("; ".join(self.absent.values()))
        self.rows: list[dict] = []
        self.roofs: list[dict] = []
        self.history: dict[tuple[str, str], dict] = {}  # (workload, contender) -> its last row that ran

    def close(self):
        for session in self.sessions.values():
            session.close()

    def group(self, cells: list[Cell], budget_s: float) -> str:
        """Check, time and weigh every contender of these cells. Returns a line that says so."""
        started = time.perf_counter()
        where = f"{cells[0].passes}, {cells[0].dtype}, T = {cells[0].T}"
        rows = [
            (cell, known(cell, name)) for cell in cells for name in self.names if contenders.fits(cell, name)
        ]
        for cell, row in rows:
            self.say(f"{where}: checking {row['subject']}, {cell.variant}")
            row |= self.prepare(cell, row)
        ready = [(cell, row) for cell, row in rows if row["status"] == "ready"]
        self.say(f"{where}: what the machine can do")
        self.roofs += roofline.probe(self.sessions, cells[0], self.device)
        rounds = rounds_for([row["warm_s"] for _, row in ready], budget_s)
        for number, order in enumerate(orders(len(ready), rounds, self.seed), 1):
            self.say(f"{where}: timing, round {number} of {rounds}")
            self.visit([ready[n] for n in order])
        for session in self.sessions.values():
            session.clear()
        self.say(f"{where}: memory, each in a process of its own")
        self.weigh([(cell, row) for cell, row in ready if cell.weighed])
        self.rows += [row for _, row in rows]
        seconds = time.perf_counter() - started
        return f"{where}: {len(ready)} of {len(rows)} timed, {rounds} rounds, {seconds:.0f} s"

    def prepare(self, cell: Cell, row: dict) -> dict:
        """What the worker saw. A contender that is not expected to fit is not started."""
        name, session = row["subject"], self.sessions.get(row["framework"])
        if session is None:
            return {"status": "unsupported", "reason": self.absent[row["framework"]]}
        if reason := refusal(cell, name, self.history, psutil.virtual_memory().available):
            return {"status": "left out", "reason": reason}
        try:
            seen = session.prepare(cell, name)
        except RuntimeError as error:
            return {"status": "failed", "reason": str(error)}
        if seen["status"] == "ready":
            self.history[cell.workload, name] = row | seen
        return seen

    def visit(self, rows: list[tuple[Cell, dict]]):
        """One round: a sample, in seconds a call, for each row."""
        for cell, row in rows:
            if row["status"] == "ready":
                session = self.sessions[row["framework"]]
                try:
                    row["samples"].append(session.time(cell, row["subject"], row["warm_s"]))
                except RuntimeError as error:
                    row |= {"status": "failed", "reason": str(error), "samples": []}

    def weigh(self, rows: list[tuple[Cell, dict]]):
        """Peak memory; as many processes at once as there are threads, where all of them fit."""
        free = ROOM * psutil.virtual_memory().available
        together = self.threads if sum(row["grown"] for _, row in rows) < free else 1
        with ThreadPoolExecutor(together) as pool:
            list(pool.map(lambda pair: self.weigh_one(*pair), rows))

    def weigh_one(self, cell: Cell, row: dict):
        """memory, or unweighed: why there is none."""
        try:
            row["memory"] = memory.measure(row["framework"], self.device, self.threads, cell, row["subject"])
        except RuntimeError as error:
            row["unweighed"] = str(error)
