"""The `parity` command.

Exit codes: 0 all held, 1 something failed, 2 wrong usage, 3 nothing was judged, 130 interrupted.
"""

import time
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from parity import choose, devices, failing, outputs, proving
from parity.choose import Dtype
from parity.outputs import Badge, Html, Junit, Markdown
from parity.screen import Progress, console

devices.limit_threads()  # before NumPy is imported

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
FAILURES = Path("parity-failures")  # each failure of a run, as a file for `parity replay`


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    tpu = "tpu"


class Kind(StrEnum):
    cases = "cases"
    subjects = "subjects"
    claims = "claims"


DEFAULT_DTYPES = (Dtype.float32, Dtype.float64, Dtype.bfloat16)


@app.callback()
def parity() -> None:
    """Judge attention implementations against a float64 oracle, with error bounds derived from the data."""


@app.command()
def run(
    case: Annotated[
        list[str] | None, typer.Option(help="Cases to run; * and ? match. May be repeated.")
    ] = None,
    subject: Annotated[
        list[str] | None,
        typer.Option(help="Subjects: a name (* and ? match), path.py:function or package.module:function."),
    ] = None,
    dtype: Annotated[list[Dtype] | None, typer.Option(help="May be repeated.")] = None,
    device: Annotated[Device, typer.Option(help="auto: every device that is found.")] = Device.auto,
    seed: Annotated[int, typer.Option(min=0, help="Of the inputs.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="The smallest set of cases.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="All cases and dtypes, compiled as users compile.")
    ] = False,
    json_file: Annotated[Path, typer.Option("--json", help="The report.")] = Path("parity-report.json"),
    html: Html = None,
    junit: Junit = None,
    markdown: Markdown = None,
    badge: Badge = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one cell.")] = 60.0,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first failure.")] = False,
) -> None:
    """Run cases x subjects x dtypes x devices, forward and gradients, and judge every tensor."""
    from parity import replay as replay_files
    from parity import runner

    if quick and full:
        raise typer.BadParameter("--quick and --full exclude each other")
    reports = outputs.asked(html=html, junit=junit, markdown=markdown, badge=badge)
    outputs.check_place(json_file, "--json")
    budget = "quick" if quick else "full" if full else "default"
    dtypes = tuple(str(name) for name in dtype or (Dtype if full else DEFAULT_DTYPES))
    chosen = choose.subjects(subject), choose.cases(case, budget), dtypes
    plan = runner.Plan(*chosen, str(device), seed, timeout, quick_compile=not full, whole=case is None)
    started = runner.Run(plan)
    started.keep = replay_files.keeper(FAILURES, started)
    try:
        raise typer.Exit(execute(started, budget, json_file, fail_fast, reports))
    except runner.NoDevice as missing:
        console(stderr=True).print(f"parity: --device {device}: {missing}")
        raise typer.Exit(2) from None


def execute(started, budget: str, json_file: Path, fail_fast: bool, reports: outputs.Asked) -> int:
    """Run to the end, the first failure or Ctrl-C; write and show what there is. Returns the exit code.

    Raises runner.NoDevice.
    """
    from parity import record, runner
    from parity.report import terminal

    start, out, cells, complete = time.monotonic(), console(), [], False
    try:
        started.start()
        total = len(started.plan.cases) * len(started.plan.dtypes) * len(started.subjects)
        with closing(started.cells()) as judged, Progress("judging", total) as step:
            for cell in judged:
                cells.append(cell)
                step()
                if cell["status"] in runner.BROKEN and fail_fast:
                    break
            else:
                complete = True
    except KeyboardInterrupt:
        started.close()
        out.print("interrupted: the report holds what was judged so far")
    header = record.header(started, record.command_line(), budget)
    summary = record.summary(cells, time.monotonic() - start, complete)
    report = {**header, "summary": summary, "cells": cells}
    record.write(report, json_file)
    outputs.write(report, reports)
    terminal.show(report, out)
    out.print(f"written to {', '.join(map(str, (json_file, *(file for file, _ in reports))))}", style="dim")
    return summary["exit_code"]


app.command()(proving.mutants)
app.command()(proving.calibrate)


# ---- reports


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(exists=True, dir_okay=False, metavar="A.json")],
    after: Annotated[Path, typer.Argument(exists=True, dir_okay=False, metavar="B.json")],
) -> None:
    """Compare two reports: what fails now, what uses more of its budget, which divergence is gone."""
    from parity.report import diff as two

    difference = two.compare(read(before), read(after))
    two.show(difference, console())
    raise typer.Exit(difference.exit_code)


@app.command("report")
def render(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, metavar="RECORD.json")],
    html: Html = None,
    junit: Junit = None,
    markdown: Markdown = None,
    badge: Badge = None,
) -> None:
    """Render the report of a run again, and run nothing; in the terminal if no file is named."""
    from parity.report import terminal

    reports = outputs.asked(html=html, junit=junit, markdown=markdown, badge=badge)
    stored = read(file)
    outputs.write(stored, reports)
    if not reports:
        terminal.show(stored, console())


def read(file: Path) -> dict:
    """A report of this schema."""
    from parity import record

    try:
        return record.read(file)
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None


app.command()(failing.replay)
app.command()(failing.shrink)


# ---- looking


@app.command("list")
def list_(kind: Annotated[Kind, typer.Argument()] = Kind.cases) -> None:
    """List the cases, the subjects or the claims."""
    from rich.table import Table

    rows = {Kind.cases: case_rows, Kind.subjects: subject_rows, Kind.claims: claim_rows}[kind]()
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for heading in next(rows):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def case_rows():
    yield "case", "set", "what it is there to catch"
    for case in choose.every_case().values():
        yield case.name, case.budget, case.catches


def subject_rows():
    from parity.subjects import built_in, plugin

    yield "subject", "framework", "claims", "declared divergences"
    for s in built_in().values():
        yield s.name, s.framework, ", ".join(s.claims.values()), "; ".join(d.name for d in s.diverges)
    for name, address in plugin.installed().items():
        yield name, "", "", f"installed: {address}"


def claim_rows():
    from dataclasses import fields

    from parity.claims import CLAIMS

    names = [field.name for field in fields(next(iter(CLAIMS.values())))]
    yield "claim", *(name.replace("_", " ") for name in names)
    for name, claim in CLAIMS.items():
        yield name, *(str(getattr(claim, field) or "") for field in names)


@app.command()
def show(name: Annotated[str, typer.Argument(metavar="CASE")]) -> None:
    """Show a case: what it is for, its shapes and options, and what its queries see."""
    from parity import record

    known = choose.every_case()
    if name not in known:
        raise typer.BadParameter(f"no case named {name!r}; see `parity list cases`", param_hint="CASE")
    said, out = record.describe_case(known[name]), console()
    out.print(f"{name}: {said['catches']}")
    if "picture" not in said:  # a block
        out.print(", ".join(f"{key} {said[key]}" for key in ("n_embd", "n_head", "B", "T", "style")))
        return
    v_shape = (*said["kv"][:-1], said["v_dim"])
    out.print(f"  q {tuple(said['q'])}  k {tuple(said['kv'])}  v {v_shape}")
    for key in ("fill", "layout", "poison", "origin"):
        if said[key]:
            out.print(f"  {key} {said[key]}")
    for option, value in said["options"].items():
        out.print(f"  {option} = {value}")
    out.print("  what the queries (down) of the first head see of the keys (across):")
    for row in said["picture"]:
        out.print(f"    {row}")


def main() -> None:
    app()
