"""Transformers of every kind: four routes to one value, gradients, padding, hidden states, wrong calls."""

import re

import numpy as np
import pytest
from blocks import drawn, holding, leaves, native_tree, part, part_by, tree_part_by
from frameworks import FRAMEWORKS, both_frameworks, to_native, to_numpy
from models import (
    HEADS,
    LAYERS,
    MODELS,
    TOKENS,
    C,
    T,
    V,
    every_model,
    inputs_of,
    model,
    random_model,
    run,
    some,
)

HIDDEN = (("return_hidden", True),)


def flat(x):
    return [leaf for part in x for leaf in flat(part)] if isinstance(x, tuple) else [x]


@some("bert", "gemma3", "t5-causal", "vit", "whisper-encoder")
def test_the_frameworks_agree_in_all_that_is_returned(name):
    tree = random_model(name)
    torch, jax = (flat(run((f, "function"), name, tree, static=HIDDEN)) for f in FRAMEWORKS)
    assert len(torch) == 2 + LAYERS + ("pool" in MODELS[name])
    assert max(map(part_by, jax, torch)) < 1e-12


@both_frameworks
@some("bert", among=("vit", "whisper-encoder", "t5-causal"))
def test_the_module_is_the_function(framework, name):
    """In torch its linear maps are torch's own, which add the bias in the product."""
    tree = random_model(name)
    function, module = (flat(run((framework, style), name, tree)) for style in ("function", "module"))
    assert max(map(part_by, module, function)) <= (0 if framework == "jax" else 1e-13)


@pytest.mark.parametrize("source, target", [FRAMEWORKS, FRAMEWORKS[::-1]])
@every_model
def test_a_tree_of_any_model_travels(source, target, name):
    tree = random_model(name)
    for framework in (source, target):
        written = leaves(part(framework, "params").to_tree(model((framework, "module"), name, tree)))
        assert list(written) == list(leaves(tree))
        assert all((written[path] == x).all() for path, x in leaves(tree).items())


@some("t5-causal", among=("bert", "vit", "gemma3"))
def test_the_frameworks_agree_in_every_gradient(name):
    import jax

    tree, f = random_model(name), part("jax", "transformer").transformer
    out = flat(run(("torch", "function"), name, tree))
    douts = [drawn(*y.shape, seed=2) for y in out]

    def loss(y, douts):
        return sum(
            (y * dout).sum() for y, dout in zip(y if isinstance(y, tuple) else (y,), douts, strict=True)
        )

    params = native_tree("torch", tree)
    for p in leaves(params).values():
        p.requires_grad_()
    y = part("torch", "transformer").transformer(
        params, to_native("torch", inputs_of(name)), HEADS, **MODELS[name]
    )
    loss(y, [to_native("torch", x) for x in douts]).backward()
    want = {path: to_numpy(p.grad) for path, p in leaves(params).items()}
    tokens = to_native("jax", inputs_of(name))
    got = jax.jit(jax.grad(lambda params: loss(f(params, tokens, HEADS, **MODELS[name]), douts)))(
        native_tree("jax", tree)
    )
    assert tree_part_by(to_numpy(got), want) < 1e-12


@both_frameworks
@some("gpt2", "bert", among=("gemma3", "t5", "roberta", "mpt", "clip-text"))
def test_padding_on_either_side_changes_nothing_for_real_tokens(framework, name):
    tree, n = random_model(name), 3
    alone = flat(run((framework, "function"), name, tree, TOKENS[:, :n]))
    f = model((framework, "function"), name, tree)
    for real in (slice(0, n), slice(T - n, T)):
        tokens, mask = np.full((2, T), 7), np.zeros((2, T), bool)
        tokens[:, real], mask[:, real] = TOKENS[:, :n], True
        call = to_native(framework, mask)
        padded = flat(to_numpy(f(to_native(framework, tokens), mask=call)))
        assert part_by(padded[0][:, real], alone[0]) < 1e-12
        assert all(part_by(got, want) < 1e-12 for got, want in zip(padded[1:], alone[1:], strict=True))


@both_frameworks
def test_hidden_states_begin_with_the_embeddings_and_end_with_what_the_head_reads(framework):
    tree = random_model("gpt2")
    logits, hidden = run((framework, "function"), "gpt2", tree, static=HIDDEN)
    np.testing.assert_array_equal(hidden[0], tree["wte"][TOKENS] + tree["wpe"][:T])
    assert part_by(hidden[-1] @ tree["wte"].T, logits) < 1e-13
    gain, bias = tree["ln_f"]
    assert abs(((hidden[-1] - bias) / gain).mean(-1)).max() < 1e-12


@both_frameworks
def test_a_patch_is_read_row_by_row_and_a_stem_is_a_convolution(framework):
    tree, images = random_model("vit"), inputs_of("vit")
    _, _, hidden = run((framework, "function"), "vit", tree, static=HIDDEN)
    patch = images[:, 2:4, 4:6].reshape(2, -1) @ tree["w_patch"] + tree["b_patch"]
    assert part_by(hidden[0][:, -1], patch + tree["wpe"][-1]) < 1e-13
    np.testing.assert_array_equal(hidden[0][:, 0], (tree["cls"] + tree["wpe"][0])[None].repeat(2, 0))


