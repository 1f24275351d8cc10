"""One process, one framework: it prepares programs and runs them when asked. Session is the parent's end.

Threads are set in the environment before the process begins, hence before anything is imported. A request is
answered with its result or with the text of what it raised; if the process dies (memory ran out), the parent
gets Died.
"""

import gc
import math
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from importlib import import_module

from benchmarks import check, contenders, resident
from benchmarks.cells import BOTH, Cell
from benchmarks.program import Program
from parity import oracle_block

SETTLED = 0.02  # seconds: a visit repeats a shorter call until its calls take this long together
AWAKE = 0.25  # seconds of a call, from which on no other call has to wake the threads before it
GRACE = 10.0  # seconds for a process to end by itself
SPAWN = multiprocessing.get_context("spawn")


class Died(RuntimeError):
    """The process ended without an answer."""


class Session:
    """A worker process, as the parent sees it: session.ask("prepare", cell, "torch.sdpa")."""

    def __init__(self, framework: str, device: str, threads: int):
        self.settings = (framework, device, threads)
        self.prepared: list[tuple[Cell, str]] = []
        self.start()

    def start(self):
        self.pipe, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=serve, args=(theirs, *self.settings), daemon=True)
        self.process.start()
        theirs.close()

    def restart(self):
        """A new process, which prepares again what the old one had."""
        self.start()
        for cell, name in self.prepared:
            self.ask("prepare", cell, name)

    def ask(self, name: str, *args):
        """The result of Bench.name(*args) there. Raises Died, or RuntimeError with what was raised there."""
        try:
            self.pipe.send((name, args))
            done, answer = self.pipe.recv()
        except (EOFError, OSError) as error:
            self.process.join()
            raise Died(f"the process ended with exit code {self.process.exitcode}") from error
        if not done:
            raise RuntimeError(answer)
        return answer

    def prepare(self, cell: Cell, name: str) -> dict:
        """What Bench.prepare saw. If the process dies of it, another takes its place."""
        try:
            seen = self.ask("prepare", cell, name)
        except Died:
            self.restart()
            raise
        if seen["status"] == "ready":
            self.prepared.append((cell, name))
        return seen

    def time(self, cell: Cell, name: str, warm_s: float) -> float:
        """Seconds a call. If the process dies of it, another takes its place, without this contender."""
        try:
            return self.ask("time", cell, name, warm_s)
        except Died:
            self.prepared.remove((cell, name))
            self.restart()
            raise

    def clear(self):
        self.prepared.clear()
        self.ask("clear")

    def close(self):
        self.pipe.close()  # the worker's receive fails, and it returns
        self.process.join(GRACE)
        self.process.kill()


def fix_threads(threads: int):
    """Fix both frameworks' threads for every process to come, and let them share an accelerator's memory."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")  # NPROC sizes the pools of XLA's CPU client
    os.environ |= dict.fromkeys(names, str(threads)) | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def serve(pipe, framework: str, device: str, threads: int):
    """Answer requests until the parent closes the pipe. It is the parent whom the keyboard interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bench = None
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:
            return
        try:
            bench = bench or Bench(framework, device, threads)
            answer = (True, getattr(bench, name)(*args))
        except Exception as error:  # whatever a contender raises is a finding, to be shown in the report
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            answer = (False, kind + " ".join(str(error).split())[:200])
        pipe.send(answer)


