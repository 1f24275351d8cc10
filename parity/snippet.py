"""A failing input as a program of a few lines, to paste into a report: the same call in torch and in JAX."""

from pathlib import Path

import numpy as np

from parity.inputs import Inputs
from parity.runner import truth_of
from parity.worker import Task

IMPORTS = {
    "torch": "import torch",
    "jax": "import jax\nimport jax.numpy as jnp",
    "numpy": "import numpy as np",
}
ARRAY = {
    "torch": "torch.tensor({}, dtype=torch.{})",
    "jax": "jnp.array({}, jnp.{})",
    "numpy": "np.array({}, np.{})",
}
SHORT = {"float16": np.float16, "bfloat16": np.float32, "float32": np.float32, "float64": np.float64}


def program(framework: str, task: Task, cell: dict) -> str:
    """The call of a failing task: of the subject, if it has an address and this framework, or of ours."""
    made, truth = truth_of(task.source)
    failed = [tensor["name"] for tensor in cell.get("tensors", ()) if tensor["status"] == "failed"]
    tensor = failed[0] if failed else "out"
    place, _, name = task.subject.rpartition(":")
    if not place or cell["framework"] != framework:
        place, name = f"attn_{framework}", "scaled_dot_product_attention"
    module = Path(place).stem if place.endswith(".py") else place
    function = f"from {module} import {name}", name
    return snippet(framework, made, task.dtype, function, tensor, getattr(truth, tensor))


def explain(cell: dict, made: Inputs, asked: int) -> str:
    """One paragraph: what is left, and how it was found."""
    shapes = f"q {made.q.shape}, k {made.k.shape}, v {made.v.shape}"
    options = [
        f"{n} {x.shape}" if isinstance(x, np.ndarray) else f"{n}={x!r}" for n, x in made.options.items()
    ]
    failed = ", ".join(t["name"] for t in cell.get("tensors", ()) if t["status"] == "failed")
    what = f"{cell['subject']} still fails ({failed or cell['reason']})"
    return f"{what} on {'; '.join([shapes, *options])}; {asked} inputs tried"


def snippet(framework: str, made: Inputs, dtype: str, function: tuple[str, str], tensor: str, wanted) -> str:
    """A program that calls a function on these inputs and prints one tensor beside what it should be.

    function: (the line that imports it, its name). tensor: "out", "lse", or a gradient; wanted: its value.
    """
    imports, call = function
    own = {"q": made.q, "k": made.k, "v": made.v}
    options = made.options
    lines = [IMPORTS[framework], imports, ""]
    if dtype == "float64" and framework == "jax":
        lines.insert(1, 'jax.config.update("jax_enable_x64", True)')
    lines += [f"{name} = {array(framework, x, dtype)}" for name, x in own.items()]
    lines += [
        f"{name} = {array(framework, x, dtype)}" for name, x in options.items() if isinstance(x, np.ndarray)
    ]
    words = [
        "q",
        "k",
        "v",
        *(f"{n}={n if isinstance(x, np.ndarray) else repr(x)}" for n, x in options.items()),
    ]
    if tensor in ("out", "lse"):
        words += ["return_lse=True"] if tensor == "lse" else []
        lines += [f"{'out, lse' if tensor == 'lse' else 'out'} = {call}({', '.join(words)})"]
    else:
        lines += gradient(framework, made, dtype, call, words, tensor)
    return "\n".join([*lines, f"print({tensor})", f"# wanted: {numbers(wanted, 'float64', 6)}"])


def gradient(framework: str, made: Inputs, dtype: str, call: str, words: list[str], tensor: str) -> list[str]:
    """The lines that compute one gradient under the cotangent of the inputs."""
    name = tensor[1:]
    dout = f"dout = {array(framework, made.dout, dtype)}"
    if framework == "torch":
        run = [
            f"{name}.requires_grad_()",
            f"{call}({', '.join(words)}).backward(dout)",
            f"{tensor} = {name}.grad",
        ]
        return [dout, *run]
    forward = f"_, pull = jax.vjp(lambda {name}: {call}({', '.join(words)}), {name})"
    return [dout, forward, f"({tensor},) = pull(dout)"]


def array(framework: str, x: np.ndarray, dtype: str) -> str:
    """An array of a framework, written out."""
    kind = (
        dtype
        if x.dtype == np.float64
        else "bool_"
        if framework == "jax" and x.dtype == bool
        else x.dtype.name
    )
    text = ARRAY[framework].format(numbers(x, dtype), kind)
    special = {"torch": "torch.{}", "jax": "jnp.{}", "numpy": "np.{}"}[framework]
    return text.replace("nan", special.format("nan")).replace("inf", special.format("inf"))


def numbers(x: np.ndarray, dtype: str, digits: int | None = None) -> str:
    """Nested lists with the fewest digits that give the values back, or so many significant ones."""
    if x.ndim:
        return f"[{', '.join(numbers(part, dtype, digits) for part in x)}]"
    if x.dtype != np.float64:
        return str(x.item())
    text = f"{float(x):.{digits}g}" if digits else str(SHORT[dtype](x))
    return text.removesuffix(".0") + "." * text.endswith(".0")
