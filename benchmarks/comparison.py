"""Two runs side by side: the same contender in the same cell, then and now."""

from benchmarks import stats
from benchmarks.tables import Table, interval, milliseconds, timed


def tables(a: dict, b: dict) -> list[Table]:
    """What differs in the surroundings, and every cell that both timed, largest change first."""
    return [surroundings(a, b), changes(a, b)]


def surroundings(a: dict, b: dict) -> Table:
    rows = []
    for key in ("environment", "frameworks"):
        names = dict.fromkeys([*a[key], *b[key]])
        values = [
            (name, a[key].get(name), b[key].get(name)) for name in names if name not in ("date", "command")
        ]
        rows += [[name, str(x), str(y)] for name, x, y in values if x != y]
    return Table("What differs around the runs", ["", a["name"], b["name"]], rows, words=True)


def changes(a: dict, b: dict) -> Table:
    """Ratios of medians; the runs are not paired, so what slowed one of them down as a whole shows as a change."""

    def index(record):
        return {
            (row["subject"], row["workload"], row["cell"]["T"], row["cell"]["B"]): row
            for row in timed(record)
        }

    before, after = index(a), index(b)
    found = []
    for key in before.keys() & after.keys():
        x, y = before[key]["samples"], after[key]["samples"]
        found.append((stats.ratio(y, x, paired=False), key, x, y))
    found.sort(key=lambda entry: -abs(entry[0]["ratio"] - 1))
    rows = [
        [
            *map(str, key),
            milliseconds(stats.summarise(x)["median"]),
            milliseconds(stats.summarise(y)["median"]),
            interval(ratio),
        ]
        for ratio, key, x, y in found
    ]
    columns = ["", "workload", "T", "B", f"{a['name']}, ms", f"{b['name']}, ms", "second ÷ first [95 %]"]
    return Table(
        "Time a call", columns, rows, f"{len(before.keys() ^ after.keys())} cells are in one run only."
    )
