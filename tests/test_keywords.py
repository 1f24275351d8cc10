"""Wrong keywords of the block, keywords that do not fit each other or the parameters, and wrong calls."""

import re

import numpy as np
import pytest
from blocks import drawn, native_tree, part
from families import HEADS, C, T, random_tree
from frameworks import both_frameworks, to_native

X = drawn(2, T, C)

BAD_KEYWORDS = [
    ({"norm": "batch"}, ValueError, "norm: got 'batch', wanted one of layer, rms"),
    (
        {"norm_placement": "mid"},
        ValueError,
        "norm_placement: got 'mid', wanted one of pre, post, output, sandwich",
    ),
    (
        {"activation": "elu"},
        ValueError,
        "activation: got 'elu', wanted one of gelu, gelu_tanh, gelu_sigmoid, relu, silu, swiglu, geglu, "
        "geglu_tanh",
    ),
    ({"positions": "learned"}, ValueError, "positions: got 'learned', wanted one of none, rotary, alibi"),
    ({"qk_norm": True}, ValueError, "qk_norm: got True, wanted one of none, head, all"),
    (
        {"bias": ("k",)},
        ValueError,
        "bias: got ('k',), wanted True, False, or some of norm, qkv, out, fc, proj",
    ),
    ({"n_kv_head": 2}, ValueError, "n_kv_head: got 2, wanted a divisor of n_head = 3"),
    ({"head_dim": 0}, ValueError, "head_dim: got 0, wanted an integer above 0"),
    ({"hidden": 2.5}, ValueError, "hidden: got 2.5, wanted an integer above 0"),
    ({"n_embd": 0}, ValueError, "n_embd: got 0, wanted an integer above 0"),
    ({"n_embd": -3}, ValueError, "n_embd: got -3, wanted an integer above 0"),
    ({"n_embd": 12.0}, ValueError, "n_embd: got 12.0, wanted an integer above 0"),
    ({"n_embd": "12"}, ValueError, "n_embd: got '12', wanted an integer above 0"),
    ({"n_embd": True}, ValueError, "n_embd: got True, wanted an integer above 0"),
    ({"norm_offset": 1.0}, ValueError, "norm_offset: got 1.0 with norm='layer', wanted 0, or norm='rms'"),
    (
        {"parallel": True, "norm_placement": "post"},
        ValueError,
        "norm_placement: got 'post' with parallel=True, wanted pre, output or sandwich",
    ),
    ({"parallel": True, "cross": True}, ValueError, "parallel: got True with cross=True, wanted False"),
    ({"causal": 1}, TypeError, "causal: got int, wanted True or False"),
    ({"rotary_dim": 2}, ValueError, "rotary_dim: got 2, wanted None, or positions='rotary'"),
    (
        {"positions": "rotary", "rotary_dim": 3},
        ValueError,
        "rotary_dim: got 3, wanted an even number from 2 to the head size, 4",
    ),
    (
        {"positions": "rotary", "rotary_scaling": {"rope_type": "ntk"}},
        ValueError,
        "rotary_scaling['rope_type']: got 'ntk', wanted one of linear, llama3, yarn",
    ),
    (
        {"positions": "rotary", "rotary_scaling": {"rope_type": "linear", "low_freq_factor": 1}},
        ValueError,
        "rotary_scaling: got low_freq_factor, wanted factor",
    ),
    ({"window": -1}, ValueError, "window: got -1, wanted nothing below 0; None leaves a side open"),
    ({"softcap": 0.0}, ValueError, "softcap: got 0.0, wanted a finite number above 0, of at most 1e+30"),
    ({"attn_dropout": 1.0}, ValueError, "attn_dropout: got 1.0, wanted at least 0 and below 1"),
    ({"resid_dropout": -0.5}, ValueError, "resid_dropout: got -0.5, wanted at least 0 and below 1"),
]


@both_frameworks
@pytest.mark.parametrize("keywords, error, text", BAD_KEYWORDS)
def test_a_wrong_keyword_is_refused_in_the_same_words(framework, keywords, error, text):
    block, given = part(framework, "block"), {"n_embd": C, "n_head": HEADS, **keywords}
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        block.Block(**given)
    key = 0
    if framework == "jax":
        import jax

        key = jax.random.key(0)
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        block.init_block(key, **given)


