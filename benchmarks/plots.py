"""Plots of a record: time, memory and roofline share against T, one panel for each workload. Log-log, PNG.

Colour tells the library, the line's style the implementation; ours are thick. A contender looks the same in
every panel of every plot.
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator

from benchmarks import roofline, stats, tables

# Okabe and Ito's palette: told apart with any colour vision.
COLOURS = {
    "attn_torch": "#D55E00",
    "attn_jax": "#0072B2",
    "torch": "#E69F00",
    "jax": "#56B4E9",
    "flax": "#009E73",
    "transformers": "#CC79A7",
}
STYLES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = "osD^vP"
ORDER = ("causal", "window", "full", "padded", "grouped", "decode", "block", "step")


def every(record: dict, folder: Path) -> list[Path]:
    """Draw what the record has data for; the paths of the files made."""
    looks = appearance(record["rows"])
    time = grouped(record, lambda row: stats.summarise(row["samples"])["median"] * 1e3 / row["cell"]["B"])
    memory = grouped(
        record, lambda row: row.get("memory") and row["memory"]["resident_growth_mib"] / row["cell"]["B"]
    )
    share = grouped(record, lambda row: 100 * (roofline.share(row, record["roofs"]) or 0))
    drawn: list[tuple[str, dict, str, str]] = [
        ("time", time, "ms, one sequence", "Time of a call"),
        ("memory", memory, "MiB, one sequence", "Peak resident growth of a call"),
        (
            "roofline",
            share,
            "% of the roof",
            "Share of the machine's roof (matmul; decoding: copy), useful work only",
        ),
    ]
    return [
        figure(folder / f"{name}.png", lines, unit, title, looks)
        for name, lines, unit, title in drawn
        if lines
    ]


def grouped(record: dict, value) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """workload -> contender -> [(T, value(row))], of the timed rows that have a value above zero."""
    made: dict = {}
    for workload, by_name in tables.grid(tables.timed(record)).items():
        for name, rows in by_name.items():
            if points := [(T, y) for T in sorted(rows) if (y := value(rows[T])) and y > 0]:
                made.setdefault(workload, {})[name] = points
    return made


def appearance(rows: list[dict]) -> dict[str, dict]:
    """Contender -> how its line looks."""
    looks: dict[str, dict] = {}
    for name in dict.fromkeys(row["subject"] for row in rows):
        library = next((key for key in COLOURS if name.startswith(key)), "")
        colour, mine = COLOURS.get(library, "#666666"), library.startswith("attn")
        n = sum(look["color"] == colour for look in looks.values())
        looks[name] = {
            "color": colour,
            "linestyle": STYLES[n % len(STYLES)],
            "marker": MARKERS[n % len(MARKERS)],
            "linewidth": 2.4 if mine else 1.4,
            "markersize": 5 if mine else 4,
        }
    return looks


def figure(path: Path, workloads: dict, unit: str, title: str, looks: dict) -> Path:
    """A panel for each workload, two a line, forward beside forward+backward; one legend for all."""

    def place(workload):
        variant, passes, dtype = workload.split(", ")
        return ORDER.index(variant.split()[0]), dtype != "float32", passes

    across = min(2, len(workloads))
    down = -(-len(workloads) // across)
    canvas = Figure(figsize=(5.0 * across + 2.4, 3.7 * down + 0.5), layout="constrained", dpi=110)
    for n, workload in enumerate(sorted(workloads, key=place), 1):
        panel = canvas.add_subplot(down, across, n)
        draw(panel, workloads[workload], looks)
        panel.set(title=workload, ylabel=unit, xlabel="T, positions")
    shown = {name: look for name, look in looks.items() if any(name in lines for lines in workloads.values())}
    handles = [Line2D([], [], **look) for look in shown.values()]
    canvas.legend(handles, shown, loc="outside right upper", fontsize=9, frameon=False, handlelength=3.5)
    canvas.suptitle(title, fontsize=13, x=0.01, ha="left")
    canvas.savefig(path)
    return path


def draw(panel, lines: dict[str, list[tuple[int, float]]], looks: dict):
    """One line for each contender."""
    for name, points in lines.items():
        panel.plot(*np.array(points).T, **looks[name])
    lengths = sorted({T for points in lines.values() for T, _ in points})
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(lengths, [f"{T // 1024}k" if T >= 1024 else str(T) for T in lengths])
    panel.minorticks_off()
    low, high = panel.get_ylim()
    panel.yaxis.set_major_locator(LogLocator(subs=(1,) if high / low > 300 else (1, 2, 5)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)
