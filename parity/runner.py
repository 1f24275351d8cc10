"""The matrix: cases x subjects x dtypes x devices, each cell run in a worker, judged here, and recorded.

The oracle is computed once for a case and dtype, a bound once for a claim. Every cell ends as one of
STATUSES and says why; none is left out silently.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from parity import blocks, bounds, evidence, inputs, oracle, verdict
from parity.blocks import BlockCase
from parity.cases import Case
from parity.pool import Pool
from parity.subjects import Subject, plugin
from parity.worker import Answer, Given, Task, inputs_of, split

STATUSES = ("passed", "diverges", "no_evidence", "unsupported", "failed", "error")
BROKEN = ("failed", "error")


@dataclass(frozen=True)
class Plan:
    """What to run. subjects: built in, or addresses of plug-ins. device: "auto" (all there are) or a kind.

    timeout: seconds for one cell. quick_compile: XLA optimises less on a CPU, and takes a fifth of the time.
    whole: nothing was left out by name, so that a divergence that may show in any case has to show in one.
    """

    subjects: tuple[Subject | str, ...]
    cases: tuple[Case | BlockCase, ...]
    dtypes: tuple[str, ...]
    device: str = "auto"
    seed: int = 0
    timeout: float = 60.0
    quick_compile: bool = True
    whole: bool = False


class NoDevice(Exception):
    """Nobody has the device that was asked for."""


class Run:
    """One run of a plan: start() finds out what is there, cells() yields a record for each cell.

    environments: process -> what parity.devices found there. absent: process -> why it cannot run.
    """

    def __init__(self, plan: Plan, keep: Callable[[Task, Answer, dict], str] | None = None):
        """keep: called with each attention that did not hold; what it returns is the cell's "replay"."""
        self.plan = plan
        self.keep = keep
        self.pool = Pool({process_of(subject) for subject in plan.subjects}, plan.timeout)
        self.subjects: list[Subject] = []
        self.environments: dict[str, dict] = {}
        self.absent: dict[str, str] = {}

    def start(self) -> None:
        """Start the workers and learn what is there. Raises NoDevice."""
        workers = self.pool.start()
        self.environments = {kind: w.environment for kind, w in workers.items() if not w.absent}
        self.absent = {kind: w.absent for kind, w in workers.items() if w.absent}
        self.subjects = [self._resolve(subject) for subject in self.plan.subjects]
        wanted = self.plan.device
        if wanted != "auto" and not any(self.devices(kind) for kind in self.environments):
            self.pool.stop()
            found = [f"{kind} has {' and '.join(self.kinds(kind))}" for kind in self.environments]
            raise NoDevice(f"no {wanted} here: {', '.join(found) or 'no framework is installed'}")

    def _resolve(self, subject: Subject | str) -> Subject:
        if isinstance(subject, Subject):
            return subject
        if subject in self.absent:
            return Subject(subject, "unknown", broken, {}, process=subject)
        return plugin.described(subject, self.environments[subject]["subject"])

    def kinds(self, process: str) -> list[str]:
        """The kinds of device found there: "cpu", ..."""
        return list(dict.fromkeys(device["kind"] for device in self.environments[process]["devices"]))

    def devices(self, process: str) -> list[str]:
        """Those of them that this run uses."""
        return [kind for kind in self.kinds(process) if self.plan.device in ("auto", kind)]

    def cells(self) -> Iterator[dict]:
        """A record for each cell, those that cannot run first. Closing the generator stops the workers."""
        with closing(self._cells()) as cells:
            yield from overdue(cells, self.subjects) if self.plan.whole else cells

    def _cells(self) -> Generator[dict, None, None]:
        tasks: dict[str, list[Task]] = {}
        named = {subject.process or subject.name: subject for subject in self.subjects}
        for case, dtype, (name, subject) in product(self.plan.cases, self.plan.dtypes, named.items()):
            process = process_of(subject)
            for device in self.devices(process) if process in self.environments else ["none"]:
                status, reason = self._without_running(subject, case, dtype)
                if reason:
                    yield record(subject, case, dtype, device, status, reason=reason)
                    continue
                backward = device not in subject.forward_only
                task = Task(name, case, dtype, device, self.plan.seed, backward, self.plan.quick_compile)
                tasks.setdefault(process, []).append(task)
        for task, answer in self.pool.run(tasks):
            if isinstance(task.case, BlockCase):
                claims = {
                    s.claims[d] for s in self.subjects if s.block for d in self.plan.dtypes if d in s.claims
                }
                yield judge_block(named[task.subject], task.case, task, answer, tuple(sorted(claims)))
                continue
            cell = judge(named[task.subject], task, answer)
            if self.keep and cell["status"] in BROKEN:
                cell["replay"] = self.keep(task, answer, cell)
            yield cell

    def one(self, task: Task) -> tuple[Answer, dict]:
        """Run one task now, and judge it. After start, and not while cells() runs."""
        (subject,) = self.subjects
        answer = self.pool.workers[process_of(subject)].ask(task)
        return answer, judge(subject, task, answer)

    def close(self) -> None:
        self.pool.stop()

    def _without_running(
        self, subject: Subject, case: Case | BlockCase, dtype: str
    ) -> tuple[str, str | None]:
        """Status and reason of a cell that is settled before it runs; no reason: it has to run."""
        process = process_of(subject)
        if process in self.absent:
            return "error" if subject.process else "unsupported", self.absent[process]
        if dtype not in subject.claims:
            return "unsupported", f"claims nothing for {dtype}"
        if isinstance(case, BlockCase):
            return "unsupported", None if subject.block else "has no block"
        return "unsupported", subject.cannot(case)


