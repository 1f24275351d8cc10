"""An encoder and a decoder together: four routes to one value, gradients, padding, wrong calls."""

import copy
import re

import numpy as np
import pytest
from blocks import every_route, holding, jitted, leaves, mapped, native_tree, part, part_by, tree_part_by
from families import DIALECTS
from frameworks import both_frameworks, to_native, to_numpy
from models import HEADS, LEARNED, SOUND, TOKENS, C, V

SIZES = {"n_vocab": V, "n_embd": C, "n_head": HEADS, "n_layer": 1}
T5 = SIZES | DIALECTS["t5-decoder"] | {"relative_bias": {"n_bucket": 8, "max_distance": 6}}
PAIRS = {
    "t5": {
        "encoder": T5 | {"cross": False},
        "decoder": T5 | {"head_scale": C**-0.5},
        "share_embedding": True,
    },
    "whisper": {
        "encoder": SIZES | LEARNED | {"n_vocab": None, "stem": 7},
        "decoder": SIZES | LEARNED | {"n_layer": 2},
    },
}
INPUTS = {"t5": np.random.default_rng(6).integers(0, V, (2, 4)), "whisper": SOUND}


def random_pair(name, seed=0):
    """Parameters in float64, none of them 0 or 1."""
    rng = np.random.default_rng(seed)
    tree = to_numpy(part("torch", "encoder_decoder").init_encoder_decoder(0, **PAIRS[name]))
    return mapped(lambda x: rng.standard_normal(x.shape) / (np.sqrt(C) if x.ndim == 2 else 1), tree)


def run(route, name, tree, inputs=None, **call):
    framework, style = route
    both = part(framework, "encoder_decoder")
    arrays = (to_native(framework, INPUTS[name] if inputs is None else inputs), to_native(framework, TOKENS))
    call = {key: to_native(framework, x) for key, x in call.items()}
    if style == "module":
        model = holding(framework, tree, lambda: both.EncoderDecoder(**PAIRS[name]))
        return to_numpy(jitted(framework, lambda *x: model(*x, **call))(*arrays))
    params = native_tree(framework, tree)
    return to_numpy(
        jitted(framework, lambda *x: both.encoder_decoder(params, *x, **PAIRS[name], **call))(*arrays)
    )


@every_route
@pytest.mark.parametrize("name", ["t5", pytest.param("whisper", marks=pytest.mark.slow)])
def test_every_route_gives_the_same(route, name):
    tree = random_pair(name)
    want = run(("torch", "function"), name, tree, return_hidden=True)
    got = run(route, name, tree, return_hidden=True)
    n_layer = PAIRS[name]["decoder"]["n_layer"]
    assert [len(x) for x in got[1:]] == [n_layer + 1, 2]
    pairs = zip((got[0], *got[1], *got[2]), (want[0], *want[1], *want[2]), strict=True)
    assert max(part_by(*pair) for pair in pairs) < 1e-12


@both_frameworks
def test_padding_of_the_inputs_changes_nothing(framework):
    tree, inputs = random_pair("t5"), INPUTS["t5"]
    want = run((framework, "function"), "t5", tree)
    for before, after in ((1, 0), (0, 1)):
        width = ((0, 0), (before, after))
        mask = np.pad(np.ones_like(inputs, bool), width)
        padded = np.pad(inputs, width, constant_values=3)
        assert part_by(run((framework, "function"), "t5", tree, padded, mask=mask), want) < 1e-12


@both_frameworks
@pytest.mark.parametrize("name", PAIRS)
def test_a_tree_travels_and_a_shared_embedding_is_in_one_place(framework, name):
    tree, both = random_pair(name), part(framework, "encoder_decoder")
    model = holding(framework, tree, lambda: both.EncoderDecoder(**PAIRS[name]))
    written = leaves(part(framework, "params").to_tree(model))
    assert list(written) == list(leaves(tree))
    assert all((written[path] == x).all() for path, x in leaves(tree).items())
    assert ("decoder/wte" in written) == (name == "whisper")
    if name == "t5":
        assert model.decoder.wte is model.encoder.wte


