"""The parameter tree: bit for bit from either framework to the other, all of it or nothing."""

import copy
import re

import numpy as np
import pytest
from blocks import block_module, holding, leaves, mapped, native_tree, part, random_tree
from frameworks import FRAMEWORKS, both_frameworks, to_native, to_numpy

C, HEADS = 8, 2
TREE = random_tree(C)
DTYPES = ("float16", "bfloat16", "float32", "float64")


def params(framework):
    return part(framework, "params")


def held_in(tree, dtype):
    """The tree rounded to dtype, as NumPy keeps it: bfloat16 as float32."""
    return mapped(lambda x: to_numpy(to_native("torch", x, dtype)), tree)


def assert_same(got, want):
    """The same entries, dtypes and bits."""
    got, want = leaves(got), leaves(want)
    assert list(got) == list(want)
    for path, x in got.items():
        assert (x.dtype, x.shape, x.tobytes()) == (
            want[path].dtype,
            want[path].shape,
            want[path].tobytes(),
        ), path


@pytest.mark.parametrize("source, target", [FRAMEWORKS, FRAMEWORKS[::-1]])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tree_goes_from_one_framework_to_the_other_and_back(source, target, dtype):
    tree = held_in(TREE, dtype)
    tree["w_fc"][0, :4] = -0.0, np.finfo(np.float16).tiny / 2, np.inf, -np.inf  # a subnormal float16
    written = params(source).to_tree(block_module(source, HEADS, tree, dtype))
    assert_same(written, tree)
    read = block_module(target, HEADS, written, dtype)
    assert_same(params(target).to_tree(read), tree)
    like = to_native(target, np.ones(1), dtype)
    assert all(p.dtype == like.dtype for p in leaves(params(target).parameters(read)).values())


@both_frameworks
def test_nan_is_a_value_too(framework):
    tree = mapped(np.copy, TREE)
    tree["b_fc"][3] = np.nan
    assert_same(params(framework).to_tree(block_module(framework, HEADS, tree)), tree)


@both_frameworks
def test_attention_and_mlp_have_trees_of_their_own(framework):
    mlp_tree = {name: TREE[name] for name in ("w_fc", "b_fc", "w_proj", "b_proj")}
    multihead, mlp = part(framework, "multihead"), part(framework, "mlp")
    for tree, make in (
        (TREE["attn"], lambda: multihead.CausalSelfAttention(C, HEADS)),
        (mlp_tree, lambda: mlp.MLP(C)),
    ):
        assert_same(params(framework).to_tree(holding(framework, tree, make)), tree)


@both_frameworks
def test_the_functional_styles_own_parameters_load(framework):
    module = block_module(framework, HEADS, TREE)
    other = mapped(lambda x: 2 * x, TREE)
    params(framework).from_tree(module, native_tree(framework, other))
    assert_same(params(framework).to_tree(module), other)
    again = block_module(framework, HEADS, TREE)
    params(framework).from_tree(again, params(framework).parameters(module))
    assert_same(params(framework).to_tree(again), other)


@both_frameworks
def test_bfloat16_arrays_of_numpys_own_load(framework):
    import ml_dtypes

    tree = mapped(lambda x: x.astype(ml_dtypes.bfloat16), TREE)
    assert_same(
        params(framework).to_tree(block_module(framework, HEADS, tree, "float32")), held_in(TREE, "bfloat16")
    )


@both_frameworks
def test_the_tree_is_a_copy(framework):
    module = block_module(framework, HEADS, TREE)
    written = params(framework).to_tree(module)
    for x in leaves(written).values():
        assert x.flags.c_contiguous
        x[...] = 0
    assert_same(params(framework).to_tree(module), TREE)


def test_torch_keeps_its_parameters_so_that_an_optimizer_may_hold_them():
    from attn_torch.params import from_tree

    module = block_module("torch", HEADS, TREE)
    before = list(module.parameters())
    from_tree(module, mapped(lambda x: 2 * x, TREE))
    assert all(p is q and p.requires_grad for p, q in zip(before, module.parameters(), strict=True))


def test_torch_gradients_pass_from_the_functional_style_to_the_module():
    from attn_torch.block import block
    from attn_torch.params import parameters

    module = block_module("torch", HEADS, TREE)
    block(parameters(module), to_native("torch", np.ones((3, C))), HEADS).sum().backward()
    assert all(p.grad is not None for p in module.parameters())


def without(tree, *path):
    tree = copy.deepcopy(tree)
    branch = tree
    for name in path[:-1]:
        branch = branch[name]
    del branch[path[-1]]
    return tree


FITS = mapped(np.float32, TREE)
BAD_TREES = [
    (without(FITS, "attn", "w_out"), "attn/w_out: missing"),
    (without(without(FITS, "b_fc"), "ln2"), "ln2/0: missing; ln2/1: missing; b_fc: missing"),
    (
        FITS | {"attn": {}},
        "attn/w_qkv: missing; attn/b_qkv: missing; attn/w_out: missing; attn/b_out: missing",
    ),
    (FITS | {"ln1": (*FITS["ln1"], np.ones(8))}, "ln1/2: unexpected"),
    (FITS | {"w_out": np.ones((8, 8))}, "w_out: unexpected"),
    (FITS | {"w_fc": FITS["w_fc"].T}, "w_fc: got shape (32, 8), wanted (8, 32)"),
    (FITS | {"b_fc": np.ones(1)}, "b_fc: got shape (1,), wanted (32,)"),
    (FITS | {"b_proj": np.ones(8, "int64")}, "b_proj: got int64, wanted what float32 holds exactly"),
    (FITS | {"b_proj": np.full(8, 0.1)}, "b_proj: got float64, wanted what float32 holds exactly"),
    (FITS | {"b_proj": np.full(8, 1e300)}, "b_proj: got float64, wanted what float32 holds exactly"),
    (
        without(FITS, "w_proj") | {"b_proj": np.ones(7), "new": np.ones(2)},
        "w_proj: missing; b_proj: got shape (7,), wanted (8,); new: unexpected",
    ),
]


@both_frameworks
@pytest.mark.parametrize("tree, text", BAD_TREES)
def test_a_wrong_tree_is_refused_with_a_list_and_nothing_is_loaded(framework, tree, text):
    held = mapped(lambda x: 2 * x, FITS)
    module = block_module(framework, HEADS, held, "float32")
    with pytest.raises(ValueError, match=f"^tree: {re.escape(text)}$"):
        params(framework).from_tree(module, tree)
    assert_same(params(framework).to_tree(module), held)


@both_frameworks
def test_other_modules_are_refused(framework):
    text = "module: got dict, wanted EncoderDecoder, Transformer, Block, MultiHeadAttention or MLP"
    for call in (params(framework).to_tree, params(framework).parameters):
        with pytest.raises(TypeError, match=text):
            call({})
    with pytest.raises(TypeError, match=text):
        params(framework).from_tree({}, TREE)
