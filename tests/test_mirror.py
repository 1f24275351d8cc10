"""attn_torch and attn_jax can be read side by side: each pair of files keeps the likeness of its grade."""

import ast
import sys

import pytest
from frameworks import both_frameworks, package

from tools import mirror

PAIRS = sorted(mirror.GRADES)


def graded(*grades):
    return pytest.mark.parametrize("name", [name for name in PAIRS if mirror.GRADES[name] in grades])


def test_every_file_has_a_grade_and_a_partner():
    torch, jax = mirror.paths("attn_torch"), mirror.paths("attn_jax")
    assert torch & jax == set(mirror.GRADES)
    assert {f"attn_torch/{n}" for n in torch - jax} | {f"attn_jax/{n}" for n in jax - torch} == set(
        mirror.ONE_SIDED
    )


@graded("twin")
def test_twins_are_identical(name):
    assert mirror.source("attn_jax", name) == mirror.source("attn_torch", name), "run `make twins`"


@graded("twin")
def test_twins_need_the_standard_library_only(name):
    for node in ast.walk(ast.parse(mirror.source("attn_torch", name))):
        if isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= sys.stdlib_module_names
        elif isinstance(node, ast.ImportFrom) and not node.level:
            assert node.module.partition(".")[0] in sys.stdlib_module_names


@graded("line", "outline")
def test_pairs_differ_only_where_exempted(name):
    exempt = {mirror.Drift(torch, jax) for torch, jax, _ in mirror.EXEMPT.get(name, ())}
    found = set(mirror.drifts(*mirror.compared(name)))
    shown = "\n\n".join(f"attn_torch: {drift.torch}\nattn_jax: {drift.jax}" for drift in found - exempt)
    assert found <= exempt, f"{name} differs:\n{shown}"
    assert exempt <= found, f"{name} has exemptions that nothing needs: {exempt - found}"


@graded("line")
def test_line_files_have_equal_signatures_and_docstrings(name):
    torch, jax = mirror.translated(mirror.source("attn_torch", name)), mirror.source("attn_jax", name)
    assert mirror.outline(torch) == mirror.outline(jax)


def test_exemptions_are_for_compared_files_and_carry_a_reason():
    assert all(mirror.GRADES[name] in ("line", "outline") for name in mirror.EXEMPT)
    reasons = [why for entries in mirror.EXEMPT.values() for *_, why in entries] + list(
        mirror.ONE_SIDED.values()
    )
    assert all(len(why.split()) > 3 for why in reasons)


def test_the_vocabulary_is_small_and_needed():
    assert len(mirror.VOCABULARY) <= 10
    sources = "".join(mirror.source("attn_torch", name) for name in PAIRS)
    assert {match[0] for match in mirror.WORDS.finditer(sources)} == set(mirror.VOCABULARY)


@pytest.mark.parametrize(
    "torch, jax",
    [
        ("def f(x, eps=1e-5):\n    '''Doc.'''", "def f(x, eps=1e-6):\n    '''Doc.'''"),
        ("def f(x, eps=1e-5):\n    '''Doc.'''", "def f(x, eps=1e-5):\n    '''Other.'''"),
        ("def f(x):\n    return g(x)\ndef g(x): ...", "def g(x): ...\ndef f(x):\n    return g(x)"),
        ("class A:\n    def f(self, x): ...", "class A:\n    def f(self, y): ..."),
        ("x = torch.einsum('qd,kd->qk', q, k)", "x = jnp.einsum('dq,kd->qk', q, k)"),
        ("FEW = 1\nLIMIT = 1", "FEW = 1"),
    ],
)
def test_the_outline_sees(torch, jax):
    assert mirror.drifts(mirror.outline(mirror.translated(torch)), mirror.outline(jax))
    assert not mirror.drifts(
        mirror.outline(mirror.translated(torch)), mirror.outline(mirror.translated(torch))
    )


@both_frameworks
def test_public_names_are_documented(framework):  # that they are sorted, ruff's RUF022 sees to
    names = package(framework).__all__
    assert names
    assert [name for name in names if not getattr(package(framework), name).__doc__] == []


def test_words_are_replaced_whole():
    assert mirror.translated("import torch\ntorch.sum(x, keepdim=True)  # torchvision, attn_torch") == (
        "import jax.numpy as jnp\njnp.sum(x, keepdims=True)  # torchvision, attn_torch"
    )
