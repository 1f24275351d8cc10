"""The terminal that all commands print to."""

from rich.console import Console

WIDE = 200  # columns, where the output is not a terminal


def console(stderr: bool = False) -> Console:
    """Without markup: names of subjects have brackets."""
    made = Console(highlight=False, markup=False, stderr=stderr)
    if not made.is_terminal:
        made.width = WIDE
    return made
