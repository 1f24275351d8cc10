"""Plots of a record: time, memory and roofline share against T, one panel for each workload. Log-log, PNG.

Colour tells the library, the line's style the implementation; ours are thick. The same contender looks the same in
every panel of every plot.
"""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks import roofline, stats, tables

# Okabe and Ito's palette, told apart with any colour vision.
COLOURS = {
    "attn_torch": "#D55E00",
    "attn_jax": "#0072B2",
    "torch": "#E69F00",
    "jax": "#56B4E9",
    "flax": "#009E73",
}
STYLES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = "osD^vP"


def every(record: dict, folder: Path) -> list[Path]:
    """Draw what the record has data for; the paths of the files made."""
    timed = tables.timed(record)
    weighed = [row for row in record["rows"] if row.get("memory")]
    roofs = [row for row in timed if roofline.share(row, record["roofs"])]
    looks = appearance(record["rows"])
    drawn = [
        ("time", timed, per_sequence, "ms for one sequence", "Time of a call against length"),
        ("memory", weighed, resident, "MiB for one sequence", "Peak resident growth of a call against length"),
        ("roofline", roofs, lambda row: 100 * roofline.share(row, record["roofs"]), "% of the roof", "Share of the machine's roof, useful operations only"),
    ]  # fmt: skip
    return [
        figure(folder / f"{name}.png", rows, value, unit, title, looks)
        for name, rows, value, unit, title in drawn
        if rows
    ]


def per_sequence(row: dict) -> float:
    return 1e3 * stats.summarise(row["samples"])["median"] / row["cell"]["B"]


def resident(row: dict) -> float:
    return row["memory"]["resident_growth_mib"] / row["cell"]["B"]


def appearance(rows: list[dict]) -> dict[str, dict]:
    """Contender -> how its line looks."""
    looks: dict[str, dict] = {}
    for name in dict.fromkeys(row["subject"] for row in rows):
        library = next(key for key in COLOURS if name.startswith(key))
        n = sum(look["color"] == COLOURS[library] for look in looks.values())
        mine = library.startswith("attn")
        looks[name] = {
            "color": COLOURS[library],
            "linestyle": STYLES[n % len(STYLES)],
            "marker": MARKERS[n % len(MARKERS)],
            "linewidth": 2.4 if mine else 1.4,
            "markersize": 5 if mine else 4,
        }
    return looks


def figure(path: Path, rows: list[dict], value, unit: str, title: str, looks: dict) -> Path:
    """Two panels a line: a workload's forward pass, and forward with backward; one legend for all."""
    workloads = tables.grid(rows)
    order = sorted(workloads, key=lambda workload: [part for part in workload.split(", ")][::2] + [workload])
    across = min(2, len(order))
    down = -(-len(order) // across)
    canvas = Figure(figsize=(5.2 * across + 2.6, 3.9 * down + 0.6), layout="constrained", dpi=110)
    for n, workload in enumerate(order):
        panel = canvas.add_subplot(down, across, n + 1)
        draw(panel, workloads[workload], value, looks)
        panel.set(title=workload, ylabel=unit, xlabel="T, positions")
    shown = {
        name: look for name, look in looks.items() if any(name in by_name for by_name in workloads.values())
    }
    lines = [matplotlib.lines.Line2D([], [], **look) for look in shown.values()]
    canvas.legend(lines, shown, loc="outside right upper", fontsize=9, frameon=False, handlelength=3.5)
    canvas.suptitle(title, fontsize=13, x=0.01, ha="left")
    canvas.savefig(path)
    return path


def draw(panel, by_name: dict, value, looks: dict):
    """One line for each contender over the lengths that have a value above zero."""
    lengths = sorted({T for rows in by_name.values() for T in rows})
    for name, rows in by_name.items():
        points = [(T, value(rows[T])) for T in sorted(rows) if value(rows[T]) > 0]
        if points:
            panel.plot(*np.array(points).T, label=name, **looks[name])
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(lengths, [f"{T // 1024}k" if T >= 1024 else str(T) for T in lengths])
    panel.minorticks_off()
    panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    panel.grid(alpha=0.25)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
