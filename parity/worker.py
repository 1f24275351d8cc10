"""The process that runs other people's code: one framework, one task at a time, answers through a pipe.

A task names a subject, a case, a dtype, a device and a seed; the answer is float64 NumPy arrays or what went
wrong. Whatever hangs or dies here costs one cell.
"""

import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from parity import blocks, devices, heldout, inputs, subjects  # noqa: F401 (heldout has fills of its own)
from parity.blocks import BlockCase
from parity.cases import Case
from parity.subjects import FRAMEWORKS, Subject, plugin

# By default XLA spends five times as long on a case, most of it on making fast what runs once.
QUICK_COMPILE = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
LOADED: dict[str, Callable] = {}  # a subject's name -> its function


@dataclass(frozen=True, eq=False)
class Given:
    """Arrays that come from a file and not from the catalogue. Two are the same only if they are one."""

    inputs: inputs.Inputs


@dataclass(frozen=True)
class Task:
    """One cell to run. subject: a built-in name or a plug-in's address. backward: gradients too.

    given: arrays to use in place of those that the case and the seed stand for.
    """

    subject: str
    case: Case | BlockCase
    dtype: str
    device: str
    seed: int
    backward: bool = True
    quick_compile: bool = True
    given: Given | None = None

    @property
    def source(self):
        """What inputs_of makes the inputs from."""
        return self.given or (self.case, self.dtype, self.seed)


@dataclass(frozen=True)
class Answer:
    """tensors: name -> float64 array; dtypes: name -> the dtype it had. error: empty if the subject ran."""

    tensors: dict
    dtypes: dict
    seconds: float
    error: str = ""


def serve(pipe, kind: str, log: str) -> None:
    """Say what devices.prepare found, or an Answer with the error; then answer tasks until None comes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    try:
        plug_in = None if kind in FRAMEWORKS else subjects.find(kind)
        framework = kind if plug_in is None else plug_in.framework
        found = devices.prepare(framework)
        pipe.send(found if plug_in is None else found | {"subject": plugin.describe(plug_in)})
    except Exception as problem:
        pipe.send(Answer({}, {}, 0.0, explain(problem)))
        return
    run = RUNS[framework]
    while (task := pipe.recv()) is not None:
        pipe.send(answer(run, task, subjects.find))


def answer(run: Callable, task: Task, find: Callable[[str], Subject]) -> Answer:
    """Run one task of the subject that find gives; every exception becomes its answer's error."""
    start = time.perf_counter()
    try:
        found = find(task.subject)
        if isinstance(task.case, BlockCase):
            where = task.dtype, task.device, task.seed, compiler_options(task)
            tensors, dtypes = blocks.run(found.framework, found.block, task.case, *where), {}
        else:
            tensors, dtypes = run(task, found, inputs_of(task.source))
        return Answer(tensors, dtypes, time.perf_counter() - start)
    except Exception as problem:
        return Answer({}, {}, time.perf_counter() - start, explain(problem))


def explain(problem: Exception) -> str:
    """One line: what was raised, its first line, and where."""
    where = traceback.extract_tb(problem.__traceback__)[-1]
    text = (str(problem).strip() or "no message").splitlines()[0]
    return f"{type(problem).__name__}: {text} ({os.path.basename(where.filename)}:{where.lineno})"


@lru_cache(maxsize=2)
def inputs_of(source: Given | tuple) -> inputs.Inputs:
    """The inputs of a task's source."""
    return source.inputs if isinstance(source, Given) else inputs.make(*source)


def function_of(subject: Subject) -> Callable:
    """What it loads, loaded once."""
    if subject.name not in LOADED:
        LOADED[subject.name] = subject.load()
    return LOADED[subject.name]


def split(made: inputs.Inputs, constants: tuple[str, ...]) -> tuple[dict, dict]:
    """(what has a gradient, the other options), by name."""
    leaves = {"q": made.q, "k": made.k, "v": made.v}
    leaves |= {n: made.options[n] for n in ("bias", "sinks") if n in made.options and n not in constants}
    return leaves, {n: x for n, x in made.options.items() if n not in leaves}


def plain(tensors: dict) -> tuple[dict, dict]:
    """NumPy arrays of any dtype as float64, and the names of their dtypes."""
    dtypes = {n: x.dtype.name for n, x in tensors.items()}
    return {n: x.astype(np.float64) for n, x in tensors.items()}, dtypes


# ---- torch


