"""The tables of a report, from the record alone.

A record is what JSON holds: {"schema", "name", "environment", "frameworks", "roofs", "rows"}. A row is one
contender in one cell; it has "samples" if it was timed, "memory" if it was weighed. A grid is the rows by
workload, contender and length: grid[workload][name][T].
"""

from collections import defaultdict
from typing import NamedTuple

from benchmarks import contenders, roofline, stats

MEASURES = {  # key -> title, note
    "resident_growth_mib": (
        "Peak resident growth, MiB",
        "Above what the process held before the call, inputs included; in brackets without the results.",
    ),
    "compiler_estimate_mib": (
        "Compiler's estimate, MiB",
        "XLA's plan: arguments + outputs + temporaries - aliases. Inputs count; torch has no such figure.",
    ),
    "allocator_peak_mib": (
        "Peak of the device's allocator, MiB",
        "Above what it had handed out before the call.",
    ),
}
SCHEMA = 1  # of the record
SLACK = 1.10  # "auto" may be this much slower than the best single implementation
COMPARED = {"window": "causal", "padded": "full", "grouped": "causal"}


class Table(NamedTuple):
    """Text to be laid out. detail: too long for a terminal. words: columns of text, not of numbers."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    detail: bool = False
    words: bool = False


def timed(record: dict) -> list[dict]:
    return [row for row in record["rows"] if row.get("samples")]


def grid(rows: list[dict]) -> dict[str, dict[str, dict[int, dict]]]:
    made: dict = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        made[row["workload"]][row["subject"]][row["cell"]["T"]] = row
    return made


def every(record: dict) -> list[Table]:
    """All tables that the record has something for, in the order of the report."""
    made = [*times(record), *memory(record), compile_times(record), variants(record), automatic(record)]
    made += [roofs(record), *details(record), backends(record), not_timed(record)]
    return [table for table in made if table.rows]


def milliseconds(seconds: float) -> str:
    """Three digits, and whole ones from a second on."""
    return f"{seconds * 1e3:#.3g}".rstrip(".") if seconds < 1 else f"{seconds * 1e3:.0f}"


def interval(ratio: dict) -> str:
    noise = " within noise" if stats.within_noise(ratio) else ""
    return f"{ratio['ratio']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]{noise}"


def median(row: dict) -> float:
    return stats.summarise(row["samples"])["median"]


def per_sequence(row: dict, value: float) -> float:
    return value / row["cell"]["B"]


def against(row: dict, others: dict[str, dict[int, dict]], name: str) -> dict | None:
    """The ratio of this row's time to the named contender's in the same cell; None if that was not timed."""
    other = others.get(name, {}).get(row["cell"]["T"])
    return stats.ratio(row["samples"], other["samples"]) if other and other is not row else None


def exponent(by_length: dict[int, dict], value) -> str:
    """The growth exponent of value(row), for one row of the batch."""
    lengths = sorted(by_length)
    fitted = stats.growth(lengths, [value(by_length[T]) for T in lengths])
    return f"{fitted['exponent']:.2f} ± {fitted['error']:.2f}" if fitted else "–"


def by_length(title: str, by_name: dict, show, value, note: str = "") -> Table:
    """One line for each contender, one column for each length, and the growth exponent of value(row)."""
    lengths = sorted({T for rows in by_name.values() for T in rows})
    batches = {T: {rows[T]["cell"]["B"] for rows in by_name.values() if T in rows} for T in lengths}
    of_all = {T: f", B={min(found)}" if len(found) == 1 else "" for T, found in batches.items()}
    columns = ["", *(f"T={T}{of_all[T]}" for T in lengths), "grows as T to the"]
    rows = [
        [name, *(show(rows[T]) if T in rows else "" for T in lengths), exponent(rows, value)]
        for name, rows in by_name.items()
    ]
    return Table(title, columns, rows, note)


def some(rows: dict[str, dict[int, dict]]) -> dict:
    return next(iter(next(iter(rows.values())).values()))


def at_the_end(lengths: dict[int, dict]) -> tuple:
    """Sorts the contender that is fastest at the longest length first."""
    longest = max(lengths)
    return -longest, stats.summarise(lengths[longest]["samples"])["median"]


def times(record: dict) -> list[Table]:
    """For each workload the times, and the speeds."""
    made = []
    for workload, rows in grid(timed(record)).items():
        rows = dict(sorted(rows.items(), key=lambda item: at_the_end(item[1])))
        cell = some(rows)["cell"]
        baselines = contenders.baselines(cell).values()
        note = f"Medians; in brackets over {' and over '.join(baselines)}; ~: IQR above 10 % of the median."

        def show(row, rows=rows, baselines=baselines):
            shaky = "~" if stats.summarise(row["samples"])["unstable"] else ""
            ratios = [against(row, rows, name) for name in baselines]
            beside = ", ".join(f"{ratio['ratio']:.2f}" if ratio else "–" for ratio in ratios)
            return f"{shaky}{milliseconds(median(row))} ({beside})"

        title = f"Time a call, ms: {workload}"
        made.append(by_length(title, rows, show, lambda row: per_sequence(row, median(row)), note))
        made.append(speeds(workload, rows, cell, record["roofs"]))
    return made


def speeds(workload: str, rows: dict, cell: dict, roofs: list[dict]) -> Table:
    """Useful work a second, and the share of the machine's roof."""
    decoding = roofline.roof_of(cell) == "copy"
    work = "read_bytes" if decoding else "flops"

    def show(row):
        share = roofline.share(row, roofs)
        return f"{row[work] / median(row) / 1e9:.1f}" + (f" ({share:.0%})" if share else "")

    unit = "Read, GB/s" if decoding else "Useful GFLOP/s"
    note = f"In brackets the share of the best {roofline.roof_of(cell)} rate seen in this run."
    table = by_length(f"{unit}: {workload}", rows, show, lambda row: None, note)
    return table._replace(columns=table.columns[:-1], rows=[row[:-1] for row in table.rows])


