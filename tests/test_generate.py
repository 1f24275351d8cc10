"""Generation: the same tokens with every cache, from both frameworks, with padding on either side."""

import re

import numpy as np
import pytest
from blocks import holding, jitted, part
from frameworks import FRAMEWORKS, both_frameworks, package, to_native, to_numpy
from models import HEADS, LAYERS, MODELS, TOKENS, C, V, model, random_model, some
from test_encoder_decoder import INPUTS, PAIRS, random_pair

from attn_torch import sampling

N = 4
PROMPT = np.random.default_rng(3).integers(0, V, (2, 4))
CACHES = (None, "dense", "sliding", "paged")
DRAW = {"temperature": 1.3, "top_k": 7, "top_p": 0.9, "seed": 5}
DECODERS = ("gpt2", "gemma3", "t5-causal", "mpt", "llama")


def run(framework, name, prompt=PROMPT, n_new=N, tree=None, **call):
    """The tokens that a model generates, in NumPy."""
    tree = random_model(name) if tree is None else tree
    call = {key: to_native(framework, x) for key, x in call.items()}
    held = model((framework, "module"), name, tree)
    return to_numpy(package(framework).generate(held, to_native(framework, prompt), n_new, **call))


def by_hand(name, prompt, n_new):
    """The likeliest tokens, by a full pass for each."""
    f, tokens = model(("torch", "function"), name, random_model(name)), prompt
    for _ in range(n_new):
        logits = to_numpy(f(to_native("torch", tokens)))
        tokens = np.concatenate((tokens, logits[:, -1:].argmax(-1)), 1)
    return tokens[:, prompt.shape[1] :]


@some(*DECODERS, among=DECODERS)
def test_every_cache_gives_the_tokens_that_a_full_pass_gives(name):
    want = by_hand(name, PROMPT, N)
    assert all((run("torch", name, cache=cache) == want).all() for cache in CACHES)


@some("gemma3", among=DECODERS)
@pytest.mark.parametrize("cache", ["dense", *[pytest.param(c, marks=pytest.mark.slow) for c in CACHES[2:]]])
@pytest.mark.parametrize("draw", [DRAW, pytest.param({}, marks=pytest.mark.slow)], ids=["drawn", "greedy"])
def test_the_frameworks_generate_the_same(name, cache, draw):
    torch, jax = (run(framework, name, cache=cache, **draw) for framework in FRAMEWORKS)
    np.testing.assert_array_equal(jax, torch)


@both_frameworks
@some("gemma3", among=DECODERS)
def test_padding_on_either_side_changes_nothing(framework, name):
    short, cache = PROMPT[:, :3], "sliding" if framework == "torch" else "dense"
    want = [run("torch", name, short), run("torch", name, PROMPT)]
    for left in (True, False):
        width = ((0, 0), (1, 0) if left else (0, 1))
        prompt = np.stack([np.pad(short, width, constant_values=9)[0], PROMPT[1]])
        mask = np.stack([np.pad(np.ones((2, 3), bool), width)[0], np.ones(4, bool)])
        got = run(framework, name, prompt, mask=mask, cache=cache)
        np.testing.assert_array_equal(got, np.stack([want[0][0], want[1][1]]))


def test_torch_draws_the_same_in_every_batch_and_cache():
    want = run("torch", "gpt2", **DRAW)
    assert all((run("torch", "gpt2", cache=cache, **DRAW) == want).all() for cache in CACHES)
    np.testing.assert_array_equal(run("torch", "gpt2", PROMPT[None], **DRAW)[0], want)
    np.testing.assert_array_equal(run("torch", "gpt2", PROMPT[0], **DRAW), want[0])
    others = [run("torch", "gpt2", **DRAW | {"seed": seed}) for seed in range(4)]
    assert any((other != want).any() for other in others)


def test_of_the_likeliest_alone_the_draw_takes_it():
    assert (run("torch", "gemma3", temperature=5.0, top_k=1, seed=0) == run("torch", "gemma3")).all()
    assert (run("torch", "gemma3", temperature=5.0, top_p=1e-9, seed=0) == run("torch", "gemma3")).all()