def run_torch(task: Task, subject: Subject, made: inputs.Inputs):
    import torch

    dtype = getattr(torch, task.dtype)
    strided, _ = inputs.LAYOUTS[made.layout]

    def native(x, name=""):
        if not isinstance(x, np.ndarray):
            return x
        tensor = torch.from_numpy(np.array(x)).to(task.device, dtype if x.dtype == np.float64 else None)
        return laid_out(tensor, made.layout) if name in strided.split() else tensor

    leaves, others = split(made, subject.constants)
    leaves = {n: native(x, n).requires_grad_(task.backward) for n, x in leaves.items()}
    result = function_of(subject)(**leaves, **{n: native(x) for n, x in others.items()})
    out, lse = result if subject.exposes_lse else (result, None)
    tensors = {"out": out} | ({} if lse is None else {"lse": lse})
    if task.backward and out.shape == made.dout.shape:
        dout = native(made.dout, "dout")
        grads = torch.autograd.grad(out, tuple(leaves.values()), dout, allow_unused=True)
        tensors |= {f"d{n}": g for n, g in zip(leaves, grads, strict=True) if g is not None}
    dtypes = {n: str(x.dtype).removeprefix("torch.") for n, x in tensors.items()}
    return {n: x.detach().to("cpu", torch.float64).numpy() for n, x in tensors.items()}, dtypes


def laid_out(x, layout: str):
    """x with its values and with the strides of parity.inputs.lay_out, on its own device."""
    import torch

    view = inputs.lay_out(np.arange(x.numel()).reshape(x.shape), layout)
    memory = view  # which element of x lies where
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    offset = (view.ctypes.data - memory.ctypes.data) // view.itemsize
    order = torch.from_numpy(memory.flatten()).to(x.device)
    return x.flatten()[order].as_strided(view.shape, [n // view.itemsize for n in view.strides], offset)


# ---- jax: a case is one jitted call; cases that differ in values alone share it

JITTED: dict = {}


def run_jax(task: Task, subject: Subject, made: inputs.Inputs):
    import jax

    dtype = jax.numpy.dtype(task.dtype)
    device = jax.devices({"cuda": "gpu"}.get(task.device, task.device))[0]

    def native(x):
        return jax.device_put(x.astype(dtype) if x.dtype == np.float64 else x, device)

    leaves, others = split(made, subject.constants)
    leaves = {n: native(x) for n, x in leaves.items()}
    arrays = {n: native(x) for n, x in others.items() if isinstance(x, np.ndarray)}
    static = {n: x for n, x in others.items() if n not in arrays}
    key = (task.subject, repr(static), task.backward, task.device, task.quick_compile)
    if key not in JITTED:
        call = vjp(function_of(subject), subject.exposes_lse, static, task.backward)
        JITTED[key] = jax.jit(call, compiler_options=compiler_options(task))
    tensors = {n: np.asarray(x) for n, x in JITTED[key](leaves, arrays, native(made.dout)).items()}
    return plain(tensors)


def compiler_options(task: Task) -> dict | None:
    """For jax.jit; QUICK_COMPILE is a CPU's."""
    return QUICK_COMPILE if task.quick_compile and task.device == "cpu" else None


def vjp(function, exposes_lse: bool, static: dict, backward: bool):
    """(leaves, arrays, dout) -> {"out", "lse" if exposed, "dq", ... if backward}."""
    import jax

    def both(leaves, arrays):
        result = function(**leaves, **arrays, **static)
        return result if exposes_lse else (result, None)

    def call(leaves, arrays, dout):
        if not backward:
            out, lse = both(leaves, arrays)
            return {"out": out} | ({} if lse is None else {"lse": lse})
        out, pull, lse = jax.vjp(lambda leaves: both(leaves, arrays), leaves, has_aux=True)
        grads = pull(dout)[0] if out.shape == dout.shape else {}
        return {"out": out} | ({} if lse is None else {"lse": lse}) | {f"d{n}": g for n, g in grads.items()}

    return call


# ---- numpy: forward only


def run_numpy(task: Task, subject: Subject, made: inputs.Inputs):
    def native(x):
        return x.astype(task.dtype) if isinstance(x, np.ndarray) and x.dtype == np.float64 else x

    arguments = {"q": made.q, "k": made.k, "v": made.v, **made.options}
    result = function_of(subject)(**{n: native(x) for n, x in arguments.items()})
    named = zip(("out", "lse"), result if subject.exposes_lse else (result,), strict=False)
    tensors = {n: np.asarray(x) for n, x in named}
    return plain(tensors)


RUNS: dict[str, Callable] = {"torch": run_torch, "jax": run_jax, "numpy": run_numpy}