def test_the_stem_is_torchs_convolutions():
    import torch
    from torch.nn.functional import conv1d, gelu

    tree, sound = random_model("whisper-encoder"), inputs_of("whisper-encoder")
    _, hidden = run(("torch", "function"), "whisper-encoder", tree, static=HIDDEN)
    x = torch.from_numpy(sound).mT
    for n, stride in ((1, 1), (2, 2)):
        w = torch.from_numpy(tree[f"w_stem{n}"].reshape(3, -1, C)).permute(2, 1, 0)
        x = gelu(conv1d(x, w, torch.from_numpy(tree[f"b_stem{n}"]), stride=stride, padding=1))
    assert part_by(hidden[0], x.mT.numpy() + tree["wpe"][:T]) < 1e-13


@both_frameworks
def test_dropout_is_the_same_in_every_style_and_needs_a_seed(framework):
    drops, transformer = {"embed_dropout": 0.3, "resid_dropout": 0.2}, part(framework, "transformer")
    tree, tokens = random_model("gpt2"), to_native(framework, TOKENS)
    keywords = MODELS["gpt2"] | drops
    params = native_tree(framework, tree)
    module = holding(framework, tree, lambda: transformer.Transformer(V, C, HEADS, LAYERS, **keywords))
    plain = to_numpy(transformer.transformer(params, tokens, HEADS, **MODELS["gpt2"]))
    np.testing.assert_array_equal(to_numpy(transformer.transformer(params, tokens, HEADS, **keywords)), plain)
    function = to_numpy(transformer.transformer(params, tokens, HEADS, dropout_seed=5, **keywords))
    assert part_by(to_numpy(module(tokens, dropout_seed=5)), function) < 1e-13
    assert part_by(function, plain) > 0.1


BAD_KEYWORDS = [
    ({"head": "both"}, ValueError, "head: got 'both', wanted one of tied, free, none"),
    ({"embedding_positions": "learned"}, ValueError, "n_ctx: got None, wanted an integer of at least 1"),
    ({"n_ctx": 4}, ValueError, "n_ctx: got 4, wanted None, or embedding_positions='learned'"),
    ({"position_start": 2}, ValueError, "position_start: got 2, wanted 0, or embedding_positions='learned'"),
    ({"n_type": -1}, ValueError, "n_type: got -1, wanted an integer of at least 0"),
    (
        {"layers": {"window": 2}},
        TypeError,
        "layers: got dict, wanted a tuple of mappings of a block's keywords",
    ),
    ({"layers": ({},) * 3}, ValueError, "layers: got 3, wanted at most n_layer = 2"),
    ({"pooler": True}, ValueError, "pooler: got True with pool=None, wanted pool 'first', 'last' or 'mean'"),
    (
        {"projection": 4},
        ValueError,
        "projection: got 4 with pool=None, wanted pool 'first', 'last' or 'mean'",
    ),
    ({"pool": "max"}, ValueError, "pool: got 'max', wanted one of None, first, last, mean"),
    (
        {"head": "none", "logit_softcap": 3.0},
        ValueError,
        "logit_softcap: got 3.0 with head='none', wanted 'tied' or 'free'",
    ),
    ({"stem": 7}, ValueError, "head: got 'tied' with a stem, wanted 'free' or 'none'"),
    (
        {"patch": {"size": 2, "channels": 3}},
        ValueError,
        "patch: got size, channels, wanted size, channels, image, and possibly bias",
    ),
    (
        {"patch": {"size": 4, "channels": 3, "image": 6}, "head": "none"},
        ValueError,
        "patch['image']: got 6, wanted a multiple of size = 4, or two",
    ),
    (
        {"relative_bias": True},
        TypeError,
        "relative_bias: got bool, wanted a mapping with n_bucket, max_distance",
    ),
    (
        {"relative_bias": {"n_bucket": 6, "max_distance": 9}},
        ValueError,
        "relative_bias['n_bucket']: got 6, wanted a multiple of 4",
    ),
    (
        {"head_transform": "swiglu"},
        ValueError,
        "head_transform: got 'swiglu', wanted one of gelu, gelu_tanh, gelu_sigmoid, relu, silu",
    ),
    ({"windw": 2}, TypeError, "unexpected keyword argument 'windw'"),
    ({"layers": ({"norm": "batch"},)}, ValueError, "norm: got 'batch', wanted one of layer, rms"),
]


@both_frameworks
@pytest.mark.parametrize("keywords, error, text", BAD_KEYWORDS)
def test_a_wrong_keyword_is_refused_in_the_same_words(framework, keywords, error, text):
    transformer, key = part(framework, "transformer"), 0
    if framework == "jax":
        import jax

        key = jax.random.key(0)
    with pytest.raises(error, match=re.escape(text)):
        transformer.Transformer(V, C, HEADS, LAYERS, **keywords)
    with pytest.raises(error, match=re.escape(text)):
        transformer.init_transformer(key, V, C, HEADS, LAYERS, **keywords)


