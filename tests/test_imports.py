"""Who may import whom, read from the sources, and what an import really loads."""

import ast
import json
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("attn_torch", "attn_jax", "parity")
FRAMEWORK = {"attn_torch": ("torch",), "attn_jax": ("jax", "flax")}

# Module of attn_torch and attn_jax -> what it may import besides the standard library, and all below that.
# "framework" is torch, or jax and flax; "weights" is parity.weights, which load and save import when they are
# called, since files are the same for both; numpy and transformers are these; any other name is a module of
# the same package.
MAY_IMPORT = {
    "checks": (),
    "schedule": (),
    "arithmetic": ("framework", "checks"),
    "visibility": ("framework", "arithmetic", "schedule"),
    "dialects": ("checks",),
    "dropout": ("framework", "arithmetic", "checks", "schedule"),
    "norms": ("framework", "arithmetic", "checks", "schedule"),
    "implementations": ("implementations",),
    "implementations.blockwise": (
        "framework",
        "arithmetic",
        "dropout",
        "implementations.autograd",
        "implementations.linear",
        "implementations.loops",
        "implementations.reads",
        "implementations.steps",
        "implementations.tiles",
        "implementations.units",
        "implementations.walk",
        "schedule",
        "visibility",
    ),
    "implementations.autograd": ("framework",),
    "implementations.steps": ("framework", "arithmetic", "schedule"),
    "implementations.reads": ("framework", "arithmetic"),
    "implementations.units": ("framework",),
    "implementations.loops": (
        "framework",
        "arithmetic",
        "dropout",
        "implementations.tiles",
        "schedule",
        "visibility",
    ),
    "implementations.walk": (
        "framework",
        "arithmetic",
        "dropout",
        "implementations.tiles",
        "schedule",
        "visibility",
    ),
    "implementations.fused": ("framework", "arithmetic", "visibility"),
    "implementations.linear": ("framework",),
    "implementations.reference": ("framework", "arithmetic", "dropout", "schedule", "visibility"),
    "implementations.tiles": ("framework", "arithmetic", "dropout", "schedule", "visibility"),
    "": (
        "attention",
        "backend",
        "block",
        "cache",
        "encoder_decoder",
        "generate",
        "layers",
        "mlp",
        "multihead",
        "norms",
        "params",
        "positions",
        "pretrained",
        "sampling",
        "transformer",
    ),
    "backend": ("framework", "transformers", "arithmetic", "attention"),
    "flax": ("framework", "attention"),
    "attention": ("framework", "arithmetic", "checks", "dropout", "implementations", "visibility"),
    "positions": ("framework", "arithmetic", "dialects"),
    "cached": ("checks",),
    "cache": ("framework", "arithmetic", "cached"),
    "layers": ("framework", "arithmetic", "checks", "dropout", "norms"),
    "mlp": ("framework", "arithmetic", "dialects", "layers"),
    "multihead": (
        "framework",
        "arithmetic",
        "attention",
        "cache",
        "cached",
        "dialects",
        "layers",
        "norms",
        "positions",
    ),
    "block": ("framework", "arithmetic", "dialects", "dropout", "layers", "mlp", "multihead", "norms"),
    "calls": ("cached", "checks"),
    "embeddings": ("framework", "arithmetic", "cache", "cached", "calls", "dialects", "mlp", "positions"),
    "sampling": ("framework", "arithmetic", "dropout"),
    "generate": (
        "framework",
        "numpy",
        "arithmetic",
        "cache",
        "calls",
        "dialects",
        "encoder_decoder",
        "model_dialects",
        "sampling",
        "transformer",
    ),
    "heads": ("framework", "arithmetic", "layers", "mlp"),
    "model_dialects": ("checks", "dialects"),
    "transformer": (
        "framework",
        "arithmetic",
        "block",
        "calls",
        "dialects",
        "dropout",
        "embeddings",
        "heads",
        "layers",
        "model_dialects",
        "multihead",
        "norms",
    ),
    "encoder_decoder": (
        "framework",
        "arithmetic",
        "dialects",
        "dropout",
        "model_dialects",
        "multihead",
        "transformer",
    ),
    "params": (
        "framework",
        "numpy",
        "block",
        "dialects",
        "encoder_decoder",
        "mlp",
        "multihead",
        "transformer",
    ),
    "pretrained": (
        "framework",
        "weights",
        "arithmetic",
        "checks",
        "encoder_decoder",
        "params",
        "transformer",
    ),
}

# Parity's core: NumPy and each other.
CORE = (
    "bounds",
    "bounds_block",
    "cases",
    "claims",
    "evidence",
    "fills",
    "inputs",
    "montecarlo",
    "oracle",
    "oracle_block",
    "verdict",
)
# Module of parity, and all below it -> what it may import anywhere in the file. One without a row may load a
# library inside a function.
PARITY_MAY_IMPORT = {module: ("numpy", *(f"parity.{other}" for other in CORE)) for module in CORE} | {
    "interop": ("numpy",),
    "oracle": ("numpy",),
    "oracle_block": ("numpy", "parity.oracle"),
    "weights": ("numpy", "parity.weights"),
    "report": ("rich", "jinja2", "matplotlib", "parity.report"),
}
# What parity may import at the top level of a file, and of some files more.
PARITY_AT_TOP = ("numpy", "parity")
PARITY_AT_TOP_MORE = {
    "cli": ("typer",),
    "choose": ("typer",),
    "failing": ("typer",),
    "proving": ("typer",),
    "screen": ("rich",),
    "outputs": ("typer",),
    "pytest": ("pytest",),
    "report": ("rich",),
    "report.html": ("jinja2",),
}