@both_frameworks
@pytest.mark.parametrize("n_embd", [0, 2.0])
def test_attention_and_mlp_alone_refuse_such_a_width_too(framework, n_embd):
    text = f"^n_embd: got {n_embd}, wanted an integer above 0$"
    with pytest.raises(ValueError, match=text):
        part(framework, "multihead").MultiHeadAttention(n_embd, 1)
    with pytest.raises(ValueError, match=text):
        part(framework, "mlp").MLP(n_embd)


@both_frameworks
@pytest.mark.parametrize(
    "keywords, text",
    [
        ({"causal": True}, "causal: got True with cross=True, wanted False"),
        ({"window": 3}, "window: got 3 with cross=True, wanted None"),
        ({"positions": "rotary"}, "positions: got 'rotary' with cross=True, wanted 'none'"),
        ({"positions": "alibi"}, "positions: got 'alibi' with cross=True, wanted 'none'"),
    ],
)
def test_cross_attention_knows_no_distances(framework, keywords, text):
    multihead, tree = (
        part(framework, "multihead"),
        native_tree(framework, random_tree("whisper")["cross_attn"]),
    )
    x = to_native(framework, X)
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        multihead.MultiHeadAttention(C, HEADS, cross=True, **keywords)
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        multihead.multi_head_attention(tree, x, HEADS, x, cross=True, **keywords)


