"""The record in a terminal: the matrix, what did not hold, where libraries differ, and one line."""

import math
from collections import Counter, defaultdict

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

MARKS = {"unsupported": "-", "no_evidence": "?", "error": "error", "failed": "FAIL"}
STYLES = {"passed": "green", "diverges": "cyan", "no_evidence": "yellow", "unsupported": "dim"}
ORDER = ("error", "failed", "no_evidence", "diverges", "passed", "unsupported")  # the worst first
BAD = {"nan": "NaN", "inf": "Inf", "lost": "not NaN or Inf that should be"}
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


def share(cell: dict) -> float:
    """The largest share of the error budget that any tensor of a cell uses."""
    shares = [number(tensor["max_share"]) for tensor in cell.get("tensors", ())]
    return max(shares, default=math.nan)


def number(x) -> float:
    """A number of the record: JSON has no NaN or Infinity, so they are strings there."""
    return float(x)


def short(x: float) -> str:
    """A share in few characters: .034, .97, 12.3, 4e+06."""
    if math.isnan(x):
        return "nan"
    if x < 0.9995:
        return f"{x:.3f}".lstrip("0") if x < 0.0995 else f"{x:.2f}".lstrip("0")
    return f"{x:.3g}"


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
    groups = defaultdict(list)
    for cell in record["cells"]:
        groups[cell["subject"], cell["dtype"], cell["device"]].append(cell)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for heading in ("subject", "dtype", "device", "claim"):
        table.add_column(heading, no_wrap=True)
    for heading in ("passed", "differs", "no evidence", "cannot", "failed", "median", "max"):
        table.add_column(heading, justify="right", no_wrap=True)
    order = {subject["name"]: n for n, subject in enumerate(record["subjects"])}
    for (subject, dtype, device), cells in sorted(groups.items(), key=lambda group: order[group[0][0]]):
        counts = [sum(cell["status"] == status for cell in cells) for status in ORDER]
        errors, failed, nothing, differs, passed, cannot = counts
        shares = sorted(share(cell) for cell in cells if cell["status"] == "passed")
        middle, largest = (short(shares[len(shares) // 2]), short(shares[-1])) if shares else ("", "")
        claim = next((cell["claim"] for cell in cells if cell["status"] == "passed"), cells[0]["claim"])
        figures = (passed, differs, nothing, cannot, failed + errors)
        style = "bold red" if failed + errors else ""
        table.add_row(Text(subject), dtype, device, claim, *map(str, figures), middle, largest, style=style)
    return table


def divergences(record: dict) -> Table | None:
    """Which declared divergences showed, in how many cells, with what they are and where that is from."""
    shown = Counter((cell["subject"], name) for cell in record["cells"] for name in cell.get("diverges", ()))
    if not shown:
        return None
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    table.add_column("differs", no_wrap=True)
    table.add_column("cells", justify="right")
    table.add_column("what, as declared", overflow="fold")
    for subject in record["subjects"]:
        for divergence in subject["diverges"]:
            if count := shown[subject["name"], divergence["name"]]:
                what = Text(f"{divergence['says']} ").append(f"({divergence['source']})", style="dim")
                table.add_row(Text(subject["name"]), str(count), what)
    return table


def failures(record: dict) -> Group | None:
    """What did not hold, with the element where it was worst."""
    broken = [cell for cell in record["cells"] if cell["status"] in ("failed", "error")]
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
    lines += [Text(f"  {tensor_line(t)}") for t in cell.get("tensors", ()) if t["status"] == "failed"]
    return lines


def tensor_line(tensor: dict) -> str:
    """Where and how far one tensor is off, NaN and Inf apart from finite errors."""
    if tensor["reason"]:
        return f"{tensor['name']}: {tensor['reason']}"
    bad = [f"{tensor[kind]} {word}" for kind, word in BAD.items() if tensor[kind]]
    share = [] if bad else [f"{short(number(tensor['max_share']))} of the bound"]
    finite = (
        f"finite errors up to {number(tensor['atol']):.3g}"
        if bad
        else f"atol={number(tensor['atol']):.3g} would pass"
    )
    return (
        f"{tensor['name']}: {', '.join([*bad, *share])} at {tuple(tensor['worst'] or ())}: "
        f"got {number(tensor['got']):.9g}, want {number(tensor['expected']):.9g} "
        f"within {number(tensor['bound']):.3g}; {finite}"
    )


def absences(record: dict) -> Group | None:
    """What this machine does not have, a line each."""
    lines = [f"{name}: {why}" for name, why in record["absent"].items()]
    kinds = {device["kind"] for found in record["environments"].values() for device in found["devices"]}
    lines += [f"no {kind} here" for kind in ("cuda", "tpu") if kind not in kinds]
    return Group(*(Text(text, style="dim") for text in lines)) if lines else None


def line(record: dict) -> Text:
    """The whole run in one line."""
    s = record["summary"]
    words = [f"{s['passed']:,} passed", f"{s['diverges']:,} differ as declared"]
    words += [f"{s['no_evidence']:,} without evidence"] if s["no_evidence"] else []
    words += [f"{s['unsupported']:,} unsupported", f"{s['failed'] + s['error']:,} failed"]
    total = sum(s[status] for status in ORDER)
    end = "" if s["complete"] else "; stopped before its end"
    style = "bold red" if s["exit_code"] == 1 else "bold green" if s["exit_code"] == 0 else "bold yellow"
    return Text(f"{total:,} cells: {', '.join(words)}, in {s['seconds']:.0f} s{end}", style=style)
