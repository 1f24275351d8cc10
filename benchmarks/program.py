"""A call that is ready to run: what on_torch.py and on_jax.py hand to the worker."""

from collections.abc import Callable
from typing import NamedTuple


class Program(NamedTuple):
    """call() runs it and returns native arrays; one with gradients also takes another cotangent, call(dout).

    compile_s: seconds of ahead-of-time tracing and compiling, None where there is none.
    estimate_bytes: arguments + outputs + temporaries - aliases by the compiler's account, None without one.
    backend(): the name of what really runs; may itself run the program.
    """

    call: Callable
    compile_s: float | None = None
    estimate_bytes: int | None = None
    backend: Callable[[], str] = lambda: ""
