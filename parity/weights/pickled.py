"""Checkpoints of torch.save, without torch: a pickle of what there is, in a zip with the arrays as they are.

Only tensors and plain containers are unpickled: whatever else a file may name is refused, not run.
Source: torch/serialization.py and torch/_utils.py, `_rebuild_tensor_v2`.
"""

import pickle
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple
from zipfile import ZIP_STORED, BadZipFile, ZipFile

from .stored import Stored

STORAGES = {
    "DoubleStorage": ("float64", 8),
    "FloatStorage": ("float32", 4),
    "HalfStorage": ("float16", 2),
    "BFloat16Storage": ("bfloat16", 2),
    "LongStorage": ("int64", 8),
    "IntStorage": ("int32", 4),
    "ByteStorage": ("uint8", 1),
    "BoolStorage": ("bool", 1),
}


class Storage(NamedTuple):
    """The numbers of a tensor, one after the other."""

    path: Path
    offset: int
    dtype: str
    width: int


def tensor(storage, offset, shape, strides, *_):
    """A tensor of a storage, if its rows follow one another."""
    step = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n > 1 and stride != step:
            raise ValueError(
                f"{storage.path}: got a tensor {shape} of strides {strides}, wanted a contiguous one"
            )
        step *= n
    return Stored(storage.path, storage.offset + offset * storage.width, tuple(shape), storage.dtype)


KNOWN = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): tensor,
    ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
} | {("torch", name): name for name in STORAGES}


def load(path: Path):
    """What torch.save was given, a Stored for each tensor. Raises ValueError if it holds anything else."""
    try:
        with ZipFile(path) as file:
            (pickled,) = [info for info in file.infolist() if info.filename.endswith("/data.pkl")]
            root = pickled.filename.removesuffix("data.pkl")
            places = {
                info.filename.removeprefix(f"{root}data/"): _start(path, info)
                for info in file.infolist()
                if info.filename.startswith(f"{root}data/") and info.compress_type == ZIP_STORED
            }
            order = file.read(f"{root}byteorder") if f"{root}byteorder" in file.namelist() else b"little"
            with file.open(pickled) as stream:
                found = _Unpickler(stream, path, places).load()
    except (BadZipFile, pickle.UnpicklingError) as error:
        raise ValueError(f"{path}: wanted a file of torch.save: {error}") from None
    if order != b"little":
        raise ValueError(f"{path}: got byteorder {order.decode()}, wanted little")
    return found


def _start(path, info):
    """Where the data of a file in a zip begin: after its name and the padding in its own header."""
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
    return info.header_offset + 30 + name + extra


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream, path, places):
        super().__init__(stream)
        self.path, self.places = path, places

    def find_class(self, module, name):
        if (module, name) not in KNOWN:
            raise ValueError(f"{self.path}: got {module}.{name}, wanted tensors and plain containers")
        return KNOWN[module, name]

    def persistent_load(self, pid):
        _, name, key, *_ = pid
        return Storage(self.path, self.places[key], *STORAGES[name])
