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
        "activation: got 'elu', wanted one of gelu, gelu_tanh, relu, silu, swiglu, geglu, geglu_tanh",
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
    block = part(framework, "block")
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        block.Block(C, HEADS, **keywords)
    key = 0
    if framework == "jax":
        import jax

        key = jax.random.key(0)
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        block.init_block(key, C, HEADS, **keywords)


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
    (
        {"positions": "rotary"},
        "gpt2",
        {"position_ids": np.arange(4)},
        "position_ids: got shape (4,), wanted (5,) or (2, 5)",
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
