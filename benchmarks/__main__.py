"""python -m benchmarks run | compare.

Exit code 0; 1 if a parity check failed or a rate is above what the machine can do; 2 for wrong usage; 130 if
it was interrupted: what was measured until then is written.
"""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
RESULTS = Path(__file__).parent / "results"
INTERRUPTED = 130  # as shells say it
WIDTH = 150  # of tables in a file or a pipe


def terminal():
    """A console; of a width of its own where nobody looks at it."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    return console


@app.command()
def run(
    full: Annotated[
        bool, typer.Option("--full", help="Every workload, to 32768 positions; two hours or more.")
    ] = False,
    variant: Annotated[list[str] | None, typer.Option(help="Only this workload; repeatable.")] = None,
    length: Annotated[list[int] | None, typer.Option(help="Only this length; repeatable.")] = None,
    subject: Annotated[list[str] | None, typer.Option(help="Only this contender; repeatable.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or tpu.")] = "cpu",
    threads: Annotated[int, typer.Option(help="Of each framework; 0: the cores there are.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Of the order of the rounds.")] = 0,
    budget: Annotated[float | None, typer.Option(help="Seconds of rounds for each length.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder; default: benchmarks/results/<date-kind>.")] = None,
):
    """Check, weigh and time; print the tables; write JSON, Markdown, HTML and plots."""
    from benchmarks import cells, contenders, report, timing
    from parity import devices

    grid = cells.full() if full else cells.quick()
    plan = [c for c in grid if (not variant or c.variant in variant) and (not length or c.T in length)]
    everyone = contenders.everyone()
    names = subject or [name for name in everyone if name not in contenders.NOT_TIMED]
    if unknown := set(names) - set(everyone):
        raise typer.BadParameter(
            f"no contender {', '.join(sorted(unknown))}; there are: {', '.join(everyone)}"
        )
    if not plan:
        raise typer.BadParameter("no cell is left to measure")
    if device not in devices.KINDS:
        raise typer.BadParameter(f"device: got {device}, wanted one of {', '.join(devices.KINDS)}")
    name = f"{datetime.now():%Y-%m-%d-%H%M}-{'full' if full else 'quick'}-{device}"
    seconds = budget if budget is not None else 60.0 if full else 4.0
    try:
        record = timing.measure(name, plan, names, device, threads or devices.cores(), seed, seconds)
    except timing.NoDevice as error:
        raise typer.BadParameter(f"device {device}: {error}") from error
    console = terminal()
    report.to_terminal(record, console)
    written = report.write(record, out or RESULTS / name)
    console.print(
        f"\n{len(written)} files in {written[0].parent.name}/: {', '.join(path.name for path in written)}"
    )
    stopped = {"": 0, "interrupted": INTERRUPTED}.get(record["stopped"], 1)
    raise typer.Exit(1 if report.problems(record) else stopped)


@app.command()
def compare(a: Path, b: Path):
    """Set two runs side by side: folders or record.json files. Exit code 1 if one of them holds a failure."""
    from benchmarks import comparison, report

    try:
        records = [report.read(path) for path in (a, b)]
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    for table in filter(lambda table: table.rows, comparison.tables(*records)):
        terminal().print(report.rich_table(table), "")
    raise typer.Exit(1 if any(map(report.problems, records)) else 0)


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