BAD_CALLS = [
    ("gpt2", {"tokens": np.ones((2, T))}, TypeError, "tokens: got float64, wanted an array of integers"),
    ("gpt2", {"tokens": TOKENS + 2}, ValueError, "tokens: got 11, wanted at least 0 and below 11"),
    ("gpt2", {"tokens": TOKENS - 11}, ValueError, "tokens: got -11, wanted at least 0 and below 11"),
    (
        "gpt2",
        {"tokens": np.ones((2, 10), int)},
        ValueError,
        "tokens: got 10 positions, wanted at most 9, n_ctx less position_start",
    ),
    (
        "roberta",
        {"tokens": np.ones((2, 8), int)},
        ValueError,
        "tokens: got 8 positions, wanted at most 7, n_ctx less position_start",
    ),
    (
        "gpt2",
        {"position_ids": np.arange(T) + 5},
        ValueError,
        "position_ids: got 9, wanted at least 0 and below 9",
    ),
    (
        "gpt2",
        {"mask": np.ones((2, T))},
        TypeError,
        "mask: got float64, wanted an array of bool, True = a real token",
    ),
    ("gpt2", {"mask": np.ones(T, bool)}, ValueError, "mask: got shape (5,), wanted (2, 5)"),
    ("gpt2", {"logits_at": 2}, TypeError, "logits_at: got int, wanted integers"),
    ("gpt2", {"logits_at": np.ones(2)}, TypeError, "logits_at: got float64, wanted integers"),
    (
        "gpt2",
        {"logits_at": np.array([1])},
        ValueError,
        "logits_at: got shape (1,), wanted (2,), a place in each row",
    ),
    ("gpt2", {"logits_at": np.array([1, 5])}, ValueError, "logits_at: got 5, wanted at least 0 and below 5"),
    (
        "gpt2",
        {"logits_at": np.array([-1, 1])},
        ValueError,
        "logits_at: got -1, wanted at least 0 and below 5",
    ),
    ("gpt2", {"type_ids": TOKENS}, ValueError, "type_ids: got an array with n_type=0, wanted None"),
    ("bert", {"type_ids": TOKENS}, ValueError, "type_ids: got 9, wanted at least 0 and below 2"),
    (
        "gpt2",
        {"context": np.ones((2, 3, C))},
        ValueError,
        "context: got an array with cross=False, wanted None",
    ),
    (
        "vit",
        {"tokens": np.ones((2, 6, 4, 3))},
        ValueError,
        "tokens: got shape (2, 6, 4, 3), wanted images (..., 4, 6, 3)",
    ),
    (
        "whisper-encoder",
        {"tokens": np.ones((2, 7, 5))},
        ValueError,
        "tokens: got shape (2, 7, 5), wanted frames (..., T, 7)",
    ),
]


@both_frameworks
@pytest.mark.parametrize("name, change, error, text", BAD_CALLS)
def test_a_wrong_call_is_refused_in_the_same_words(framework, name, change, error, text):
    call = {"tokens": inputs_of(name)} | change
    f = model((framework, "module"), name, random_model(name))
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        f(**{key: to_native(framework, x) for key, x in call.items()})


@both_frameworks
def test_parameters_that_the_keywords_do_not_mean_are_refused(framework):
    params, transformer = (
        native_tree(framework, random_model("gpt2")),
        part(framework, "transformer").transformer,
    )
    tokens = to_native(framework, TOKENS)
    with pytest.raises(ValueError, match="params: wpe: unexpected"):
        transformer(params, tokens, HEADS, activation="gelu_tanh")
    with pytest.raises(ValueError, match="params: b_head: missing"):
        transformer(params, tokens, HEADS, head_bias=True, **MODELS["gpt2"])
    with pytest.raises(ValueError, match="params: blocks: missing"):
        transformer({"wte": params["wte"]}, tokens, HEADS)


@both_frameworks
def test_embeddings_of_two_dtypes_are_not_added(framework):
    tree, transformer = random_model("gpt2"), part(framework, "transformer").transformer
    params = native_tree(framework, tree) | {"wpe": to_native(framework, tree["wpe"], "float32")}
    with pytest.raises(TypeError, match=r"^params: wpe: got dtype float32, wanted float64, that of wte$"):
        transformer(params, to_native(framework, TOKENS), HEADS, **MODELS["gpt2"])


@both_frameworks
def test_sines_go_with_cosines(framework):
    text = "n_embd: got 3, wanted an even number, for sines and cosines"
    with pytest.raises(ValueError, match=text):
        part(framework, "transformer").Transformer(V, 3, 1, 1, embedding_positions="sinusoidal")
    with pytest.raises(ValueError, match=text):
        part(framework, "positions").sinusoidal(to_native(framework, np.arange(2)), 3)


def test_jax_marks_with_nan_what_it_cannot_refuse():
    tree = random_model("gpt2")
    logits = run(("jax", "function"), "gpt2", tree, np.where(TOKENS[0, 2] == TOKENS, V, TOKENS))
    assert np.isnan(logits[0, 2:]).all()
