"""Worker processes, from the parent's side: a few at a time, each restarted when it hangs or dies.

A hang or a crash costs the task that it happened in; everything else goes on.
"""

import multiprocessing
import queue
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

from parity import devices, worker
from parity.worker import Answer, Task

START = 60.0  # seconds to import a framework, beside the timeout of a task
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
        if self.process is None:
            self.start()
        if self.absent:
            return Answer({}, {}, 0.0, self.absent)
        self.pipe.send(task)
        return self._receive(self.timeout)

    def _receive(self, timeout: float):
        try:
            if self.pipe.poll(timeout):
                return self.pipe.recv()
            error = f"no answer after {timeout:g} s"
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

    def close(self) -> None:
        self.stop()
        self.log.unlink(missing_ok=True)


class Pool:
    """Tasks of several kinds, side by side, in at most as many processes as there are cores."""

    def __init__(self, kinds: Iterable[str], timeout: float):
        self.timeout = timeout
        self.workers = {kind: Worker(kind, timeout) for kind in kinds}
        self.spare: list[Worker] = []
        self.stopping = threading.Event()

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
        slots = [
            threading.Thread(target=self._work, args=(answers,), daemon=True) for _ in range(self._slots())
        ]
        for slot in slots:
            slot.start()
        try:
            for _ in range(sum(len(those) for those in tasks.values())):
                yield answers.get()
        finally:
            self.stop()

    def _slots(self) -> int:
        return max(1, min(devices.cores(), 8))

    def _work(self, answers: queue.Queue) -> None:
        while (kind := self._choose()) is not None:
            mine = self._take(kind)
            while not self.stopping.is_set():
                try:
                    task = self.todo[kind].popleft()
                except IndexError:
                    break
                answers.put((task, mine.ask(task)))
            mine.stop()
            with self.lock:
                self.active[kind] -= 1

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
            self.spare.append(mine)
        return mine

    def stop(self) -> None:
        self.stopping.set()
        for each in [*self.workers.values(), *self.spare]:
            each.close()