def overdue(cells: Iterable[dict], subjects: list[Subject]) -> Iterator[dict]:
    """The cells, and a failure for each divergence that need not show in every case, and showed in none."""
    may = {
        (s.name, dtype): d.name for s in subjects for d in s.diverges if not d.always for dtype in d.dtypes
    }
    shown: set[tuple] = set()
    held: dict[tuple, dict] = {}  # a cell of each that has not shown yet
    for cell in cells:
        name = may.get((cell["subject"], cell["dtype"]))
        key = cell["subject"], name
        if name in cell.get("diverges", ()):
            shown.add(key)
            if key in held:
                yield held.pop(key)
            yield cell
        elif name is None or cell["status"] != "passed" or key in shown or key in held:
            yield cell
        else:
            held[key] = cell
    for (_, name), cell in held.items():
        yield cell | {"status": "failed", "reason": f"no longer diverges: {name}, in none of the cases"}


def broken():
    raise RuntimeError("a plug-in that did not load")


def process_of(subject: Subject | str) -> str:
    """The process a subject runs in: its framework's, or one of its own for a plug-in."""
    return subject if isinstance(subject, str) else subject.process or subject.framework


def record(subject: Subject, case: Case | BlockCase, dtype: str, device: str, status: str, **more) -> dict:
    """A cell of the report."""
    cell = {"subject": subject.name, "framework": subject.framework, "case": case.name, "dtype": dtype}
    cell |= {"device": device, "status": status, "reason": "", "claim": subject.claims.get(dtype, "")}
    return cell | more


# ---- judgement


@lru_cache(maxsize=512)
def truth_of(source: Given | tuple) -> tuple[inputs.Inputs, oracle.Oracle]:
    """The inputs of a task's source, and what the contract makes of them."""
    given = inputs_of(source)
    return given, oracle.attention(given.q, given.k, given.v, given.dout, **given.options)


@lru_cache(maxsize=2048)
def contract(source: Given | tuple, claim: str) -> dict:
    return bounds.attention(truth_of(source)[1], bounds.CLAIMS[claim])


@dataclass
class Expected:
    """What a subject must give: values and bounds by tensor name. A NaN among the values must be there.

    sizes: how large each tensor is if nothing cancels, which its bound has to be small against."""

    values: dict
    bounds: dict
    sizes: dict
    claim: str

    def judge(self, tensors: dict) -> verdict.Verdict:
        return verdict.judge_all(tensors, self.values, self.bounds, self.sizes)


def expected(subject: Subject, task: Task, applied: Iterable) -> Expected:
    """With these declared divergences in force."""
    case, (given, truth) = task.case, truth_of(task.source)
    claim, instead, nan = subject.claims[task.dtype], truth, {}
    for divergence in applied:
        claim = (divergence.claims or {}).get(task.dtype, claim)
        instead = divergence.instead(case, given, truth) if instead is truth else instead
        nan |= divergence.nan(case, given, truth)
    limits = (
        contract(task.source, claim) if instead is truth else bounds.attention(instead, bounds.CLAIMS[claim])
    )
    values = {name: getattr(instead, name) for name in limits if getattr(instead, name, None) is not None}
    for name, where in nan.items():
        values[name] = np.where(where, np.nan, values[name])
        limits = limits | {name: np.where(where, 0.0, limits[name])}
    return Expected(values, limits, bounds.sizes(instead), claim)


