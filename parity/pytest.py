"""For a kernel's own test-suite: one test for each case and dtype, judged like every subject.

```python
import parity.pytest

from mykernels import my_attention


@parity.pytest.parametrize(my_attention)
def test_my_attention(check):
    check()
```

The function runs in the test's own process and with what that process has set, on float32 by default.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

from parity import runner, worker
from parity.cases import CATALOGUE, select
from parity.report.words import cell_lines
from parity.subjects import Subject, plugin
from parity.worker import Task


@dataclass(frozen=True)
class Check:
    """One cell. Calling it runs and judges it: an AssertionError says what did not hold, and where."""

    subject: Subject
    task: Task

    def __call__(self) -> dict:
        """The record of the cell, as in parity-report.json."""
        answer = worker.answer(worker.RUNS[self.subject.framework], self.task, lambda name: self.subject)
        cell = runner.judge(self.subject, self.task, answer)
        if cell["status"] in runner.BROKEN:
            pytest.fail("\n".join([f"{self} {cell['status']}", *cell_lines(cell)]), pytrace=False)
        return cell

    def __str__(self) -> str:
        return f"{self.task.case.name}-{self.task.dtype}"


def parametrize(
    function: Callable,
    *,
    cases: Iterable[str] | None = None,
    budget: str = "default",
    dtypes: Iterable[str] = ("float32",),
    device: str = "cpu",
    seed: int = 0,
) -> pytest.MarkDecorator:
    """Decorate a test that takes `check`; it becomes one test for each case and dtype.

    function: may be decorated with @parity.subject. cases: names; left out: those of the budget, "quick",
    "default" or "full". A case that the function cannot express is skipped with the reason.
    Raises KeyError for a case that does not exist, ValueError for a budget.
    """
    subject = plugin.wrap(function, f"{function.__module__}:{function.__qualname__}")
    params = []
    for case in select(budget) if cases is None else [CATALOGUE[name] for name in cases]:
        for dtype in dtypes:
            task = Task(subject.name, case, dtype, device, seed, device not in subject.forward_only)
            reason = subject.cannot(case) or (
                "" if dtype in subject.claims else f"claims nothing for {dtype}"
            )
            marks = [pytest.mark.skip(reason=reason)] if reason else []
            check = Check(subject, task)
            params.append(pytest.param(check, marks=marks, id=str(check)))
    return pytest.mark.parametrize("check", params)