@both_frameworks
def test_the_coldest_draw_and_the_smallest_share_take_the_likeliest(framework):
    rows = np.random.default_rng(0).standard_normal((9, V)) * 100
    z, draw = to_native(framework, rows, "float32"), part(framework, "sampling").next_token
    for rules in ({"temperature": 1e-30}, {"temperature": 1.0, "top_p": 1e-45}):
        np.testing.assert_array_equal(to_numpy(draw(z, seed=1, **rules)), rows.argmax(-1))


@both_frameworks
def test_a_row_that_has_stopped_repeats_its_stop(framework):
    free = run("torch", "t5-causal", n_new=6, **DRAW)
    stop = [int(free[0, 1]), int(free[1, 3])]
    got = run(framework, "t5-causal", n_new=6, stop=stop, **DRAW)
    for row, was in zip(got, free, strict=True):
        end = np.flatnonzero(np.isin(was, stop))[0]
        np.testing.assert_array_equal(row, [*was[: end + 1], *[was[end]] * (5 - end)])


@both_frameworks
def test_an_encoder_decoder_generates(framework):
    tree, both = random_pair("t5"), part(framework, "encoder_decoder")
    held = holding(framework, tree, lambda: both.EncoderDecoder(**PAIRS["t5"]))
    inputs, mask = INPUTS["t5"], np.arange(4) < np.array([[4], [2]])
    start, want = PROMPT[:, :1], PROMPT[:, :1]
    reference = holding("torch", tree, lambda: package("torch").EncoderDecoder(**PAIRS["t5"]))
    for _ in range(N):
        arrays = (to_native("torch", x) for x in (inputs, want, mask))
        logits = to_numpy((lambda x, y, m: reference(x, y, mask=m))(*arrays))
        want = np.concatenate((want, logits[:, -1:].argmax(-1)), 1)
    call = {"inputs": to_native(framework, inputs), "inputs_mask": to_native(framework, mask)}
    got = package(framework).generate(held, to_native(framework, start), N, **call)
    np.testing.assert_array_equal(to_numpy(got), want[:, 1:])
    if framework == "torch":
        arrays = (to_native("torch", x) for x in (start[1], inputs[1], mask[1]))
        got = (lambda x, y, m: package("torch").generate(held, x, N, inputs=y, inputs_mask=m))(*arrays)
        np.testing.assert_array_equal(got, want[1, 1:])


BAD_INPUTS = [
    ({"inputs": None}, ValueError, "inputs: got None, wanted what the model's encoder reads"),
    ({"inputs": INPUTS["t5"] / 2}, TypeError, "inputs: got float64, wanted an array of integers"),
    ({"inputs": INPUTS["t5"] - V}, ValueError, "inputs: got -8, wanted at least 0 and below 11"),
    (
        {"inputs": INPUTS["t5"][:1]},
        ValueError,
        "inputs: got shape (1, 4), wanted (2, 4), as many rows as tokens has",
    ),
    ({"inputs_mask": np.ones((2, 3), bool)}, ValueError, "inputs_mask: got shape (2, 3), wanted (2, 4)"),
]


@both_frameworks
@pytest.mark.parametrize("change, error, text", BAD_INPUTS)
def test_an_encoder_is_given_what_it_reads(framework, change, error, text):
    both = part(framework, "encoder_decoder")
    held = holding(framework, random_pair("t5"), lambda: both.EncoderDecoder(**PAIRS["t5"]))
    call = {key: to_native(framework, x) for key, x in ({"inputs": INPUTS["t5"]} | change).items()}
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        package(framework).generate(held, to_native(framework, PROMPT[:, :1]), N, **call)


def test_jax_traces_the_model_twice_for_all_tokens_prompts_and_seeds(monkeypatch):
    """Once for the prompts, once for a step of the loop."""
    from attn_jax import generate
    from attn_jax.transformer import Transformer

    held, traced = model(("jax", "module"), "gpt2", random_model("gpt2")), []
    call = Transformer.__call__
    monkeypatch.setattr(Transformer, "__call__", lambda *x, **given: traced.append(0) or call(*x, **given))
    for seed in range(3):
        prompt = to_native("jax", (PROMPT + seed) % V)
        generate(held, prompt, 5, temperature=0.5 + seed, seed=seed)
    assert len(traced) == 2