def modules(package):
    """Module name -> its path; the package itself is "attn_torch", a module "attn_torch.norms"."""
    names = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


ALL = {name: path for package in PACKAGES for name, path in modules(package).items()}


def imports(name, anywhere=True):
    """The dotted names that a module of ALL imports, anywhere in its file or at the top level only."""
    tree, found = ast.parse(ALL[name].read_text()), set()
    here = ALL[name].parent.relative_to(ROOT).parts
    for node in ast.walk(tree) if anywhere else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join((*here[: len(here) - node.level + 1], *filter(None, [node.module])))
            base = base if node.level else node.module
            inner = {f"{base}.{alias.name}" for alias in node.names}  # `from . import norms`: modules
            found |= inner if inner <= ALL.keys() else {base}
    return {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names}


def below(name, stems):
    """Whether a dotted name is one of the stems or lies below one."""
    return any(name == stem or name.startswith(f"{stem}.") for stem in stems)


def rows(table, module):
    """What a table's rows for a module, or for something above it, allow."""
    return [row for stem, row in table.items() if below(module, [stem])]


@pytest.mark.parametrize("package", ["attn_torch", "attn_jax"])
def test_the_packages_keep_to_the_table(package):
    found = {name.removeprefix(package).removeprefix("."): name for name in modules(package)}
    assert found.keys() <= MAY_IMPORT.keys(), "a module without a row"
    for module, name in found.items():
        libraries = {"framework": FRAMEWORK[package], "weights": ("parity.weights",)}
        libraries |= {name: (name,) for name in ("numpy", "transformers")}
        allowed = [y for x in MAY_IMPORT[module] for y in libraries.get(x, (f"{package}.{x}",))]
        broken = sorted(x for x in imports(name) if not below(x, allowed))
        assert not broken, f"{name} imports {broken}"


def test_every_row_is_for_a_module():
    found = {name.partition(".")[2] for package in ("attn_torch", "attn_jax") for name in modules(package)}
    assert MAY_IMPORT.keys() <= found
    assert {f"parity.{name}" for name in (*PARITY_MAY_IMPORT, *PARITY_AT_TOP_MORE)} <= modules(
        "parity"
    ).keys()


@pytest.mark.parametrize("name", modules("parity"))
def test_parity_keeps_to_its_tables(name):
    module = name.partition(".")[2]
    at_top = [*PARITY_AT_TOP, *sum(rows(PARITY_AT_TOP_MORE, module), ())]
    broken = {x for x in imports(name, anywhere=False) if not below(x, at_top)}
    for anywhere in rows(PARITY_MAY_IMPORT, module):
        broken |= {x for x in imports(name) if not below(x, anywhere)}
    assert not broken, f"{name} imports {sorted(broken)}"


def test_no_module_imports_itself_through_others():
    graph = {name: [x for x in imports(name, anywhere=False) if x in ALL and x != name] for name in ALL}
    TopologicalSorter(graph).prepare()  # CycleError names the cycle


def loaded(first, then, blocked=()):
    """The modules a fresh interpreter loads by `then`, after `first`, where importing `blocked` fails."""
    program = f"""
import json, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
{first}
before = set(sys.modules)
{then}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_attn_torch_runs_where_jax_is_not_installed():
    call = "import torch; attn_torch.scaled_dot_product_attention(*[torch.ones(1, 3, 4)] * 3, causal=True)"
    loaded("", f"import attn_torch; {call}", blocked=("jax", "jaxlib", "flax", "attn_jax", "parity"))


def test_attn_jax_runs_where_torch_is_not_installed():
    call = "import jax; attn_jax.scaled_dot_product_attention(*[jax.numpy.ones((1, 3, 4))] * 3, causal=True)"
    loaded("", f"import attn_jax; {call}", blocked=("torch", "attn_torch", "parity"))


@pytest.mark.parametrize(
    "package, frameworks",
    [("attn_torch", "import numpy, torch"), ("attn_jax", "import numpy, jax.numpy, flax.nnx")],
)
def test_importing_a_package_costs_little_beyond_its_framework(package, frameworks):
    extra = {name for name in loaded(frameworks, f"import {package}") if not name.startswith(package)}
    assert {name for name in extra if name.partition(".")[0] not in sys.stdlib_module_names} == set()


@pytest.mark.parametrize(
    "module", ["parity", "parity.cases", "parity.inputs", "parity.oracle", "parity.weights", "parity.cli"]
)
def test_importing_parity_loads_no_framework(module):
    roots = {name.partition(".")[0] for name in loaded("", f"import {module}")}
    assert not roots & {"torch", "jax", "jaxlib", "flax", "attn_torch", "attn_jax", "jinja2", "matplotlib"}
