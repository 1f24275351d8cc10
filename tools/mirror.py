"""attn_torch and attn_jax side by side: what likeness each pair of files owes, and how far it is from it.

A file's grade says what must be equal once attn_torch's text has been put through VOCABULARY:
  twin     every byte; such a file needs the standard library only
  line     every line, imports in any order, and the outline with no exception
  outline  the public names in order, their parameters, defaults and docstrings, and every einsum equation
Where two files may differ all the same, EXEMPT holds both texts and the reason, and no more than is needed.
"""

import argparse
import ast
import re
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

GRADES = {
    "__init__.py": "line",
    "arithmetic.py": "outline",
    "attention.py": "line",
    "block.py": "outline",
    "cache.py": "outline",
    "cached.py": "twin",
    "calls.py": "twin",
    "checks.py": "twin",
    "dialects.py": "twin",
    "dropout.py": "outline",
    "embeddings.py": "line",
    "encoder_decoder.py": "outline",
    "generate.py": "outline",
    "heads.py": "line",
    "implementations/__init__.py": "twin",
    "implementations/blockwise.py": "outline",
    "implementations/fused.py": "outline",
    "implementations/reference.py": "line",
    "implementations/tiles.py": "outline",
    "implementations/units.py": "line",
    "layers.py": "outline",
    "mlp.py": "outline",
    "model_dialects.py": "twin",
    "multihead.py": "outline",
    "norms.py": "line",
    "params.py": "outline",
    "positions.py": "line",
    "pretrained.py": "outline",
    "sampling.py": "outline",
    "schedule.py": "twin",
    "transformer.py": "outline",
    "visibility.py": "line",
}

ONE_SIDED: dict[str, str] = {  # path with its package -> why the other has none
    "attn_torch/implementations/walk.py": "torch goes from tile to tile in Python",
    "attn_torch/implementations/steps.py": "torch can read the lengths of a decoding step, XLA cannot",
    "attn_jax/implementations/reads.py": "XLA has products of bfloat16 in float32, torch on a CPU has none",
    "attn_jax/implementations/loops.py": "a JAX program goes from tile to tile in loops of its own",
    "attn_torch/implementations/autograd.py": "torch takes hand-written derivatives as autograd Functions",
    "attn_jax/implementations/linear.py": "JAX takes a hand-written transpose as a primitive's rule",
    "attn_torch/backend.py": "transformers has no models in JAX",
    "attn_jax/flax.py": "torch's layers take no attention from outside",
}

VOCABULARY = {  # of attn_torch -> of attn_jax, whole words; at most ten
    "PyTorch": "JAX",
    "import torch": "import jax.numpy as jnp",
    "from torch import Tensor": "from jax import Array",
    "torch": "jnp",
    "Tensor": "Array",
    "torch.amax": "jnp.max",
    "keepdim": "keepdims",
    "def forward(": "def __call__(",
    ".to(": ".astype(",
}

RNGS = "flax draws a module's parameters from rngs, torch from its global generator"

EDGE = "no program of jax can raise for a number that it computes"