@both_frameworks
def test_draws_have_the_probabilities_that_were_asked_for(framework):
    """A frequency is off by less than 5 standard deviations, and what has no probability never comes."""
    draws, z = part(framework, "sampling"), np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    rows = to_native(framework, np.tile(z, (4000, 1)).astype("float32"))

    def shares(**rules):
        return np.bincount(to_numpy(draws.next_token(rows, seed=1, **rules)), minlength=4) / 4000

    for rules, want in (
        ({"temperature": 1.0}, [0.4, 0.3, 0.2, 0.1]),
        ({"temperature": 0.5}, np.array([16, 9, 4, 1]) / 30),
        ({"temperature": 1.0, "top_k": 2}, [4 / 7, 3 / 7, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.6}, [4 / 7, 3 / 7, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.75, "top_k": 3}, [4 / 7, 3 / 7, 0, 0]),
    ):
        want = np.array(want)
        assert (abs(shares(**rules) - want) <= 5 * np.sqrt(want * (1 - want) / 4000)).all()


def test_a_draw_takes_the_running_sum_of_30_bits():
    import torch

    z = torch.log(torch.tensor([[0.25, 0.25, 0.0, 0.5]]).repeat(64, 1))
    at = sampling.uniform(7, 3, z)[:, 0].numpy() / 2**30
    got = sampling.next_token(z, temperature=1.0, seed=7, step=3).numpy()
    np.testing.assert_array_equal(got, np.array([0, 1, 3])[np.searchsorted([0.25, 0.5], at, side="right")])


BAD_CALLS = [
    ("gpt2", {"n_new": 0}, ValueError, "n_new: got 0, wanted an integer of at least 1"),
    ("gpt2", {"n_new": 7}, ValueError, "n_new: got 7 after 4 tokens, wanted at most 6, by n_ctx"),
    ("gpt2", {"temperature": -1.0}, ValueError, "temperature: got -1.0, wanted 0, or at least 1e-30"),
    (
        "gpt2",
        {"temperature": 1.0},
        ValueError,
        "seed: got None with a temperature above 0, wanted an integer from 0 to 2**32 - 1",
    ),
    (
        "gpt2",
        {"top_k": 3},
        ValueError,
        "top_k: got 3 with temperature=0, wanted None, or a temperature above 0",
    ),
    ("gpt2", DRAW | {"top_k": 12}, ValueError, "top_k: got 12, wanted an integer from 1 to 11"),
    ("gpt2", DRAW | {"top_p": 1.5}, ValueError, "top_p: got 1.5, wanted above 0 and at most 1"),
    ("gpt2", {"n_new": 2.0}, ValueError, "n_new: got 2.0, wanted an integer of at least 1"),
    ("gpt2", {"prompt": PROMPT[:, :0]}, ValueError, "tokens: got no positions, wanted at least one"),
    (
        "gpt2",
        DRAW | {"temperature": 1e-31},
        ValueError,
        "temperature: got 1e-31, wanted 0, or at least 1e-30",
    ),
    ("gpt2", DRAW | {"seed": -1}, ValueError, "seed: got -1, wanted at least 0 and at most 4294967295"),
    ("gpt2", {"stop": "."}, ValueError, "stop: got str, wanted integers from 0 to 10"),
    ("gpt2", {"stop": 11}, ValueError, "stop: got 11, wanted integers from 0 to 10"),
    ("gpt2", {"cache": "ring"}, ValueError, "cache: got 'ring', wanted one of None, dense, sliding, paged"),
    (
        "gpt2",
        {"mask": np.array([[1, 0, 1, 1], [0, 0, 0, 0]], bool)},
        ValueError,
        "mask: got a row without a real token, wanted at least one in each",
    ),
    ("gpt2", {"mask": np.ones((2, 3), bool)}, ValueError, "mask: got shape (2, 3), wanted (2, 4)"),
    ("gpt2", {"prompt": PROMPT + 0.5}, TypeError, "tokens: got float64, wanted an array of integers"),
    (
        "gpt2",
        {"inputs": PROMPT},
        ValueError,
        "inputs: got an array, wanted None for a model without an encoder",
    ),
    (
        "sinusoidal",
        {},
        ValueError,
        "model: got one that gives no next token alone, wanted causal=True, tokens, a head and no pool",
    ),
]


@both_frameworks
@pytest.mark.parametrize("name, change, error, text", BAD_CALLS)
def test_a_wrong_call_is_refused_in_the_same_words(framework, name, change, error, text):
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        run(framework, name, **change)


