"""Worker processes, from the parent's side: a few at a time, each restarted when it hangs or dies.

A hang or a crash costs the task that it happened in; everything else goes on.
"""

import multiprocessing
import queue
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

from parity import devices, worker
from parity.worker import Answer, Task

START = 60.0  # seconds to import a framework, beside the timeout of a task
MOST = 8  # processes
SHARE = 30  # tasks that are worth the start of another process of the same kind


class Worker:
    """One process for one kind of task: a framework's name, or a plug-in's address."""

    def __init__(self, kind: str, timeout: float):
        self.kind = kind
        self.timeout = timeout
        self.log = Path(tempfile.mkstemp(prefix="parity-", suffix=".log")[1])
        self.process: BaseProcess | None = None
        self.environment: dict = {}  # what it found when it started
        self.absent = ""  # why it cannot run
        self.closed = False

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        arguments = (theirs, self.kind, str(self.log))
        self.process = context.Process(target=worker.serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        said = self._receive(START + self.timeout)
        self.environment, self.absent = (said, "") if isinstance(said, dict) else ({}, said.error)

    def ask(self, task: Task) -> Answer:
        """The answer, or one whose error says that the process hung or died; the next task starts another."""
        if self.process is None and not self.closed and not self.absent:
            self.start()
        if self.process is None:
            return Answer({}, {}, 0.0, self.absent)
        return self._receive(self.timeout, task)

    def _receive(self, timeout: float, task: Task | None = None):
        """What comes next, after sending a task if there is one."""
        error, end = f"no answer after {timeout:g} s", time.monotonic() + timeout
        try:
            if task is not None:
                self.pipe.send(task)
            while not self.closed and (left := end - time.monotonic()) > 0.0:
                if self.pipe.poll(min(left, 0.1)):
                    return self.pipe.recv()
        except (EOFError, OSError):
            error = f"the process died{self._last_words()}"
        self.stop()
        return Answer({}, {}, timeout, error)

    def _last_words(self) -> str:
        if self.process is None:
            return ""
        self.process.join(5)
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return f" (exit code {self.process.exitcode})" + (f": {lines[-1][:200]}" if lines else "")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
        self.process = None


class Pool:
    """Tasks of several kinds, side by side, in at most as many processes as there are cores."""

    def __init__(self, kinds: Iterable[str], timeout: float):
        self.timeout = timeout
        self.workers = {kind: Worker(kind, timeout) for kind in kinds}
        self.all = list(self.workers.values())
        self.stopping = threading.Event()
        self.slots: list[threading.Thread] = []

    def start(self) -> dict[str, Worker]:
        """Start one worker of each kind, all together."""
        threads = [threading.Thread(target=w.start, daemon=True) for w in self.workers.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return dict(self.workers)

    def run(self, tasks: dict[str, list[Task]]) -> Iterator[tuple[Task, Answer]]:
        """Answers as they arrive. Closing the generator stops every process."""
        self.todo = {kind: deque(those) for kind, those in tasks.items() if those}
        self.active = dict.fromkeys(self.todo, 0)
        self.lock = threading.Lock()
        answers: queue.Queue = queue.Queue(maxsize=64)
        count = min(devices.cores(), MOST)
        self.slots = [threading.Thread(target=self._work, args=(answers,), daemon=True) for _ in range(count)]
        for slot in self.slots:
            slot.start()
        try:
            for _ in range(sum(len(those) for those in tasks.values())):
                yield answers.get()
        finally:
            self.stop()

    def _work(self, answers: queue.Queue) -> None:
        while (kind := self._choose()) is not None:
            mine = self._take(kind)
            while not self.stopping.is_set():
                try:
                    task = self.todo[kind].popleft()
                except IndexError:
                    break
                self._deliver(answers, (task, mine.ask(task)))
            mine.stop()
            with self.lock:
                self.active[kind] -= 1

    def _deliver(self, answers: queue.Queue, found: tuple[Task, Answer]) -> None:
        """Put it there when there is room: large answers must not pile up."""
        while not self.stopping.is_set():
            try:
                return answers.put(found, timeout=0.1)
            except queue.Full:
                pass

    def _choose(self) -> str | None:
        """The kind with the most tasks for each process at work on it, if one more is worth its start."""
        with self.lock:
            if self.stopping.is_set():
                return None
            waiting = [
                k for k, todo in self.todo.items() if todo and (not self.active[k] or len(todo) > SHARE)
            ]
            if not waiting:
                return None
            kind = max(waiting, key=lambda k: len(self.todo[k]) / (self.active[k] + 1))
            self.active[kind] += 1
            return kind

    def _take(self, kind: str) -> Worker:
        with self.lock:
            mine = self.workers.pop(kind, None) or Worker(kind, self.timeout)
            self.all += [] if mine in self.all else [mine]
        return mine

    def stop(self) -> None:
        """End every process and thread."""
        self.stopping.set()
        for each in self.all:
            each.closed = True  # whoever waits for its answer stops waiting
        for slot in self.slots:
            slot.join()
        for each in self.all:
            each.stop()
            each.log.unlink(missing_ok=True)