def memory(record: dict) -> list[Table]:
    """One table for each workload and measure: the three are never merged."""
    made = []
    weighed = [row for row in record["rows"] if row.get("memory")]
    for key, (measure, note) in MEASURES.items():
        have = [row for row in weighed if row["memory"][key] is not None]
        for workload, rows in grid(have).items():

            def show(row, key=key):
                peak = row["memory"][key]
                beyond = (
                    f" ({peak - row['result_bytes'] / 2**20:.1f})" if key == "resident_growth_mib" else ""
                )
                return f"{peak:.1f}{beyond}"

            def value(row, key=key):
                return per_sequence(row, row["memory"][key])

            made.append(by_length(f"{measure}: {workload}", rows, show, value, note))
    return made


def compile_times(record: dict) -> Table:
    """Ahead-of-time compilation, seconds."""
    rows = [
        row | {"subject": f"{row['subject']}: {row['workload']}"} for row in timed(record) if row["compile_s"]
    ]
    flat = {name: lengths for by_name in grid(rows).values() for name, lengths in by_name.items()}
    return by_length(
        "Compile time, s", flat, lambda row: f"{row['compile_s']:.2f}", lambda row: row["compile_s"]
    )


def variants(record: dict) -> Table:
    """What a window, padding and shared heads save each contender, within one round."""
    workloads = grid(timed(record))
    rows = []
    for workload, by_name in workloads.items():
        variant, rest = workload.split(", ", 1)
        base = workloads.get(f"{COMPARED.get(variant)}, {rest}", {})
        for name, lengths in by_name.items():
            for T, row in lengths.items():
                if ratio := against(row, base, name):
                    work = row["flops"] / base[name][T]["flops"]
                    rows.append(
                        [
                            f"{variant} ÷ {COMPARED[variant]}",
                            rest,
                            name,
                            str(T),
                            interval(ratio),
                            f"{work:.2f}",
                        ]
                    )
    return Table(
        "Time of a variant against the plain one", ["", "", "", "T", "time ratio [95 %]", "work ratio"], rows
    )


def automatic(record: dict) -> Table:
    """implementation="auto" against the best single implementation of its package."""
    rows = []
    for workload, by_name in grid(timed(record)).items():
        for package in ("attn_torch", "attn_jax"):
            single = [name for name in by_name if name.startswith(f"{package}[") and "auto" not in name]
            for T, row in by_name.get(f"{package}[auto]", {}).items():
                medians = {name: median(by_name[name][T]) for name in single if T in by_name[name]}
                best = min(medians, key=lambda name: medians[name], default="")
                if ratio := against(row, by_name, best):
                    held = "too slow" if ratio["low"] > SLACK else "yes"
                    rows.append([package, workload, str(T), best, interval(ratio), held])
    columns = ["", "workload", "T", "best single", "auto ÷ best [95 %]", f"within {SLACK - 1:.0%}"]
    return Table("auto against the best single implementation", columns, rows)