@np.errstate(invalid="ignore", over="ignore", divide="ignore")  # NaN and Inf are what is judged
def judge(subject: Subject, task: Task, answer: Answer) -> dict:
    """The record of a cell that ran: against the contract, or both ways where divergences are declared."""
    cell = record(subject, task.case, task.dtype, task.device, "error", seconds=round(answer.seconds, 4))
    cell["backward"] = task.backward
    if answer.error:
        return cell | {"reason": answer.error}
    wrong = form(subject, task, answer)
    if wrong:
        return cell | {"status": "failed", "reason": wrong}
    given, truth = truth_of(task.source)
    applied = [d for d in subject.diverges if task.dtype in d.dtypes and d.when(task.case, given, truth)]
    want = expected(subject, task, applied)
    found = want.judge(answer.tensors)
    cell |= {"claim": want.claim, **found.record(), "diverges": [d.name for d in applied]}
    for tensor in cell["tensors"]:
        name = tensor["name"]
        tensor |= evidence.attention(name, answer.tensors[name], want.values[name], want.bounds[name])
    if not applied:
        return cell
    return cell | both_ways(subject, task, answer, applied, found)


@np.errstate(invalid="ignore", over="ignore")
def judge_block(subject: Subject, case: BlockCase, task: Task, answer: Answer, claims: tuple) -> dict:
    """The record of a block that ran; claims: all by which blocks are judged in this run."""
    cell = record(subject, case, task.dtype, task.device, "error", seconds=round(answer.seconds, 4))
    cell["backward"] = True
    if answer.error:
        return cell | {"reason": answer.error}
    return cell | blocks.judge(case, task.seed, answer.tensors, cell["claim"], claims).record()


def both_ways(subject: Subject, task: Task, answer: Answer, applied: list, found: verdict.Verdict) -> dict:
    """Status and reason under declared divergences: held with all of them, not held without any one."""
    held = {tensor.name for tensor in found.tensors if tensor.status == verdict.PASSED}
    shown = []
    for left_out in applied:
        want = expected(subject, task, [d for d in applied if d is not left_out])
        without = want.judge(answer.tensors)
        if any(tensor.name in held and tensor.status != verdict.PASSED for tensor in without.tensors):
            shown.append(left_out)
    gone = [d.name for d in applied if d not in shown]
    if found.status == verdict.FAILED:
        return {"diverges": [d.name for d in shown]} | (
            {"reason": f"no longer diverges: {', '.join(gone)}"} if gone else {}
        )
    missing = [d.name for d in applied if d.always and d not in shown]
    if missing:
        return {"status": "failed", "reason": f"no longer diverges: {', '.join(missing)}", "diverges": []}
    status = "diverges" if shown else found.status
    kept = [d.claims[task.dtype] for d in shown if d.claims] or [subject.claims[task.dtype]]
    says, names = "; ".join(d.says for d in shown), [d.name for d in shown]
    return {"status": status, "reason": says, "diverges": names, "claim": kept[0]}


def form(subject: Subject, task: Task, answer: Answer) -> str:
    """What is wrong with the names, shapes or dtypes of an answer; empty if nothing is."""
    given, truth = truth_of(task.source)
    for name, x in answer.tensors.items():
        want = getattr(truth, name).shape
        if x.shape != want:
            return f"{name} has shape {x.shape}, wanted {want}"
    wide = "float64" if task.dtype == "float64" else "float32"
    for name, dtype in answer.dtypes.items():
        wanted = {"out": (task.dtype,), "lse": (wide,)}.get(name, (task.dtype, wide))
        if dtype not in wanted:
            return f"{name} has dtype {dtype}, wanted {wanted[0]}"
    leaves, _ = split(given, subject.constants)
    missing = [f"d{name}" for name in leaves if f"d{name}" not in answer.tensors] if task.backward else []
    return f"no {', '.join(missing)}: the output does not depend on it" if missing else ""