BAD_CACHES = [
    ({"caches": 2}, "caches: got int, wanted 2, one for each block"),
    ({"new_lengths": np.array([1, 1])}, "new_lengths: got an array without caches, wanted None, or a mask"),
]


@both_frameworks
@pytest.mark.parametrize("call, text", BAD_CACHES)
def test_caches_are_one_for_each_block(framework, call, text):
    f = model((framework, "module"), "gpt2", random_model("gpt2"))
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        f(to_native(framework, PROMPT), **{key: to_native(framework, x) for key, x in call.items()})


@both_frameworks
def test_caches_are_of_the_rows_and_of_one_length(framework):
    held = model((framework, "module"), "gpt2", random_model("gpt2"))

    def caches(*lengths, batch=2):
        made = part(framework, "generate").empty(held, batch, 20, "dense")
        return [x._replace(lengths=x.lengths + n) for x, n in zip(made, lengths or (0, 0), strict=True)]

    two = "tokens: got shape {} with caches, wanted ({}, T), as in these"
    kinds = "wanted one of DenseCache, SlidingCache, PagedCache"
    for given, prompt, error, text in (
        ({"caches": (None, {})}, PROMPT, TypeError, f"cache: got NoneType, {kinds}"),
        ({"caches": caches(batch=3)}, PROMPT, ValueError, two.format((2, 4), 3)),
        ({"caches": caches()}, PROMPT[0], ValueError, two.format((4,), 2)),
        (
            {"caches": caches(), "new_lengths": 3},
            PROMPT,
            TypeError,
            "new_lengths: got int, wanted an array of this framework",
        ),
        (
            {"caches": caches(4, 0)},
            PROMPT,
            ValueError,
            "caches: got lengths [0, 0] in block 1, wanted [4, 4], as in block 0",
        ),
        (
            {"caches": caches(6, 6)},
            PROMPT,
            ValueError,
            "tokens: got position 9, wanted below 9, n_ctx less position_start",
        ),
    ):
        with pytest.raises(error, match=f"^{re.escape(text)}$"):
            held(to_native(framework, prompt), **given)


@pytest.mark.parametrize("framework, kind", [("torch", "dense"), ("torch", "paged"), ("jax", "dense")])
def test_windows_beside_a_relative_bias_leave_prefill_and_steps_what_one_pass_gives(framework, kind):
    transformer, empty = part(framework, "transformer").Transformer, part(framework, "generate").empty
    keywords = MODELS["t5-causal"] | {"layers": ({"window": 2}, {})}
    held = holding(framework, random_model("t5-causal"), lambda: transformer(V, C, HEADS, LAYERS, **keywords))
    f = jitted(framework, lambda *prompt, **call: held(*prompt, **call))
    tokens = to_native(framework, TOKENS)
    want, caches, ys = to_numpy(f(tokens)), empty(held, 2, 8, kind), []
    for start, end in ((0, 3), (3, 4), (4, 5)):
        y, caches = f(tokens[:, start:end], caches=caches)
        ys.append(to_numpy(y))
    assert abs(np.concatenate(ys, 1) - want).max() < 1e-12 * abs(want).max()
    text = "caches: got a SlidingCache with a relative_bias, wanted DenseCache or PagedCache"
    with pytest.raises(ValueError, match=f"^{text}"):
        f(tokens, caches=empty(held, 2, 8, "sliding"))
    with pytest.raises(ValueError, match=f"^{text}"):
        package(framework).generate(held, tokens, 2, cache="sliding")


@both_frameworks
def test_a_call_with_caches_returns_them_and_its_last_logits(framework):
    held = model((framework, "module"), "gpt2", random_model("gpt2"))
    f = jitted(framework, lambda *prompt, **call: held(*prompt, **call))
    whole, dtype = to_numpy(f(to_native(framework, PROMPT))), held.wte.dtype
    caches = [package(framework).dense_cache(2, 3, 6, C // 3, dtype=dtype) for _ in range(2)]
    _, caches = f(to_native(framework, PROMPT[:, :3]), caches=caches)
    last = to_native(framework, np.array([0, 0]))
    logits, caches = f(to_native(framework, PROMPT[:, 3:]), caches=caches, logits_at=last)
    assert abs(to_numpy(logits) - whole[:, -1]).max() < 1e-12 * abs(whole).max()
    np.testing.assert_array_equal(to_numpy(caches[1].lengths), [4, 4])