def roofs(record: dict) -> Table:
    """The best rate of each framework; the higher one is the machine's roof."""
    seen = sorted({(roof["dtype"], roof["kind"], roof["size"]) for roof in record["roofs"]})
    names = sorted({roof["framework"] for roof in record["roofs"]})
    rows = [
        [
            dtype,
            f"matmul {size} x {size}" if kind == "matmul" else f"copy, {size / 2**20:.0f} MiB read + written",
        ]
        + [
            rate(roofline.best(record["roofs"], kind, dtype, size=size, framework=name), kind)
            for name in names
        ]
        for dtype, kind, size in seen
    ]
    return Table("Rooflines, the best seen during the run", ["", "", *names], rows)


def rate(value: float | None, kind: str) -> str:
    return "" if value is None else f"{value / 1e9:.0f} {'GFLOP/s' if kind == 'matmul' else 'GB/s'}"


def details(record: dict) -> list[Table]:
    """Everything about each cell."""
    made = []
    for workload, by_name in grid(timed(record)).items():
        for T in sorted({T for lengths in by_name.values() for T in lengths}):
            rows = [lengths[T] for lengths in by_name.values() if T in lengths]
            cell = rows[0]["cell"]
            reference = contenders.baselines(cell)
            columns = [
                "",
                "median ms",
                "IQR",
                "min ms",
                "n",
                *(f"÷ {name} [95 %]" for name in reference.values()),
            ]
            columns += [
                "useful GFLOP/s",
                "dense-equivalent GFLOP/s",
                f"of the {roofline.roof_of(cell)} roof",
                "first call s",
                "check",
            ]
            lines = [detail(row, by_name, reference, record["roofs"]) for row in rows]
            made.append(Table(f"{workload}, T={T}, B={cell['B']}", columns, lines, detail=True))
    return made


def detail(row: dict, by_name: dict, reference: dict, roofs: list[dict]) -> list[str]:
    summary = stats.summarise(row["samples"])
    share = roofline.share(row, roofs)
    spread = f"{summary['iqr'] / summary['median']:.1%}" + (" unstable" if summary["unstable"] else "")
    ratios = [against(row, by_name, name) for name in reference.values()]
    return [
        row["subject"],
        milliseconds(summary["median"]),
        spread,
        milliseconds(summary["min"]),
        str(summary["n"]),
        *(interval(ratio) if ratio else "" for ratio in ratios),
        f"{row['flops'] / summary['median'] / 1e9:.1f}",
        f"{row['dense_flops'] / summary['median'] / 1e9:.1f}",
        f"{share:.1%}" if share else "",
        f"{row['first_s']:.3g}",
        f"{row['verdict'].replace('_', ' ')}, {row['max_share']:.2g} of the bound ({row['claim']})",
    ]


def backends(record: dict) -> Table:
    """What really ran, at the longest length of each workload."""
    rows = []
    for workload, by_name in grid(timed(record)).items():
        rows += [[workload, name, lengths[max(lengths)]["backend"]] for name, lengths in by_name.items()]
    return Table(
        "What ran",
        ["", "", "kernels and operators, seen in a profile or in the compiled program"],
        rows,
        detail=True,
        words=True,
    )


def not_timed(record: dict) -> Table:
    """Failed, unsupported and left-out contenders, each reason once, with the lengths it holds for."""
    found = defaultdict(list)
    for row in record["rows"]:
        if not row.get("samples"):
            found[row["status"], row["subject"], row["workload"], row["reason"]].append(row["cell"]["T"])
        if "unweighed" in row:
            found["not weighed", row["subject"], row["workload"], row["unweighed"]].append(row["cell"]["T"])
    rows = [[*key[:3], " ".join(map(str, sorted(lengths))), key[3]] for key, lengths in sorted(found.items())]
    rows += [["left out", name, "every", "", reason] for name, reason in contenders.NOT_TIMED.items()]
    return Table("Not timed", ["", "", "workload", "T", "because"], rows, words=True)
