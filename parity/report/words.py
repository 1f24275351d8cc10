"""What all reports say in the same words: a number, a share, a tensor, the whole run."""

import math
from collections import Counter, defaultdict
from typing import NamedTuple

ORDER = ("error", "failed", "no_evidence", "diverges", "passed", "unsupported")  # the worst first
BAD = {"nan": "NaN", "inf": "Inf", "lost": "not NaN or Inf that should be"}


def number(x) -> float:
    """A number of the record: JSON has no NaN or Infinity, so they are strings there."""
    return float(x)


def share(cell: dict) -> float:
    """The largest share of the error budget that any tensor of a cell uses; NaN if none was judged."""
    shares = [number(tensor["max_share"]) for tensor in cell.get("tensors", ())]
    return max(shares, default=math.nan)


def short(x: float) -> str:
    """A share in few characters: .034, .97, 12.3, 4e+06."""
    if math.isnan(x):
        return "nan"
    if x < 0.9995:
        return f"{x:.3f}".lstrip("0") if x < 0.0995 else f"{x:.2f}".lstrip("0")
    return f"{x:.3g}"


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


def cell_lines(cell: dict) -> list[str]:
    """Why a cell is not simply passed: its reason, and a line for each tensor that failed."""
    failed = [tensor_line(tensor) for tensor in cell.get("tensors", ()) if tensor["status"] == "failed"]
    return [cell["reason"]] * bool(cell["reason"]) + failed


def broken(record: dict) -> list[dict]:
    """The cells that did not hold."""
    return [cell for cell in record["cells"] if cell["status"] in ("failed", "error")]


def absences(record: dict) -> list[str]:
    """What this machine does not have, a line each."""
    lines = [f"{name}: {why}" for name, why in record["absent"].items()]
    kinds = {device["kind"] for found in record["environments"].values() for device in found["devices"]}
    return lines + [f"no {kind} here" for kind in ("cuda", "tpu") if kind not in kinds]


def sentence(record: dict) -> str:
    """The whole run in one line."""
    s = record["summary"]
    words = [f"{s['passed']:,} passed", f"{s['diverges']:,} differ as declared"]
    words += [f"{s['no_evidence']:,} without evidence"] if s["no_evidence"] else []
    words += [f"{s['unsupported']:,} unsupported", f"{s['failed'] + s['error']:,} failed"]
    total = sum(s[status] for status in ORDER)
    end = "" if s["complete"] else "; stopped before its end"
    return f"{total:,} cells: {', '.join(words)}, in {s['seconds']:.0f} s{end}"


def outcome(record: dict) -> str:
    """What it comes to: "broke" if something failed, "held" if nothing did in a whole run, else "open"."""
    s = record["summary"]
    if s["exit_code"] == 1:
        return "broke"
    return "held" if s["exit_code"] == 0 and s["complete"] else "open"


def verdict(record: dict) -> str:
    """The outcome in a few words: "2 of 14 failed", "all 14 hold", "nothing was judged"."""
    s = record["summary"]
    failed = s["failed"] + s["error"]
    ran = s["passed"] + s["diverges"] + s["no_evidence"] + failed
    held = s["passed"] + s["diverges"]
    if failed:
        return f"{failed:,} of {ran:,} failed"
    if not held:
        return "nothing was judged"
    return f"{held:,} of {ran:,} hold" if s["no_evidence"] else f"all {held:,} hold"


def versions(record: dict) -> dict[str, str]:
    """Distribution -> version, of all processes; an absent one is left out."""
    found = [record["versions"], *(process["versions"] for process in record["environments"].values())]
    return {name: version for each in found for name, version in each.items() if version != "absent"}


class Line(NamedTuple):
    """How one subject did in one dtype on one device. failed counts what did not run, too."""

    subject: str
    dtype: str
    device: str
    claim: str
    passed: int
    diverges: int
    no_evidence: int
    unsupported: int
    failed: int
    median: str  # of the shares of what passed; empty if nothing did
    largest: str


def by_subject(record: dict) -> list[Line]:
    """A line for each subject, dtype and device, in the order of the subjects."""
    groups = defaultdict(list)
    for cell in record["cells"]:
        groups[cell["subject"], cell["dtype"], cell["device"]].append(cell)
    order = {subject["name"]: n for n, subject in enumerate(record["subjects"])}
    return [line_of(*key, groups[key]) for key in sorted(groups, key=lambda key: order[key[0]])]


def line_of(subject: str, dtype: str, device: str, cells: list[dict]) -> Line:
    count = Counter(cell["status"] for cell in cells)
    passed = [cell for cell in cells if cell["status"] == "passed"]
    shares = sorted(map(share, passed))
    return Line(
        subject,
        dtype,
        device,
        claim=(passed or cells)[0]["claim"],
        passed=count["passed"],
        diverges=count["diverges"],
        no_evidence=count["no_evidence"],
        unsupported=count["unsupported"],
        failed=count["failed"] + count["error"],
        median=short(shares[len(shares) // 2]) if shares else "",
        largest=short(shares[-1]) if shares else "",
    )


def shown_divergences(record: dict) -> list[tuple[str, dict, int]]:
    """(subject, divergence, cells in which it showed) of every declared divergence that did."""
    shown = Counter((cell["subject"], name) for cell in record["cells"] for name in cell.get("diverges", ()))
    rows = ((subject["name"], each) for subject in record["subjects"] for each in subject["diverges"])
    return [(name, each, shown[name, each["name"]]) for name, each in rows if shown[name, each["name"]]]
