"""What the machine can do, measured in the same run by both frameworks: matrix products and copies.

The roof of a dtype is the best rate that any framework showed, at any size and any time of the run.
"""

import numpy as np

from benchmarks.cells import DECODING, Cell

SIDES = {"cpu": (1024, 2048)}  # of the square matrices; an accelerator needs larger ones
LARGE_SIDES = (4096, 8192)
BEYOND_CACHES = 2**28  # bytes
# Shares that cannot be. A copy also reads what it overwrites, so that one who only reads may win a third.
BUG = {"matmul": 1.0, "copy": 1.5}


def probe(sessions: dict, cell: Cell, device: str) -> list[dict]:
    """The rates seen now: [{"kind", "framework", "dtype", "size", "rate"}], rate in FLOP/s or bytes/s."""
    jobs = [("matmul", side) for side in SIDES.get(device, LARGE_SIDES)] + [("copy", BEYOND_CACHES)]
    if cell.variant in DECODING:
        jobs.append(("copy", cell.read_bytes()))
    found = []
    for kind, size in jobs:
        work = 2 * size**3 if kind == "matmul" else size
        for framework, session in sessions.items():
            rate = work / session.ask("roof", kind, size, cell.dtype)
            found.append(
                {"kind": kind, "framework": framework, "dtype": cell.dtype, "size": size, "rate": rate}
            )
    return found


def best(roofs: list[dict], kind: str, dtype: str, **also) -> float | None:
    """The highest rate of this kind and dtype; also: size=, framework= narrow it. None if there is none."""
    wanted = {"kind": kind, "dtype": dtype, **also}
    return max((roof["rate"] for roof in roofs if wanted.items() <= roof.items()), default=None)


def roof_of(cell: dict) -> str:
    """What limits a cell: decoding reads much and computes little, all else is matrix products."""
    return "copy" if cell["variant"] in DECODING else "matmul"


def share(row: dict, roofs: list[dict]) -> float | None:
    """Part of its roof that a timed row reached, by its median; None where the roof was not measured.

    Decoding: bytes a second that it must read, against a copy that moves as many. Else: useful FLOP/s.
    """
    cell, seconds = row["cell"], float(np.median(row["samples"]))
    if roof_of(cell) == "copy":
        roof = best(roofs, "copy", cell["dtype"], size=row["read_bytes"])
        return roof and row["read_bytes"] / seconds / roof
    roof = best(roofs, "matmul", cell["dtype"])
    return roof and row["flops"] / seconds / roof


def impossible(row: dict, roofs: list[dict]) -> bool:
    """Whether a row beats its roof: then the count of operations, or the clock, is wrong."""
    reached = share(row, roofs)
    return reached is not None and reached > BUG[roof_of(row["cell"])]
