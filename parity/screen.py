"""The terminal that all commands print to."""

from rich import progress
from rich.console import Console

WIDE = 200  # columns, where the output is not a terminal


def console(stderr: bool = False) -> Console:
    """Without markup: names of subjects have brackets."""
    made = Console(highlight=False, markup=False, stderr=stderr)
    if not made.is_terminal:
        made.width = WIDE
    return made


class Progress(progress.Progress):
    """A context that gives a function to call with how much was done: a bar in a terminal, else nothing."""

    def __init__(self, what: str, total: int | None):
        out, count = console(), progress.MofNCompleteColumn()
        columns = (progress.TextColumn(what), progress.BarColumn(), count, progress.TimeElapsedColumn())
        super().__init__(*columns, console=out, transient=True, disable=not out.is_terminal)
        self.bar = self.add_task(what, total=total)

    def __enter__(self):
        super().__enter__()
        return lambda done=1: self.advance(self.bar, done)
