"""Plug-ins as users write them, right and wrong, for the tests of the runner. Loaded by path."""

import os
import time

import torch

from parity import subject


def attend(q, k, v, *, causal=False, scale=None, return_lse=False):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    k, v = (x.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for x in (k, v))
    scores = q @ k.mT * scale
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=bool).triu(1), float("-inf"))
    out = torch.softmax(scores, -1) @ v
    return (out, torch.logsumexp(scores, -1)) if return_lse else out


@subject(
    framework="torch", claims={"float32": "float32"}, supports=lambda case: case.name != "big" or "too big"
)
def picky(q, k, v):
    return attend(q, k, v)


@subject(framework="torch", claims={"bfloat16": "bfloat16-direct"})
def claims_too_much(q, k, v):
    s = q @ k.mT * q.shape[-1] ** -0.5
    return torch.softmax(s, -1) @ v


def raises(q, k, v):
    raise ValueError("these heads are not for me")


def hangs(q, k, v):
    time.sleep(600)


def gets_stuck(q, k, v):
    """At the first case of unequal lengths it says that it has come there, and goes no further."""
    if q.shape[-2] != k.shape[-2]:
        open(os.environ["PARITY_TEST_MARKER"], "w").close()
        time.sleep(600)
    return attend(q, k, v)


def dies(q, k, v):
    os._exit(7)


def hangs_once(q, k, v):
    """On the first case of a process it hangs, on any other process's it answers: a restart heals it."""
    marker = os.environ["PARITY_TEST_MARKER"]
    if not os.path.exists(marker):
        open(marker, "w").close()
        time.sleep(600)
    return attend(q, k, v)


@subject(framework="numpy")
def in_numpy(q, k, v):
    import numpy as np

    s = q @ k.mT * np.asarray(q.shape[-1] ** -0.5, q.dtype)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v


def window_off_by_one(q, k, v, *, window=None):
    """One key too few on the left."""
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    left, right = (None, None) if window is None else window
    visible = (j > i - left if left is not None else j > -1) & (
        j <= i + right if right is not None else j > -1
    )
    scores = (q.float() @ k.float().mT) * q.shape[-1] ** -0.5
    weights = torch.softmax(scores.masked_fill(~visible, float("-inf")), -1)
    return (weights @ v.float()).to(q.dtype)