# File -> (text of attn_torch after the vocabulary, text of attn_jax, why they part).
EXEMPT = {
    "__init__.py": (
        ("from .backend import register", "", "transformers has no models in JAX"),
        ('    "register",', "", "transformers has no models in JAX"),
    ),
    "arithmetic.py": (
        (
            "switched(x, precision)\n"
            "Whether products of x in this precision need jnp's global switch turned.",
            "",
            "jax takes the precision with each product",
        ),
        (
            "Those rows (..., C) of a table (N, C) that integers (...) below N name; others are an error.",
            "Those rows (..., C) of a table (N, C) that integers (...) below N name; others are NaN.",
            EDGE,
        ),
    ),
    "block.py": (
        (
            "Block.__init__(self, n_embd, n_head, **dialect)",
            "Block.__init__(self, n_embd, n_head, *, rngs=None, **dialect)",
            RNGS,
        ),
    ),
    "encoder_decoder.py": (
        (
            "EncoderDecoder.__init__(self, *, encoder, decoder, share_embedding=False)",
            "EncoderDecoder.__init__(self, *, encoder, decoder, share_embedding=False, rngs=None)",
            RNGS,
        ),
    ),
    "dropout.py": (
        (
            "x as a 32-bit word, held in int64: jnp has no arithmetic on unsigned integers.",
            "x as a 32-bit word; uint32 wraps by itself.",
            "each framework has its own way to 32-bit words",
        ),
    ),
    "layers.py": (
        (
            "nn.Linear, which says so if x has another dtype than its weight. x (..., C) -> (..., F).",
            "linear as a module: kernel (C, F), bias (F,) or None. x (..., C) -> (..., F).\n"
            "Linear.__init__(self, n_in, n_out, bias=True, *, rngs)",
            "torch's own module will do, flax's has other numerics",
        ),
        (
            "",
            "LayerNorm.__init__(self, n_embd, eps=1e-05, bias=True)",
            "torch's own LayerNorm has this constructor",
        ),
        ("linear_layer(shapes, name)", "linear_layer(shapes, name, rngs)", RNGS),
    ),
    "implementations/blockwise.py": (
        (
            "tile_sizes(B, H, G, Tq, Tk)\n"
            "(rows of the batch, kv heads, queries, keys) of a tile, for Tk keys in reach of a query.",
            "tile_sizes(B, H, G, Tq, Tk, sight, plain)\n"
            "(rows of the batch, kv heads, queries, keys) of a tile.\n\n"
            "plain: whether k and v are read as they are, and not converted.",
            "JAX compiles for its tiles",
        ),
        ("", "WRITTEN_OUT\nROWS", "JAX compiles for its tiles"),
    ),
    "implementations/tiles.py": (
        (
            "Plan.small\nPlan.tame\nPlan.room",
            "Plan.unrolled\nPlan.few",
            "torch looks at the arrays before it computes, and manages memory; JAX writes a program",
        ),
        (
            "readable(x)\nWhether the values of an array are there, or only its shape.\n"
            "tile_of(corner, arrays, bias, rules, queries, hidden=None, small=False)",
            "tile_of(corner, arrays, bias, rules, queries)",
            "while jax traces a program no values are there; what numbers hide, torch keeps for later tiles",
        ),
        (
            "",
            "full(sight, i0, n, Tk)\n"
            "(j0, j1) of the keys that queries i0 ... i0 + n - 1 all see, by all rules but mask and segments."
            "\n\nj1 <= j0 if there are none.\n"
            "sides(sight)\n"
            "How many keys before and after its own a query may see; None if there is no limit.",
            "a loop's bounds are arrays; what torch's numbers hide it keeps for later tiles",
        ),
        (
            "",
            "class Heads\n"
            "Some heads of x (all heads, T, d), which are cut out with their tiles: both in turn takes "
            "longer.\n"
            "Heads.x\nHeads.first\nHeads.n\nHeads.shape(self)\nHeads.dtype(self)",
            "a part of a torch Tensor is no copy",
        ),
        (
            "",
            "cut(x, axis, start, size)\nx[start : start + size] along axis.\n\n"
            "Half types stay apart from what follows: XLA would convert all of them, before the loop, into "
            "new memory.",
            "a torch Tensor does this with narrow",
        ),
    ),
    "mlp.py": (
        (
            "MLP.__init__(self, n_embd, *, hidden=None, activation='gelu', bias=True, mlp_dropout=0.0)",
            "MLP.__init__(self, n_embd, *, hidden=None, activation='gelu', bias=True, mlp_dropout=0.0, "
            "rngs=None)",
            RNGS,
        ),
    ),
    "multihead.py": (
        (
            "MultiHeadAttention.__init__(self, n_embd, n_head, *, cross=False, qk_norm='none', **options)",
            "MultiHeadAttention.__init__(self, n_embd, n_head, *, cross=False, qk_norm='none', rngs=None, "
            "**options)",
            RNGS,
        ),
    ),
    "transformer.py": (
        (
            "Transformer.__init__(self, n_vocab, n_embd, n_head, n_layer, **dialect)",
            "Transformer.__init__(self, n_vocab, n_embd, n_head, n_layer, *, rngs=None, **dialect)",
            RNGS,
        ),
    ),
}