class Bench:
    """What a worker can do. Programs are kept until clear()."""

    def __init__(self, framework: str, device: str, threads: int):
        self.device = device
        self.on = import_module(f"benchmarks.on_{framework}")
        self.facts = self.on.start(device, threads)
        self.programs: dict[tuple[Cell, str], Program] = {}

    def describe(self) -> dict:
        return self.facts

    def clear(self):
        self.programs.clear()
        check.forget()
        gc.collect()

    def prepare(self, cell: Cell, name: str) -> dict:
        """Compile, check, run until warm: "status" (ready, failed or unsupported) and what was seen."""
        if reason := contenders.unable(cell, name, self.device):
            return {"status": "unsupported", "reason": reason}
        before = resident.settle()
        program = self.build(cell, name)
        attention = cell.kind == "attention"
        dout = [self.on.place(check.cotangent(cell), cell.dtype)] if attention and cell.backward else []
        started = time.perf_counter()
        results = program.call(*dout)
        self.on.wait(results)
        first_s = time.perf_counter() - started
        seen = {"first_s": first_s, "compile_s": program.compile_s}
        seen["grown"] = resident.peak() - before
        claim = contenders.everyone()[name].claim(cell.dtype)
        if attention:
            seen |= check.attention(cell, claim, *map(self.on.fetch, results))
        else:
            seen |= {"block": self.check_block, "model": self.check_model}[cell.kind](cell, name, claim)
        if seen["verdict"] == "failed":
            return {"status": "failed", **seen}
        self.programs[cell, name] = program
        warm_s = self.sample(program, 1, wake=first_s < AWAKE)
        return {"status": "ready", "backend": program.backend(), "warm_s": warm_s, **seen}

    def build(self, cell: Cell, name: str) -> Program:
        """The contender's program for this cell, with arrays of its own on the device."""
        if cell.kind == "block":
            return self.build_block(cell, name)[0]
        if cell.kind == "model":
            return contenders.everyone()[name].load()(self.on, cell, *check.made_model(cell))
        given = check.made(cell.case(), cell.dtype)
        leaves = tuple(self.on.place(x, cell.dtype) for x in (given.q, given.k, given.v))
        options = {
            key: self.on.place(x, cell.dtype) if hasattr(x, "dtype") else x
            for key, x in given.options.items()
        }
        dout = self.on.place(given.dout, cell.dtype) if cell.backward else None
        return self.on.compiled(contenders.everyone()[name].load(), leaves, options, dout)

    def build_block(self, cell: Cell, name: str):
        """(program, tree_of): see blocks.py."""

        def place(x):
            return self.on.place(x, cell.dtype)

        tree, x, dout = check.made_block(cell)
        f, parameters, tree_of = contenders.everyone()[name].load()(tree, place)
        program = self.on.compiled(f, (place(x), *parameters), {}, place(dout) if cell.backward else None)
        return program, tree_of

    def check_block(self, cell: Cell, name: str, claim: str) -> dict:
        """The finding on the same block at a short length: see check.py."""
        short = replace(cell, T=check.SHORT, B=1, passes=BOTH)
        program, tree_of = self.build_block(short, name)
        out, dx, *gradients = program.call()
        found = {"out": out, "dx": dx} | oracle_block.flatten(tree_of(*gradients), "dparams")
        return check.block(short, claim, {path: self.on.fetch(x) for path, x in found.items()})

    def check_model(self, cell: Cell, name: str, claim: str) -> dict:
        """The finding on a smaller model after a short context: see check.py."""
        short = replace(cell, T=check.SHORT, L=check.SHALLOW)
        program = self.build(short, name)
        program.call()
        return check.model(short, claim, self.on.fetch(program.call()[0]))

    def time(self, cell: Cell, name: str, warm_s: float) -> float:
        """Seconds a call, of one visit."""
        program, calls = self.programs[cell, name], max(1, math.ceil(SETTLED / warm_s))
        return self.sample(program, calls, wake=warm_s < AWAKE)

    def sample(self, program: Program, calls: int, wake: bool = True) -> float:
        """Mean seconds of so many calls, each waited for. wake: after one that wakes the threads, untimed."""
        if wake:
            self.on.wait(program.call())
        gc.disable()
        started = time.perf_counter()
        for _ in range(calls):
            self.on.wait(program.call())
        elapsed = time.perf_counter() - started
        gc.enable()
        return elapsed / calls

    def roof(self, kind: str, size: int, dtype: str) -> float:
        """Seconds of one matmul (size: n) or copy (size: bytes read and written), the fastest of five."""
        program = getattr(self.on, kind)(size, dtype)
        return min(self.sample(program, 1) for _ in range(5))