@both_frameworks
def test_a_keyword_that_is_not_there_is_refused(framework):
    block, params, x = part(framework, "block"), native_tree(framework, random_tree("gpt2")), X
    with pytest.raises(TypeError, match="unexpected keyword argument 'windw'"):
        block.Block(C, HEADS, windw=3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'windw'"):
        block.block(params, to_native(framework, x), HEADS, windw=3)


BAD_CALLS = [  # the keywords, what the tree is of, what a call has besides -> text
    ({"activation": "swiglu"}, "gpt2", {}, "params: w_gate: missing; b_gate: missing"),
    ({"bias": ("norm", "out", "fc", "proj")}, "gpt2", {}, "params: b_qkv: unexpected"),
    (
        {"n_kv_head": 1},
        "gpt2",
        {},
        "params: w_qkv: got shape (12, 36), wanted (12, 20); b_qkv: got shape (36,), wanted (20,)",
    ),
    (
        {"norm": "rms"},
        "gpt2",
        {},
        "params: ln1: got shape ((12,), (12,)), wanted ((12,),); "
        "ln2: got shape ((12,), (12,)), wanted ((12,),)",
    ),
    ({}, "gpt2", {"context": drawn(2, 4, C)}, "context: got an array with cross=False, wanted None"),
    ({"cross": True}, "whisper", {}, "context: got None with cross=True, wanted an array (..., Tk, C)"),
    (
        {"cross": True},
        "whisper",
        {"context": drawn(2, 4, 7)},
        "context: got shape (2, 4, 7), wanted (..., T, 12)",
    ),
    *(
        (
            {"positions": positions},
            "gpt2",
            {"position_ids": np.arange(4)},
            "position_ids: got shape (4,), wanted (5,) or (2, 5)",
        )
        for positions in ("rotary", "none")
    ),
    (
        {},
        "gpt2",
        {"context_mask": np.ones((5, 4), bool)},
        "context_mask: got an array with cross=False, wanted None",
    ),
    ({}, "gpt2", {"context_lengths": 4}, "context_lengths: got 4 with cross=False, wanted None"),
    (
        {},
        "gpt2",
        {"return_lse": True},
        "return_lse: got True, wanted False, or scaled_dot_product_attention",
    ),
    (
        {},
        "gpt2",
        {"return_weights": True},
        "return_weights: got True, wanted False, or scaled_dot_product_attention",
    ),
    (
        {"attn_dropout": 0.5},
        "gpt2",
        {"dropout_seed": -1},
        "dropout_seed: got -1, wanted at least 0 and at most 4294967295",
    ),
]


@both_frameworks
@pytest.mark.parametrize("keywords, family, call, text", BAD_CALLS)
def test_a_wrong_call_is_refused_in_the_same_words(framework, keywords, family, call, text):
    params = native_tree(framework, random_tree(family))
    call = {name: to_native(framework, x) for name, x in call.items()}
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        part(framework, "block").block(
            params, to_native(framework, drawn(2, T, C)), HEADS, **keywords, **call
        )


@both_frameworks
def test_a_module_refuses_what_only_cross_attention_reads(framework):
    block, x = part(framework, "block").Block(C, HEADS), to_native(framework, np.float32(X))
    with pytest.raises(ValueError, match=r"^context_lengths: got 4 with cross=False, wanted None$"):
        block(x, context_lengths=4)
    with pytest.raises(ValueError, match=r"^return_lse: got True, wanted False"):
        block(x, return_lse=True)


def without(tree, *path):
    """A copy of a tree of dicts without the entry there."""
    name, *rest = path
    left = {key: branch for key, branch in tree.items() if key != name}
    return left | {name: without(tree[name], *rest)} if rest else left


BROKEN_TREES = [  # what is missing, of which function -> text
    ("block", ("ln1",), "params: ln1: missing"),
    ("block", ("ln2",), "params: ln2: missing"),
    ("block", ("attn",), "params: attn: missing"),
    ("block", ("attn", "w_out"), "params: w_out: missing"),
    ("block", ("attn", "w_qkv"), "params: w_qkv: missing"),
    ("block", ("w_fc",), "params: w_fc: missing"),
    ("block", ("w_proj",), "params: w_proj: missing"),
    ("mlp", ("w_fc",), "params: w_fc: missing"),
    ("attention", ("attn", "w_out"), "params: w_out: missing"),
    ("attention", ("attn", "b_qkv"), "params: b_qkv: missing"),
]


def functional(framework, name):
    """f(params, x) of a block, of its MLP, of its attention."""
    block, mlp, multihead = (part(framework, n) for n in ("block", "mlp", "multihead"))
    return {
        "block": lambda params, x: block.block(params, x, HEADS),
        "mlp": mlp.mlp,
        "attention": lambda params, x: multihead.multi_head_attention(params["attn"], x, HEADS),
    }[name]


@both_frameworks
@pytest.mark.parametrize("name, path, text", BROKEN_TREES)
def test_what_a_tree_lacks_is_named(framework, name, path, text):
    params = without(native_tree(framework, random_tree("gpt2")), *path)
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        functional(framework, name)(params, to_native(framework, X))


@both_frameworks
@pytest.mark.parametrize("name", ["block", "mlp", "attention"])
def test_only_arrays_of_the_framework_are_taken(framework, name):
    f, tree, x = functional(framework, name), random_tree("gpt2"), to_native(framework, X)
    with pytest.raises(TypeError, match=r"^x: got numpy.ndarray, wanted an array of this framework$"):
        f(native_tree(framework, tree), X)
    with pytest.raises(
        TypeError, match=r"^params: \w+: got numpy.ndarray, wanted an array of this framework$"
    ):
        f(tree, x)
    with pytest.raises(TypeError, match=r"^params: got list, wanted a dict$"):
        f([] if name != "attention" else {"attn": []}, x)


@both_frameworks
@pytest.mark.parametrize(
    "name, arguments", [("Block", (C, HEADS)), ("MLP", (C,)), ("MultiHeadAttention", (C, HEADS))]
)
def test_a_module_refuses_another_dtype_in_the_words_of_the_function(framework, name, arguments):
    module = getattr(part(framework, {"Block": "block", "MLP": "mlp"}.get(name, "multihead")), name)
    with pytest.raises(TypeError, match=r"^x: got dtype float64, wanted its parameters' float32$"):
        module(*arguments)(to_native(framework, X))


@both_frameworks
def test_ids_of_positions_do_nothing_where_there_are_none(framework):
    block, params = part(framework, "block").block, native_tree(framework, random_tree("gpt2"))
    x, ids = (to_native(framework, a) for a in (X, np.arange(T) + 7))
    np.testing.assert_array_equal(
        *(np.asarray(block(params, x, HEADS, **call)) for call in ({}, {"position_ids": ids}))
    )
