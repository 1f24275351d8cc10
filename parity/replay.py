"""A failure as one file: inputs and options, what was expected and got, the bound, versions. To run again.

The format is safetensors, whose tensors keep their dtype, bfloat16 too: q, k, v, dout, each array among the
options as "options.NAME", then "expected.NAME", "bound.NAME", "got.NAME" of each tensor in float64. The rest
is JSON, under "parity" in the metadata. A file is the length of its header in 8 bytes, the header, the data.
Source: https://github.com/huggingface/safetensors, "Format".
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parity.cases import Case
from parity.inputs import Inputs
from parity.runner import Run, contract, truth_of
from parity.worker import Answer, Given, Task

SCHEMA = 1
CODES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}
CODES |= {"bool": "BOOL", "int32": "I32", "int64": "I64"}
FLOATS = ("bias", "sinks")  # options that have the dtype of q


@dataclass(frozen=True)
class Failure:
    """What a file holds. said: the JSON part. wanted, bound, got: tensor name -> float64 array."""

    made: Inputs
    said: dict
    wanted: dict
    bound: dict
    got: dict

    def task(self, subject: str | None = None, device: str | None = None) -> Task:
        """The same cell again, of another subject or on another device if they are given."""
        return Task(
            subject or self.said["subject"],
            case_of(self.made, self.said["case"]),
            self.said["dtype"],
            device or self.said["device"],
            self.said["seed"],
            self.said["backward"],
            given=Given(self.made),
        )


def case_of(made: Inputs, name: str) -> Case:
    """A case with these shapes and options, for those who ask a case. It does not hold the arrays."""
    said: dict = {n: ("given", "") if isinstance(x, np.ndarray) else x for n, x in made.options.items()}
    return Case(name, "", made.q.shape, made.k.shape, made.v.shape[-1], layout=made.layout, **said)


def path_of(folder: Path, cell: dict) -> Path:
    """Where a cell's failure goes: its subject, case, dtype and device as a file name."""
    words = (cell["subject"].rpartition("/")[2], cell["case"], cell["dtype"], cell["device"])
    return folder / (re.sub(r"[^\w.-]+", "-", "--".join(words)) + ".safetensors")


def keeper(folder: Path, run: Run) -> Callable[[Task, Answer, dict], str]:
    """For a run: saves each failure in a folder and gives its path."""

    def keep(task: Task, answer: Answer, cell: dict) -> str:
        path = path_of(folder, cell)
        environment = run.environments.get(task.subject) or run.environments[cell["framework"]]
        save(path, task, answer, cell, {n: x for n, x in environment.items() if n != "subject"})
        return str(path)

    return keep


def save(path: Path, task: Task, answer: Answer, cell: dict, environment: dict) -> None:
    """Write a failure; environment: the versions, devices and precision it ran with."""
    made, truth = truth_of(task.source)
    arrays = {name: (getattr(made, name), task.dtype) for name in ("q", "k", "v", "dout")}
    scalars = {}
    for name, x in made.options.items():
        if isinstance(x, np.ndarray):
            arrays[f"options.{name}"] = x, task.dtype if name in FLOATS else x.dtype.name
        else:
            scalars[name] = x
    bounds = contract(task.source, cell["claim"])
    for name in bounds:
        if name != "weights" and getattr(truth, name) is not None:
            arrays |= {f"expected.{name}": (getattr(truth, name), "float64")}
            arrays |= {f"bound.{name}": (bounds[name], "float64")}
    arrays |= {f"got.{name}": (x, "float64") for name, x in answer.tensors.items()}
    said = {key: cell[key] for key in ("case", "dtype", "device", "framework", "claim", "status", "reason")}
    said |= {"schema": SCHEMA, "subject": task.subject, "seed": task.seed, "backward": task.backward}
    said |= {"layout": made.layout, "options": scalars, "environment": environment}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack(arrays, {"parity": json.dumps(said)}))


def load(path: Path) -> Failure:
    """Read a failure. Raises ValueError if the file is not one, or of another schema."""
    try:
        arrays, metadata = unpack(path.read_bytes())
        said = json.loads(metadata["parity"])
        if said["schema"] == SCHEMA:
            return failure(arrays, said)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError):
        raise ValueError(f"{path} is not a failure that parity wrote") from None
    raise ValueError(f"{path} has schema {said['schema']}, wanted {SCHEMA}")


def failure(arrays: dict, said: dict) -> Failure:
    """Of what a file holds. Raises KeyError where something is missing."""
    said["subject"], said["case"], said["dtype"], said["device"], said["seed"], said["backward"]
    parts: dict[str, dict] = {"options": {}, "expected": {}, "bound": {}, "got": {}}
    for name, x in arrays.items():
        kind, _, tensor = name.partition(".")
        if tensor:
            parts[kind][tensor] = x
    scalars = {name: tuple(x) if isinstance(x, list) else x for name, x in said["options"].items()}
    q, k, v, dout = (arrays[name] for name in ("q", "k", "v", "dout"))
    made = Inputs(q, k, v, dout, {**scalars, **parts["options"]}, said["layout"])
    return Failure(made, said, parts["expected"], parts["bound"], parts["got"])


# ---- the format


def pack(arrays: dict[str, tuple[np.ndarray, str]], metadata: dict[str, str]) -> bytes:
    """name -> (array, the dtype it has in the file), as a safetensors file."""
    header: dict[str, dict] = {"__metadata__": metadata}
    data = b""
    for name, (x, dtype) in arrays.items():
        part = encoded(np.asarray(x), dtype)
        header[name] = {
            "dtype": CODES[dtype],
            "shape": x.shape,
            "data_offsets": (len(data), len(data) + len(part)),
        }
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def unpack(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(name -> array, metadata) of a safetensors file; floats as float64."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    metadata = header.pop("__metadata__", {})
    names = {code: name for name, code in CODES.items()}
    arrays = {}
    for name, x in header.items():
        a, b = x["data_offsets"]
        arrays[name] = decoded(content[start + a : start + b], names[x["dtype"]]).reshape(x["shape"])
    return arrays, metadata


def encoded(x: np.ndarray, dtype: str) -> bytes:
    """x, whose values dtype holds exactly. bfloat16 is the upper half of float32."""
    if dtype == "bfloat16":
        return (x.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    return x.astype(np.dtype(dtype).newbyteorder("<")).tobytes()


def decoded(data: bytes, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        halves = np.frombuffer(data, "<u2").astype(np.uint32)
        return (halves << 16).view(np.float32).astype(np.float64)
    x = np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))
    return x.astype(np.float64 if dtype.startswith("float") else dtype)