def test_torch_keeps_a_shared_embedding_one_whatever_makes_its_parameters_anew():
    import torch
    from torch import nn

    tree, both = random_pair("t5"), part("torch", "encoder_decoder")
    want = run(("torch", "module"), "t5", tree)
    held = holding("torch", tree, lambda: both.EncoderDecoder(**PAIRS["t5"]))

    def abstract():
        with torch.device("meta"):
            return both.EncoderDecoder(**PAIRS["t5"]).to(torch.float64)

    emptied = abstract().to_empty(device="cpu")
    part("torch", "params").from_tree(emptied, tree)
    assigned, above = abstract(), nn.ModuleList([abstract()])
    assigned.load_state_dict(held.state_dict(), assign=True)
    above.load_state_dict(nn.ModuleList([held]).state_dict(), assign=True)
    for model in (emptied, assigned, above[0], copy.deepcopy(held)):
        assert model.decoder.wte is model.encoder.wte
        np.testing.assert_array_equal(
            to_numpy(model(*(torch.from_numpy(x) for x in (INPUTS["t5"], TOKENS)))), want
        )


@pytest.mark.slow
def test_the_frameworks_agree_in_every_gradient():
    import jax

    tree, trees = random_pair("t5"), {}
    params = native_tree("torch", tree)
    for p in leaves(params).values():
        p.requires_grad_()
    arrays = [to_native("torch", x) for x in (INPUTS["t5"], TOKENS)]
    y = part("torch", "encoder_decoder").encoder_decoder(params, *arrays, **PAIRS["t5"])
    (y * y).sum().backward()
    trees["torch"] = {path: to_numpy(p.grad) for path, p in leaves(params).items()}
    arrays = [to_native("jax", x) for x in (INPUTS["t5"], TOKENS)]

    @jax.jit
    @jax.grad
    def gradient(params):
        return (part("jax", "encoder_decoder").encoder_decoder(params, *arrays, **PAIRS["t5"]) ** 2).sum()

    trees["jax"] = to_numpy(gradient(native_tree("jax", tree)))
    assert tree_part_by(trees["jax"], trees["torch"]) < 1e-12


BAD_PAIRS = [
    ({"encoder": None}, TypeError, "encoder: got NoneType, wanted a mapping of a transformer's keywords"),
    (
        {"encoder": {"n_vocab": 3, "n_embd": C}},
        ValueError,
        "encoder: got no n_head, n_layer, wanted n_vocab, n_embd, n_head, n_layer",
    ),
    (
        {"encoder": SIZES | {"head": "tied"}},
        ValueError,
        "encoder: got a head or a pool, wanted head='none' and pool=None",
    ),
    (
        {"decoder": SIZES | {"cross": False}},
        ValueError,
        "decoder: got no block with cross=True, wanted at least one",
    ),
    ({"decoder": SIZES | {"n_embd": 6}}, ValueError, "decoder: got n_embd = 6, wanted 12, the encoder's"),
    (
        {"decoder": SIZES | {"n_vocab": 9}, "share_embedding": True},
        ValueError,
        "share_embedding: got True, wanted False, or one n_vocab for both",
    ),
    ({"share_embedding": 1}, TypeError, "share_embedding: got int, wanted True or False"),
]


@both_frameworks
@pytest.mark.parametrize("change, error, text", BAD_PAIRS)
def test_a_wrong_pair_is_refused_in_the_same_words(framework, change, error, text):
    keywords, both = {"encoder": SIZES, "decoder": SIZES} | change, part(framework, "encoder_decoder")
    for make in (both.EncoderDecoder, lambda **given: both.init_encoder_decoder(None, **given)):
        with pytest.raises(error, match=f"^{re.escape(text)}$"):
            make(**keywords)


@both_frameworks
def test_inputs_have_as_many_rows_as_tokens(framework):
    text = "context: got shape (1, 4, 12), wanted (2, 4, 12), as tokens has rows"
    with pytest.raises(ValueError, match=re.escape(text)):
        run((framework, "function"), "t5", random_pair("t5"), INPUTS["t5"][:1])


@both_frameworks
def test_parameters_that_the_keywords_do_not_mean_are_refused(framework):
    tree, both = random_pair("t5"), part(framework, "encoder_decoder").encoder_decoder
    params, pair = native_tree(framework, tree), PAIRS["t5"]
    arrays = [to_native(framework, x) for x in (INPUTS["t5"], TOKENS)]
    for given, keywords, text in (
        ({"encoder": params["encoder"]}, pair, "params: decoder: missing"),
        (params, pair | {"share_embedding": False}, "params: wte: missing"),
        (
            params,
            pair | {"decoder": pair["decoder"] | {"n_layer": 2}},
            "params: blocks: got 1, wanted n_layer = 2",
        ),
        (params | {"decoder": params["encoder"]}, pair, "params: wte: unexpected"),
    ):
        with pytest.raises(ValueError, match=text):
            both(given, *arrays, **keywords)
