"""Two runs side by side: the same contender in the same cell, then and now."""

from benchmarks import stats
from benchmarks.tables import Table, interval, milliseconds, timed


def tables(a: dict, b: dict) -> list[Table]:
    """What differs around the runs, and every cell that both timed, the largest change first."""
    return [surroundings(a, b), changes(a, b)]


def surroundings(a: dict, b: dict) -> Table:
    rows = []
    for part in ("environment", "frameworks"):
        for name in dict.fromkeys([*a[part], *b[part]]):
            x, y = a[part].get(name), b[part].get(name)
            if x != y and name not in ("date", "command"):
                rows.append([name, str(x), str(y)])
    return Table("What differs around the runs", ["", a["name"], b["name"]], rows, words=True)


def changes(a: dict, b: dict) -> Table:
    """Ratios of medians; the runs are not paired: what slowed one of them as a whole shows as a change."""

    def index(record):
        return {
            (row["subject"], row["workload"], row["cell"]["T"], row["cell"]["B"]): row
            for row in timed(record)
        }

    before, after = index(a), index(b)
    found = []
    for key in before.keys() & after.keys():
        x, y = before[key]["samples"], after[key]["samples"]
        medians = [milliseconds(stats.summarise(samples)["median"]) for samples in (x, y)]
        found.append((stats.ratio(y, x, paired=False), [*map(str, key), *medians]))
    found.sort(key=lambda entry: -abs(entry[0]["ratio"] - 1))
    columns = ["", "workload", "T", "B", f"{a['name']}, ms", f"{b['name']}, ms", "second ÷ first [95 %]"]
    note = f"{len(before.keys() ^ after.keys())} cells are in one run only."
    return Table("Time a call", columns, [[*texts, interval(ratio)] for ratio, texts in found], note)
