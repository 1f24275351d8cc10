"""A record as text, as Markdown, as one HTML page and as JSON; and what in it is wrong."""

import base64
import json
from collections import defaultdict
from pathlib import Path

from jinja2 import Environment, PackageLoader, select_autoescape
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from benchmarks import plots, roofline, tables

LIMITS = (
    "One machine, these versions, this day. Ratios travel further than milliseconds, neither travels far: "
    "measure anew.",
    "Each call is timed by itself and waited for, on random normal inputs. A model that trains overlaps its "
    "calls, shares its memory and has other inputs.",
    "Wall-clock time of a call from Python, dispatch included. At short lengths that is most of it; on an "
    "accelerator it is not the kernel's time.",
    "A library that has a mask but no window or no lengths gets a mask that is made inside the timed call.",
    "A model's step is measured after one length of context. Reading the prompt and choosing a token are not "
    "in it.",
    "A compiled call is cheap after it was compiled, once for each shape; an eager one costs the same each "
    "time. Compile time stands in a table of its own and in no ratio.",
    "Resident growth is coarse: whole pages, every allocator, one call after a short one. Do not set it "
    "against the compiler's estimate, which counts the inputs, or an accelerator's allocator.",
    "Useful operations are those of the matrix products; what a backward pass recomputes, the softmax and "
    "the masks are not among them. A share of the roof says how near these products come to a plain one.",
    "With few rounds an interval is rough: n stands beside each median. Rounds are resampled whole; what a "
    "machine does over hours is not in them.",
    "Speed is not accuracy. Claims of arithmetic differ, and each was held to its own; where these inputs "
    "prove nothing (half precision at great length), the check says no evidence.",
)


def problems(record: dict) -> list[str]:
    """What makes a run end with exit code 1: a failed check, or a rate above what the machine can do."""
    failed = defaultdict(list)
    for row in record["rows"]:
        if row["status"] == "failed":
            failed[row["subject"], row["workload"], row["reason"]].append(str(row["cell"]["T"]))
    found = [
        f"{name} FAILED at {workload}, T = {', '.join(T)}: {why}"
        for (name, workload, why), T in failed.items()
    ]
    return found + [
        f"{row['subject']} is above the roof: {row['workload']}, T = {row['cell']['T']}; count or clock wrong"
        for row in tables.timed(record)
        if roofline.impossible(row, record["roofs"])
    ]


def facts(record: dict) -> list[tuple[str, str]]:
    """The environment as lines of text, one framework after the other."""

    def text(value):
        return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)

    lines = [(key, text(value)) for key, value in record["environment"].items()]
    return lines + [(framework, text(seen)) for framework, seen in record["frameworks"].items()]


def headline(record: dict) -> str:
    timed, rows = len(tables.timed(record)), len(record["rows"])
    around = record["environment"]
    threads = ", ".join(f"{name} {seen['threads']}" for name, seen in record["frameworks"].items())
    missing = record.get("missing")
    left = f" Stopped ({record['stopped']}), groups of cells left: {missing}." if missing else ""
    return (
        f"{timed} of {rows} cells timed on {around['device']}: {around['processor']}. Threads: {threads}. "
        f"Load before the run: {around['load before the run']}.{left}"
    )


def to_terminal(record: dict, console: Console):
    """The tables that are not details, the problems, the limits."""
    for table in tables.every(record):
        if not table.detail:
            console.print(rich_table(table), "")
    console.print("What the numbers do not show", *(f"- {limit}" for limit in LIMITS), sep="\n", style="dim")
    for problem in problems(record):
        console.print(f"[bold red]{escape(problem)}")
    console.print("", escape(headline(record)), sep="\n")


def rich_table(table: tables.Table) -> RichTable:
    made = RichTable(
        box=SIMPLE_HEAD,
        title=escape(table.title),
        title_justify="left",
        caption=escape(table.note),
        caption_justify="left",
    )
    for n, column in enumerate(table.columns):
        made.add_column(escape(column), justify="left" if n == 0 or table.words else "right", overflow="fold")
    for row in table.rows:
        made.add_row(*map(escape, row))
    return made


def to_markdown(record: dict, images: list[Path]) -> str:
    """Everything, tables as pipes, plots by relative link."""

    def lines(table):
        align = [":--" if n == 0 or table.words else "--:" for n in range(len(table.columns))]
        cells = [[text.replace("|", "\\|") for text in row] for row in [table.columns, align, *table.rows]]
        return "\n".join(f"| {' | '.join(row)} |" for row in cells)

    parts = [f"# Attention benchmark, {record['environment']['date']}", headline(record)]
    parts += [f"**{problem}**" for problem in problems(record)]
    parts += [f"![{image.stem} against length]({image.name})" for image in images]
    for table in tables.every(record):
        parts += [f"## {table.title}", *([table.note] if table.note else []), lines(table)]
    parts += ["## Where and how", "\n".join(f"- {key}: {text}" for key, text in facts(record))]
    parts += ["## What the numbers do not show", "\n".join(f"- {limit}" for limit in LIMITS)]
    return "\n\n".join(parts) + "\n"


def to_html(record: dict, images: list[Path]) -> str:
    """One file that needs no other: plots and the record are inside."""
    page = Environment(
        loader=PackageLoader("benchmarks", "."), autoescape=select_autoescape(["j2"]), trim_blocks=True
    )
    return page.get_template("page.html.j2").render(
        record=record,
        headline=headline(record),
        problems=problems(record),
        tables=tables.every(record),
        facts=facts(record),
        limits=LIMITS,
        images=[(image.stem, base64.b64encode(image.read_bytes()).decode()) for image in images],
        raw=base64.b64encode(json.dumps(record).encode()).decode(),
    )


def write(record: dict, folder: Path) -> list[Path]:
    """record.json, the plots, report.md and report.html in this folder; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    json_path, markdown, html = (folder / name for name in ("record.json", "report.md", "report.html"))
    json_path.write_text(json.dumps(record, indent=1) + "\n")
    images = plots.every(record, folder)
    markdown.write_text(to_markdown(record, images))
    html.write_text(to_html(record, images))
    return [json_path, *images, markdown, html]


def read(path: Path) -> dict:
    """The record of a run's folder or file. Raises ValueError for another schema."""
    record = json.loads((path / "record.json" if path.is_dir() else path).read_text())
    if record.get("schema") != tables.SCHEMA:
        raise ValueError(f"{path.name}: schema {record.get('schema')}, wanted {tables.SCHEMA}")
    return record
