"""What the documents show works: Python in them runs, docstring examples hold, targets and files exist."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = {name: (ROOT / name).read_text() for name in ("README.md", "ARCHITECTURE.md")}
BLOCKS = [
    block for text in DOCUMENTS.values() for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
]
PACKAGES = ("attn_torch", "attn_jax", "parity")


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[-1])
def test_python_in_the_documents_runs(block):
    """In an interpreter of its own: JAX as users have it, without float64."""
    command = [sys.executable, "-W", "error", "-c", block]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_docstring_examples_print_what_they_say():
    for package in map(importlib.import_module, PACKAGES):
        for _, name, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not name.endswith("__main__"):
                assert doctest.testmod(importlib.import_module(name)).failed == 0, name


def test_the_readme_tells_how_to_test():
    assert "make test" in DOCUMENTS["README.md"]


def test_documents_name_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"\bmake ([a-z-]+)", " ".join(DOCUMENTS.values()))) <= targets | {"the"}


def test_documents_name_files_that_exist():
    named = set(
        re.findall(r"\b(?:parity|tests|tools|benchmarks)/[\w/.-]*[\w/]", " ".join(DOCUMENTS.values()))
    )
    assert {name for name in named if not (ROOT / name).exists()} == set()
