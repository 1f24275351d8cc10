"""parity.pytest in somebody's test-suite, and in this one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import parity.pytest

ROOT = Path(__file__).resolve().parents[2]
SUITE = """
import jax.numpy as jnp
import torch
import parity.pytest
from parity import subject


def forgets_causal(q, k, v, *, causal=False):
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


@subject(framework="jax", claims={"float32": "float32", "float16": "float16-flax"})
def in_jax(q, k, v):
    k, v = (jnp.repeat(x, q.shape[-3] // k.shape[-3], -3) for x in (k, v))
    s = jnp.einsum("...qd,...kd->...qk", q, k) * q.shape[-1] ** -0.5
    w = jnp.exp(s - s.max(-1, keepdims=True))
    return jnp.einsum("...qk,...kd->...qd", w / w.sum(-1, keepdims=True), v)


@parity.pytest.parametrize(forgets_causal, cases=["normal", "causal", "softcap"])
def test_forgets_causal(check):
    check()


@parity.pytest.parametrize(in_jax, cases=["normal", "decode"], dtypes=["float32", "float16"])
def test_in_jax(check):
    check()
"""


def attend(q, k, v, *, causal=False, scale=None):
    grouped = q.ndim > 2 and q.shape[-3] != k.shape[-3]
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped
    )


@parity.pytest.parametrize(
    attend, cases=["normal", "big", "causal", "grouped"], dtypes=["float32", "float64"]
)
def test_a_right_function_passes(check):
    assert check()["status"] == "passed"


def test_a_wrong_function_fails_only_where_it_is_wrong(tmp_path):
    (tmp_path / "test_mine.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_mine.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "1 failed" in ran.stdout
    assert "test_forgets_causal[causal-float32]" in ran.stdout
    assert "causal-float32 failed\nout: " in ran.stdout
    assert "of the bound at (" in ran.stdout
    assert "has no softcap" in ran.stdout
    assert "4 failed" not in ran.stdout


def test_wrong_arguments_are_refused_at_once():
    with pytest.raises(KeyError):
        parity.pytest.parametrize(attend, cases=["nosuch"])
    with pytest.raises(ValueError, match="budget must be one of"):
        parity.pytest.parametrize(attend, budget="tiny")
