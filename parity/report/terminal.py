"""The record in a terminal: the matrix, what did not hold, where libraries differ, and one line."""

import math
from collections import defaultdict

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from parity.report import words
from parity.report.words import ORDER, share, short

MARKS = {"unsupported": "-", "no_evidence": "?", "error": "error", "failed": "FAIL"}
STYLES = {"passed": "green", "diverges": "cyan", "no_evidence": "yellow", "unsupported": "dim"}
SHOWN_FAILURES = 20


def show(record: dict, console: Console) -> None:
    """Everything, in reading order."""
    console.print(matrix(record))
    console.print()
    console.print(by_subject(record))
    for part in (divergences(record), failures(record), absences(record)):
        if part is not None:
            console.print()
            console.print(part)
    console.print()
    console.print(line(record))


def mark(cells: list[dict]) -> Text:
    """Several dtypes and devices of one case and subject: the worst status, the largest share."""
    status = min((cell["status"] for cell in cells), key=ORDER.index)
    shares = [share(cell) for cell in cells if cell["status"] in ("passed", "diverges", "failed")]
    largest = max((x for x in shares if not math.isnan(x)), default=math.nan)
    text = MARKS.get(status, short(largest))
    if status == "diverges":
        text = f"~{text}"
    return Text(text, style=STYLES.get(status, "bold red"), justify="right")


def matrix(record: dict) -> Group:
    """Cases down, subjects across: the largest share of the budget over dtypes and tensors."""
    names = [subject["name"] for subject in record["subjects"]]
    cells = defaultdict(list)
    for cell in record["cells"]:
        cells[cell["case"], cell["subject"]].append(cell)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("case", no_wrap=True)
    for n, _ in enumerate(names, 1):
        table.add_column(str(n), justify="right", no_wrap=True, min_width=5)
    for case in record["cases"]:
        row = [mark(cells[case, name]) if cells[case, name] else Text("") for name in names]
        table.add_row(case, *row)
    legend = Text("   ".join(f"{n} {name}" for n, name in enumerate(names, 1)))
    note = Text(
        "entries: the largest share of the error budget over dtypes, forward and gradients; "
        "~ differs as declared, - cannot, ? no evidence",
        style="dim",
    )
    return Group(legend, note, Text(""), table)


def by_subject(record: dict) -> Table:
    """A line for each subject and dtype: its claim, how its cells ended, the shares they used."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for heading in ("subject", "dtype", "device", "claim"):
        table.add_column(heading, no_wrap=True)
    for heading in ("passed", "differs", "no evidence", "cannot", "failed", "median", "max"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in words.by_subject(record):
        table.add_row(Text(line.subject), *map(str, line[1:]), style="bold red" if line.failed else "")
    return table


def divergences(record: dict) -> Table | None:
    """Which declared divergences showed, in how many cells, with what they are and where that is from."""
    shown = words.shown_divergences(record)
    if not shown:
        return None
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column("differs", no_wrap=True)
    table.add_column("cells", justify="right")
    table.add_column("what, as declared", overflow="fold")
    for subject, divergence, count in shown:
        what = Text(f"{divergence['says']} ").append(f"({divergence['source']})", style="dim")
        table.add_row(Text(subject), str(count), what)
    return table


def failures(record: dict) -> Group | None:
    """What did not hold, with the element where it was worst."""
    broken = words.broken(record)
    if not broken:
        return None
    lines = [text for cell in broken[:SHOWN_FAILURES] for text in failure(cell)]
    if len(broken) > SHOWN_FAILURES:
        lines.append(Text(f"and {len(broken) - SHOWN_FAILURES} more, in the JSON report", style="dim"))
    return Group(*lines)


def failure(cell: dict) -> list[Text]:
    """A heading, and a line for each tensor that failed."""
    heading = f"{cell['status']}: {cell['subject']} {cell['case']} {cell['dtype']} {cell['device']}"
    reason = f": {cell['reason']}" if cell["reason"] else ""
    lines = [Text(heading + reason, style="bold red")]
    lines += [Text(f"  {words.tensor_line(t)}") for t in cell.get("tensors", ()) if t["status"] == "failed"]
    return lines


def absences(record: dict) -> Group | None:
    """What this machine does not have, a line each."""
    lines = words.absences(record)
    return Group(*(Text(text, style="dim") for text in lines)) if lines else None


def line(record: dict) -> Text:
    """The whole run in one line."""
    style = {"held": "bold green", "broke": "bold red", "open": "bold yellow"}[words.outcome(record)]
    return Text(words.sentence(record), style=style)
