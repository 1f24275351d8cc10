"""The arithmetic of the contract: what sums are held in, and float32 products that are float32 everywhere.

What the mathematics needs and the two frameworks spell differently is here: the other files read alike.
"""

import contextlib

import torch
from torch import Tensor

from .checks import INTEGERS, Spec

# A name of the contract -> what torch calls it. A device without that mode computes in float32.
MODES = {None: "ieee", "float32": "ieee", "tensorfloat32": "tf32", "bfloat16": "bf16"}
INDEX = torch.int64  # dtype of positions, lengths and segment ids
_NAMES = {x: str(x).removeprefix("torch.") for x in vars(torch).values() if isinstance(x, torch.dtype)}


def describe(x):
    """The Spec of an array of this framework, with the extremes of integers; anything else as it is."""
    if not isinstance(x, Tensor):
        return x
    spec = Spec(tuple(x.shape), _NAMES[x.dtype])
    if spec.dtype not in INTEGERS or torch.compiler.is_compiling() or x.device.type != "cpu" or not x.numel():
        return spec
    try:
        return spec._replace(low=int(x.min()), high=int(x.max()))
    except RuntimeError:  # inside vmap a value is not one number
        return spec


def known(x):
    """The integers of x (n,) as a list, where they can be read without waiting; None elsewhere."""
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return None
    try:
        return x.tolist()
    except RuntimeError:  # inside vmap a value is not one number
        return None


def accumulator(dtype):
    """float32 for float16 and bfloat16, else dtype itself."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def iota(n, like):
    """0 ... n - 1 as (n,) integers on the device of `like`."""
    return torch.arange(n, dtype=INDEX, device=like.device)


def constant(values, dtype, like):
    """Numbers as a vector (n,) of dtype, on the device of `like`."""
    return torch.tensor(values, dtype=dtype, device=like.device)


def index(x, furthest):
    """x as positions, cut to what they can be; what lies further is as far."""
    return x.to(INDEX).clamp(-furthest, furthest)


def label(x):
    """x, integers of any dtype, as something of which equal ones are equal."""
    return x.to(INDEX)


def take(x, axis, start, size):
    """x[start : start + size] along axis; an axis of size 1 stands for all of it and stays."""
    return x if x.shape[axis] == 1 else x.narrow(axis, start, size)


def rows(table, index):
    """Those rows (..., C) of a table (N, C) that integers (...) below N name; others are an error."""
    return torch.nn.functional.embedding(index.to(INDEX), table)


def append_zero(x, axis):
    """x with one more entry along axis, of zeros."""
    return torch.cat((x, torch.zeros_like(x.sum(axis, keepdim=True), dtype=x.dtype)), axis)


def stop_gradient(x):
    """x, as a constant."""
    return x.detach()


def einsum(equation, x, y, precision=None):
    """torch.einsum of two operands, in float32 for float32, unless `precision` asks for less.

    precision: None or "float32" (full), "tensorfloat32", "bfloat16". It overrules the global switches, also
      in the backward.
    No index may be repeated within an operand or summed within one alone. Returns (...) in x's dtype.
    """
    if not switched(x, precision):
        return torch.einsum(equation, x, y)
    if torch.compiler.is_compiling():
        raise RuntimeError(
            f"precision: got another global matmul precision, wanted {precision or 'float32'}; compiling "
            "cannot switch: call torch.set_float32_matmul_precision, or ask for less by name"
        )
    return _Einsum.apply(equation, x, y, precision)


def switched(x, precision):
    """Whether products of x in this precision need torch's global switch turned."""
    return x.dtype == torch.float32 and not _in_force(x.device.type, MODES[precision])


def _switch(device):
    return torch.backends.cuda.matmul if device == "cuda" else torch.backends.mkldnn.matmul


def _in_force(device, mode):
    now = _switch(device).fp32_precision
    return now == mode or (now == "none" and mode == "ieee")


# What torch.compiler.assume_constant_result does, without importing the compiler.
_in_force._dynamo_marked_constant = True  # type: ignore[attr-defined]


@contextlib.contextmanager
def _switched(device, mode):
    switch = _switch(device)
    was = switch.fp32_precision
    switch.fp32_precision = "tf32" if device == "cuda" and mode == "bf16" else mode
    try:
        yield
    finally:
        switch.fp32_precision = was


class _Einsum(torch.autograd.Function):
    """einsum under a precision of its own, whose derivatives keep it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(equation, x, y, precision):
        with _switched(x.device.type, MODES[precision]):
            return torch.einsum(equation, x, y)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.equation, x, y, ctx.precision = inputs
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        operands, out = ctx.equation.split("->")
        a, b = operands.split(",")
        dx = einsum(f"{out},{b}->{a}", g, y, ctx.precision)
        dy = einsum(f"{out},{a}->{b}", g, x, ctx.precision)
        return None, dx, dy, None

    @staticmethod
    def jvp(ctx, _equation, dx, dy, _precision):
        x, y = ctx.saved_tensors
        return einsum(ctx.equation, dx, y, ctx.precision) + einsum(ctx.equation, x, dy, ctx.precision)
