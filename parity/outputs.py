"""Reports beside the JSON: the options that `parity run` and `parity report` share, and what they write."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from parity.report import renderer

Html = Annotated[Path | None, typer.Option(dir_okay=False, help="One page with every cell's details.")]
Junit = Annotated[Path | None, typer.Option(dir_okay=False, help="JUnit XML.")]
Markdown = Annotated[Path | None, typer.Option(dir_okay=False, help="A summary for the page of a CI job.")]
Badge = Annotated[Path | None, typer.Option(dir_okay=False, help="JSON for a badge of shields.io.")]
Asked = list[tuple[Path, Callable[[dict], str]]]


def asked(**files: Path | None) -> Asked:
    """The reports that are asked for, kind=file or None. Exits 2 if one needs what is not installed."""
    found = []
    for kind, file in files.items():
        if file is not None:
            try:
                found.append((file, renderer(kind)))
                check_place(file, f"--{kind}")
            except ModuleNotFoundError as missing:
                need = f"--{kind} needs {missing.name}: pip install 'attn-parity[report]'"
                typer.echo(f"parity: {need}", err=True)
                raise typer.Exit(2) from None
    return found


def check_place(file: Path, option: str) -> None:
    """Raise BadParameter unless a file can be written there: before a run, not after it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.parent / f"{file.name}.part"
        beside.touch()
        beside.unlink()
        problem = "it is a folder" if file.is_dir() else ""
    except OSError as error:
        problem = f"{error.strerror}: {error.filename}"
    if problem:
        raise typer.BadParameter(f"cannot write {file}: {problem}", param_hint=option)


def write(record: dict, reports: Asked) -> None:
    for file, render in reports:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(render(record), encoding="utf-8")
