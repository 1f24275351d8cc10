"""The commands about one saved failure: run it again, make it smaller."""

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from parity import choose
from parity.screen import console

Failing = Annotated[Path, typer.Argument(exists=True, dir_okay=False, metavar="FILE")]
Another = Annotated[str | None, typer.Option("--subject", help="Another subject than the file's.")]


def replay(file: Failing, subject: Another = None) -> None:
    """Run a saved failure again."""
    from parity.report import terminal

    _, run, task = opened(file, subject)
    with closing(run):
        _, cell = run.one(task)
    out = console()
    if cell["status"] not in ("failed", "error"):
        out.print(f"{cell['status']}: {cell['subject']} {cell['case']} {cell['dtype']} {cell['device']}")
        raise typer.Exit(0)
    for text in terminal.failure(cell):
        out.print(text)
    raise typer.Exit(1)


def shrink(file: Failing, subject: Another = None) -> None:
    """Find the smallest input that still fails, and print it as a program in torch and in JAX."""
    from parity import replay as saved
    from parity import shrink as smaller
    from parity import snippet
    from parity.worker import Given

    failure, run, task = opened(file, subject)
    out, dtype = console(), task.dtype

    def attempt(made):
        return run.one(dataclasses.replace(task, case=saved.case_of(made, task.case.name), given=Given(made)))

    with closing(run):
        _, first = attempt(failure.made)
        if first["status"] not in ("failed", "error"):
            out.print(f"{file} does not fail any more: {first['status']}")
            raise typer.Exit(3)
        made, asked = smaller.shrink(failure.made, dtype, lambda made: smaller.alike(attempt(made)[1], first))
        answer, cell = attempt(made)
    given = dataclasses.replace(task, case=saved.case_of(made, task.case.name), given=Given(made))
    path = file.with_suffix(".shrunk.safetensors")
    saved.save(path, given, answer, cell, failure.said["environment"])
    out.print(snippet.explain(cell, made, asked))
    for framework in dict.fromkeys((cell["framework"], "torch", "jax")):
        out.print(f"\n# {framework}\n{snippet.program(framework, given, cell)}")
    out.print(f"written to {path}", style="dim")
    raise typer.Exit(1)


def opened(file: Path, subject: str | None):
    """(failure, a started run of one subject, the task) of a file."""
    from parity import replay as saved
    from parity import runner

    try:
        failure = saved.load(file)
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint="FILE") from None
    (chosen,) = choose.subjects([subject or failure.said["subject"]])
    run = runner.Run(runner.Plan((chosen,), (), (failure.said["dtype"],)))
    run.start()
    name = chosen if isinstance(chosen, str) else chosen.name
    return failure, run, failure.task(name)
