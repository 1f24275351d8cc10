"""The safetensors format: arrays in files, mapped into memory when they are read, while they are in use.

A file is the length of its header in 8 bytes, the header in JSON (name -> dtype, shape, place), the data.
Source: https://github.com/huggingface/safetensors, "Format".
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

# Code in a file -> (name, NumPy's dtype of the bits). NumPy has no bfloat16.
DTYPES: dict[str, tuple[str, np.dtype]] = {
    "F64": ("float64", np.dtype("<f8")),
    "F32": ("float32", np.dtype("<f4")),
    "BF16": ("bfloat16", np.dtype("<u2")),
    "F16": ("float16", np.dtype("<f2")),
}
CODES = {name: code for code, (name, _) in DTYPES.items()}
BITS = dict(DTYPES.values())
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Stored:
    """An array in a file. dtype: a name, or the file's own code if that is no floating point known here."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: str

    def bits(self) -> np.ndarray:
        """The array, mapped: its pages are read when they are touched, and given back with it."""
        if not prod(self.shape):
            return np.zeros(self.shape, BITS[self.dtype])
        return np.memmap(self.path, BITS[self.dtype], "r", self.offset, self.shape or (1,)).reshape(
            self.shape
        )


def widened(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Bits as numbers: bfloat16 as the same numbers in float32, what else there is as it is."""
    if dtype != "bfloat16":
        return bits
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def narrowed(x: np.ndarray, dtype: str) -> np.ndarray | None:
    """Numbers as the bits of a dtype, or None if that would change one."""
    if dtype == "bfloat16":
        if x.dtype != np.float32:
            return None
        wide = np.ascontiguousarray(x).view(np.uint32)
        return None if (wide & 0xFFFF).any() else (wide >> 16).astype(np.uint16)
    if x.dtype == BITS[dtype]:
        return x
    with np.errstate(over="ignore"):
        near = x.astype(BITS[dtype])
    return near if np.array_equal(near.astype(x.dtype), x, equal_nan=True) else None


def json_of(path: Path) -> dict:
    """What a JSON file says by name. Raises ValueError if it is none."""
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: wanted JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: got {type(found).__name__}, wanted names and what they mean")
    return found


def of_file(path: Path) -> dict[str, Stored]:
    """The arrays of a safetensors file by name. Raises ValueError if it is none."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: wanted this file, which {INDEX} names")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length)) if length <= size else None
        except ValueError:
            header = None
    if not isinstance(header, dict):
        raise ValueError(f"{path}: wanted a safetensors file")
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        code, shape, (start, end) = placed(entry)
        dtype, bits = DTYPES.get(code, (code, None))
        whole = bits is None or end - start == bits.itemsize * prod(shape)
        if not whole or not 0 <= start <= end <= size - 8 - length:
            raise ValueError(f"{path}: the place of {name} is not in the file: it is cut short or damaged")
        found[name] = Stored(path, 8 + length + start, shape, dtype)
    return found


def placed(entry) -> tuple[str, tuple[int, ...], tuple[int, int]]:
    """(code of the dtype, shape, the data's first byte and the one after the last) of a header's entry.

    Of anything else, a place that is in no file.
    """
    match entry:
        case {"dtype": str(code), "shape": [*shape], "data_offsets": [int(start), int(end)]}:
            if all(isinstance(n, int) and n >= 0 for n in shape):
                return code, tuple(shape), (start, end)
    return "", (), (0, -1)


def of_folder(folder: Path) -> dict[str, Stored]:
    """The arrays of a model's folder by name, of one file or of several with an index."""
    if (folder / SINGLE).exists():
        return of_file(folder / SINGLE)
    if not (folder / INDEX).exists():
        raise FileNotFoundError(f"{folder}: wanted {SINGLE} or {INDEX} in it")
    wanted = json_of(folder / INDEX).get("weight_map")
    if not isinstance(wanted, dict) or not all(isinstance(file, str) for file in wanted.values()):
        raise ValueError(f"{folder / INDEX}: wanted weight_map, a file's name for each tensor")
    shards = {file: of_file(folder / Path(file).name) for file in sorted(set(wanted.values()))}
    absent = sorted(name for name, file in wanted.items() if name not in shards[file])
    if absent:
        raise ValueError(f"{folder / INDEX}: not in their files: {', '.join(absent)}")
    return {name: shards[file][name] for name, file in wanted.items()}


def save(path: Path, arrays: dict[str, tuple[str, tuple[int, ...], Callable[[], np.ndarray]]]) -> None:
    """Write a safetensors file, one array at a time. arrays: name -> (dtype, shape, what gives its bits).

    The order is that of the format's own library, so that a file read and written is the same file.
    """

    def places() -> Iterator:
        at = 0
        for name in order:
            dtype, shape, _ = arrays[name]
            end = at + BITS[dtype].itemsize * prod(shape)
            yield name, {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [at, end]}
            at = end

    order = sorted(arrays, key=lambda name: (list(BITS).index(arrays[name][0]), name))
    said = {"__metadata__": {"format": "pt"}} | dict(places())
    header = json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    part = path.with_suffix(".part")
    try:
        with part.open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for name in order:
                file.write(np.ascontiguousarray(arrays[name][2]()).data)
        os.replace(part, path)  # whoever has mapped the file that was there keeps it
    finally:
        part.unlink(missing_ok=True)