WORDS = re.compile(
    "|".join(
        r"\b" * word[0].isalpha() + re.escape(word) + r"\b" * word[-1].isalpha()
        for word in sorted(VOCABULARY, key=len, reverse=True)
    )
)


class Drift(NamedTuple):
    """Lines of attn_torch, after the vocabulary, and what attn_jax has in their place."""

    torch: str
    jax: str


def paths(package):
    """The package's Python files, by their names within it."""
    return {p.relative_to(ROOT / package).as_posix() for p in (ROOT / package).rglob("*.py")}


def source(package, name):
    return (ROOT / package / name).read_text()


def translated(text):
    return WORDS.sub(lambda m: VOCABULARY[m[0]], text)


def lines(text):
    """The text's lines, each run of imports sorted: isort orders them by the framework's name."""
    runs = groupby(text.splitlines(), key=lambda line: line.startswith(("import ", "from ")))
    return [line for imports, run in runs for line in (sorted(run) if imports else run)]


def outline(text):
    """What a reader of the signatures sees: a list of lines."""
    tree = ast.parse(text)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    calls = [call for call in calls if ast.unparse(call.func).endswith("einsum")]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    equations = [call.args[0] for call in calls if isinstance(call.args[0], ast.Constant)]
    return _members(tree) + [f"einsum {ast.unparse(equation)}" for equation in equations]


def _members(node, prefix=""):
    found = (ast.get_docstring(node) or "").splitlines()
    for child in node.body:
        if isinstance(child, ast.FunctionDef) and _public(child.name):
            found += [
                f"{prefix}{child.name}({_parameters(child.args)})",
                *(ast.get_docstring(child) or "").splitlines(),
            ]
        elif isinstance(child, ast.ClassDef) and _public(child.name):
            found += [f"class {child.name}", *_members(child, f"{child.name}.")]
        elif isinstance(child, ast.Assign | ast.AnnAssign):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            found += [f"{prefix}{t.id}" for t in targets if isinstance(t, ast.Name) and _public(t.id)]
    return found


def _public(name):
    return not name.startswith("_") or name in ("__init__", "__call__")


def _parameters(args):
    for arg in ast.walk(args):
        if isinstance(arg, ast.arg):
            arg.annotation = None
    return ast.unparse(args)


def compared(name):
    """The two lists of lines that must be equal under the file's grade."""
    torch, jax = translated(source("attn_torch", name)), source("attn_jax", name)
    view = outline if GRADES[name] == "outline" else lines
    return view(torch), view(jax)


def drifts(torch, jax):
    """Every place where two lists of lines part."""
    blocks = SequenceMatcher(None, torch, jax, autojunk=False).get_opcodes()
    return [Drift("\n".join(torch[a:b]), "\n".join(jax[c:d])) for tag, a, b, c, d in blocks if tag != "equal"]


def likeness(name):
    """The share of lines that are equal after the vocabulary, blank ones left out."""
    texts = translated(source("attn_torch", name)), source("attn_jax", name)
    torch, jax = ([line for line in lines(text) if line] for text in texts)
    return SequenceMatcher(None, torch, jax, autojunk=False).ratio()


def copy_twins():
    """Write attn_torch's twins over attn_jax's. Returns the names of those that changed."""
    twins = [name for name, grade in GRADES.items() if grade == "twin"]
    stale = [name for name in twins if source("attn_torch", name) != source("attn_jax", name)]
    for name in stale:
        (ROOT / "attn_jax" / name).write_text(source("attn_torch", name))
    return stale


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tools.mirror", description="The likeness of each pair of files."
    )
    parser.add_argument("--copy-twins", action="store_true", help="write attn_torch's twins over attn_jax's")
    if parser.parse_args().copy_twins:
        stale = copy_twins()
        print(f"copied {', '.join(stale)}" if stale else "every twin is identical already")
        return
    print("equal  lines  exempt  grade    file")
    for name in sorted(GRADES):
        size = len(source("attn_torch", name).splitlines())
        print(f"{likeness(name):5.0%}  {size:5}  {len(EXEMPT.get(name, ())):6}  {GRADES[name]:7}  {name}")


if __name__ == "__main__":
    main()
