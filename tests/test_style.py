"""Rules about the sources that no linter knows."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("attn_torch", "attn_jax", "parity", "benchmarks", "tools")

# Text of every source file, by its path.
PRODUCTS = {
    p.relative_to(ROOT).as_posix(): p.read_text() for top in PRODUCT for p in (ROOT / top).rglob("*.py")
}
TESTS = {p.relative_to(ROOT).as_posix(): p.read_text() for p in (ROOT / "tests").rglob("*.py")}

# Test file -> why it may name a tolerance of its own. Elsewhere the bound is derived, or the claim exact.
TOLERANCES = {
    "tests/findings/test_jax.py": "a library's float32 mean, whose last bit is not the finding",
    "tests/meta/test_oracle.py": "the bounds are derived from the oracle and cannot judge it",
    "tests/test_transforms.py": "a function and its own transform, which torch compares at its defaults",
}
CLOSE = ("approx", "isclose", "allclose", "assert_allclose", "assert_close", "assert_almost_equal")
TOLERANCE = re.compile(rf"\b[ar]tol\s*=|\b({'|'.join(CLOSE)})\(")

FILE_LINES = 400
FUNCTION_LINES = 60  # of body, the docstring apart
# Function -> why it is longer.
LONG: dict[str, str] = {}  # name -> why


def bodies(text):
    """(name, number of lines from the first statement after the docstring to the last) of every function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0]
            yield node.name, node.end_lineno - first.lineno + 1


def test_tolerances_are_derived_or_excused():
    assert {path for path, text in TESTS.items() if TOLERANCE.search(text)} == TOLERANCES.keys()


def test_files_are_short():
    assert [path for path, text in (PRODUCTS | TESTS).items() if text.count("\n") > FILE_LINES] == []


def test_functions_are_short():
    sources = (PRODUCTS | TESTS).items()
    long = {(path, name) for path, text in sources for name, size in bodies(text) if size > FUNCTION_LINES}
    assert {entry for entry in long if entry[1] not in LONG} == set()
    assert {name for _, name in long} == LONG.keys()


def test_the_product_asserts_nothing():
    """An assert vanishes under python -O; what can go wrong raises."""
    nodes = ((path, node) for path, text in PRODUCTS.items() for node in ast.walk(ast.parse(text)))
    assert [(path, node.lineno) for path, node in nodes if isinstance(node, ast.Assert)] == []
