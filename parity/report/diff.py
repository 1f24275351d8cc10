"""Two runs side by side: what an upgrade changed. A pure function of both records."""

import math
from collections import Counter
from typing import NamedTuple

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from parity.report.words import cell_lines, share, short, versions

HELD = ("passed", "diverges", "no_evidence")
BROKEN = ("failed", "error")
SHOWN = 10  # of the cells that use more of their budget

Key = tuple[str, str, str, str]  # subject, case, dtype, device


class Change(NamedTuple):
    """A cell in both runs."""

    key: Key
    before: dict
    after: dict

    @property
    def more(self) -> float:
        """By how much its share of the budget grew."""
        return share(self.after) - share(self.before)


class Difference(NamedTuple):
    """versions: name -> (before, after). broken, repaired; changed: another status and neither of these;
    grown: hold and use more of their budget, most first. gone, new: (subject, divergence) -> cells of both.
    only_before, only_after, common: cells."""

    versions: dict[str, tuple[str, str]]
    broken: list[Change]
    repaired: list[Change]
    changed: list[Change]
    grown: list[Change]
    gone: Counter
    new: Counter
    only_before: int
    only_after: int
    common: int

    @property
    def exit_code(self) -> int:
        """1 if something that held fails now, 3 if the runs have no cell in common."""
        return 1 if self.broken else 0 if self.common else 3


def compare(before: dict, after: dict) -> Difference:
    """What changed from one record to another."""
    a, b = ({key(cell): cell for cell in record["cells"]} for record in (before, after))
    changes = [Change(k, a[k], b[k]) for k in a if k in b]
    moved = [c for c in changes if c.before["status"] != c.after["status"]]
    broken = [c for c in moved if c.before["status"] in HELD and c.after["status"] in BROKEN]
    repaired = [c for c in moved if c.before["status"] in BROKEN and c.after["status"] in HELD]
    both = [c for c in changes if c.before["status"] in HELD and c.after["status"] in HELD]
    grown = sorted((c for c in both if c.more > 0.0 and not math.isinf(c.more)), key=lambda c: -c.more)
    gone, new = Counter(), Counter()
    for change in both + broken:
        was, now = (set(cell.get("diverges", ())) for cell in (change.before, change.after))
        gone.update((change.key[0], name) for name in was - now)
        new.update((change.key[0], name) for name in now - was)
    old, young = versions(before), versions(after)
    differ = {
        n: (old.get(n, "absent"), young.get(n, "absent"))
        for n in {**old, **young}
        if old.get(n) != young.get(n)
    }
    settled = {id(c) for c in broken + repaired}
    return Difference(
        differ,
        broken,
        repaired,
        [c for c in moved if id(c) not in settled],
        grown,
        gone,
        new,
        len(a.keys() - b.keys()),
        len(b.keys() - a.keys()),
        len(changes),
    )


def key(cell: dict) -> Key:
    return cell["subject"], cell["case"], cell["dtype"], cell["device"]


def show(difference: Difference, console: Console) -> None:
    """The difference in a terminal, what matters most at the top."""
    parts = (
        named("versions", [f"{name} {was} -> {now}" for name, (was, now) in difference.versions.items()]),
        named("held, and fails now", [text for c in difference.broken for text in lines(c)], "bold red"),
        named("declared divergences that are gone", counted(difference.gone), "bold yellow"),
        named("declared divergences that are new", counted(difference.new)),
        named("failed, and holds now", [" ".join(c.key) for c in difference.repaired], "green"),
        named("another status", [f"{' '.join(c.key)}: {status(c)}" for c in difference.changed]),
        grown(difference.grown),
    )
    for part in parts:
        if part is not None:
            console.print(part)
            console.print()
    console.print(sentence(difference))


def named(title: str, rows: list[str], style: str = "bold") -> Group | None:
    return Group(Text(title, style=style), *(Text(f"  {row}") for row in rows)) if rows else None


def lines(change: Change) -> list[str]:
    return [" ".join(change.key), *(f"  {text}" for text in cell_lines(change.after))]


def counted(names: Counter) -> list[str]:
    return [f"{subject}: {name} ({count} cells)" for (subject, name), count in names.items()]


def status(change: Change) -> str:
    return f"{change.before['status']} -> {change.after['status']}"


def grown(changes: list[Change]) -> Table | None:
    """The cells whose share of the budget grew most."""
    if not changes:
        return None
    table = Table(
        title="uses more of its budget", title_justify="left", title_style="bold", box=None, pad_edge=False
    )
    for heading in ("subject", "case", "dtype", "device"):
        table.add_column(heading, no_wrap=True)
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for c in changes[:SHOWN]:
        table.add_row(*map(Text, c.key), short(share(c.before)), short(share(c.after)))
    return table


def sentence(difference: Difference) -> Text:
    """The difference in one line."""
    d = difference
    words = [f"{len(d.broken):,} fail that held", f"{len(d.repaired):,} hold that failed"]
    words += [f"{len(d.changed):,} with another status", f"{len(d.grown):,} use more of their budget"]
    words += (
        [f"{d.only_before:,} only before, {d.only_after:,} only after"]
        if d.only_before + d.only_after
        else []
    )
    style = "bold red" if d.exit_code == 1 else "bold green" if d.exit_code == 0 else "bold yellow"
    return Text(f"{d.common:,} cells in both: {', '.join(words)}", style=style)
