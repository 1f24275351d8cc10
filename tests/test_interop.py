"""Other libraries' layers and ours: their parameters are the same bits, and so they give the same numbers."""

import os
import re
from typing import NamedTuple

import numpy as np
import pytest
from blocks import drawn, holding, jitted, leaves, mapped, native_tree, part, part_by, tree_part_by
from frameworks import both_frameworks, lenient, to_native, to_numpy

from parity import interop

C, H, T = 8, 2, 5
# Keras' get_weights, in NumPy's eyes.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"
)


class Layer(NamedTuple):
    """Another library's layer: its parameters as arrays, what loads such, and what runs it."""

    read: object  # () -> (keywords, tree)
    write: object  # tree -> parameters
    held: object  # () -> parameters
    load: object  # parameters
    run: object  # x, context or None -> output


def called(framework, module, x, context):
    """The module's output, in JAX compiled."""
    x, context = (to_native(framework, t) for t in (x, context))
    if framework == "torch":
        return to_numpy(module(x, context))
    from flax import nnx

    graph, state = nnx.split(module)
    return to_numpy(jitted("jax", lambda state, *t: nnx.merge(graph, state)(*t))(state, x, context))


def torch_layer(name, cross=False, **options):
    import torch

    module = getattr(torch.nn, name)(C, H, batch_first=True, dtype=torch.float64, **options).eval()

    def run(x, context):
        x, context = (to_native("torch", t) for t in (x, context))
        if name == "MultiheadAttention":
            context = x if context is None else context
            return to_numpy(module(x, context, context)[0])
        return to_numpy(
            module(x) if context is None else module(x, context, tgt_is_causal=True, tgt_mask=LATER)
        )

    LATER = torch.ones(T, T, dtype=torch.bool).triu(1)  # True is hidden, here
    return Layer(
        read=lambda: interop.from_torch(module, *[True] * cross),
        write=interop.to_torch,
        held=lambda: to_numpy(dict(module.state_dict())),
        load=lambda state: module.load_state_dict(native_tree("torch", state)),
        run=run,
    )


def nnx_layer(cross=False, **options):
    from flax import nnx

    options |= {"dropout_rate": 0.5, "deterministic": True}  # one with no dropout takes a float32 softmax
    options |= {"param_dtype": np.float64, "decode": False, "keep_rngs": False}
    module = nnx.eval_shape(lambda: nnx.MultiHeadAttention(H, C, rngs=nnx.Rngs(0), **options))

    def held():
        return to_numpy(nnx.to_pure_dict(nnx.state(module, nnx.Param)))

    def run(x, context):
        with lenient():
            return called("jax", module, x, context)

    return Layer(
        read=lambda: interop.from_flax(nnx.state(module, nnx.Param), cross),
        write=lambda tree: interop.to_flax(tree, H),
        held=held,
        load=lambda params: nnx.update(module, native_tree("jax", params)),
        run=run,
    )


def linen_layer(cross=False, **options):
    import jax.numpy as jnp
    from flax import linen

    module = linen.MultiHeadDotProductAttention(num_heads=H, param_dtype=jnp.float64, **options)
    variables = {}

    def run(x, context):
        x, context = (to_native("jax", t) for t in (x, context))
        with lenient():
            return to_numpy(jitted("jax", module.apply)(variables, x, context))

    return Layer(
        read=lambda: interop.from_flax(variables["params"], cross),
        write=lambda tree: interop.to_flax(tree, H),
        held=lambda: to_numpy(variables["params"]),
        load=lambda params: variables.update(params=native_tree("jax", params)),
        run=run,
    )


def keras_layer(name="MultiHeadAttention", cross=False, **options):
    os.environ.setdefault("KERAS_BACKEND", "torch")  # read when keras is imported; jax gives the same
    import keras

    layer = getattr(keras.layers, name)(dtype="float64", **options)
    layer.build((None, None, C), (None, None, C))

    def run(x, context):  # return_attention_scores: in JAX the other way takes a float32 softmax
        y, _ = layer(x, x if context is None else context, return_attention_scores=True)
        return keras.ops.convert_to_numpy(y)

    return Layer(
        read=lambda: interop.from_keras(layer.get_weights(), cross),
        write=lambda tree: tuple(interop.to_keras(tree, H)),
        held=lambda: tuple(layer.get_weights()),
        load=layer.set_weights,
        run=run,
    )


ENCODER, DECODER = "TransformerEncoderLayer", "TransformerDecoderLayer"
MLP_OF_12 = {"dim_feedforward": 12, "dropout": 0.25}
BLOCK = {"hidden": 12, "attn_dropout": 0.25, "mlp_dropout": 0.25, "resid_dropout": 0.25, "bias": True}
POST, PRE = BLOCK | {"norm_placement": "post"}, BLOCK | {"norm_placement": "pre"}
WIDE, BOTH = {"n_kv_head": H, "head_dim": 6}, ("qkv", "out")
# Name -> what makes the layer, and its keywords of ours.
LAYERS = {
    "torch": (lambda: torch_layer("MultiheadAttention", dropout=0.5), {"attn_dropout": 0.5}),
    "torch-bare": (lambda: torch_layer("MultiheadAttention", bias=False), {"bias": False}),
    "torch-cross": (lambda: torch_layer("MultiheadAttention", cross=True), {"cross": True}),
    "torch-post-relu": (
        lambda: torch_layer(ENCODER, **MLP_OF_12, layer_norm_eps=1e-3),
        POST | {"activation": "relu", "causal": False, "eps": 1e-3},
    ),
    "torch-pre-gelu": (
        lambda: torch_layer(ENCODER, **MLP_OF_12, norm_first=True, activation="gelu"),
        PRE | {"activation": "gelu", "causal": False},
    ),
    "torch-pre-bare": (
        lambda: torch_layer(ENCODER, **MLP_OF_12, norm_first=True, bias=False),
        PRE | {"activation": "relu", "causal": False, "bias": False},
    ),
    "torch-decoder": (
        lambda: torch_layer(DECODER, **MLP_OF_12, norm_first=True, activation="gelu"),
        PRE | {"activation": "gelu", "causal": True, "cross": True},
    ),
    "torch-decoder-post": (
        lambda: torch_layer(DECODER, **MLP_OF_12),
        POST | {"activation": "relu", "causal": True, "cross": True},
    ),
    "nnx": (lambda: nnx_layer(qkv_features=12), WIDE | {"bias": BOTH}),
    "nnx-grouped": (
        lambda: nnx_layer(num_kv_heads=1, use_bias=False),
        {"n_kv_head": 1, "head_dim": 4, "bias": ()},
    ),
    "nnx-normed-cross": (
        lambda: nnx_layer(cross=True, qkv_features=12, normalize_qk=True),
        WIDE | {"bias": BOTH, "cross": True, "qk_norm": "head", "eps": 1e-6},
    ),
    "linen": (
        lambda: linen_layer(qkv_features=12, normalize_qk=True),
        WIDE | {"bias": BOTH, "qk_norm": "head", "eps": 1e-6},
    ),
    "linen-cross": (lambda: linen_layer(cross=True, qkv_features=12), WIDE | {"bias": BOTH, "cross": True}),
    "keras": (lambda: keras_layer(num_heads=H, key_dim=6), WIDE | {"bias": BOTH}),
    "keras-bare-cross": (
        lambda: keras_layer(cross=True, num_heads=H, key_dim=6, use_bias=False),
        WIDE | {"bias": (), "cross": True},
    ),
    "keras-grouped": (
        lambda: keras_layer("GroupQueryAttention", head_dim=6, num_query_heads=H, num_key_value_heads=1),
        {"n_kv_head": 1, "head_dim": 6, "bias": BOTH},
    ),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


def made(name, seed=0):
    """(layer, our keywords, a random tree), the tree loaded into the layer."""
    make, wanted = LAYERS[name]
    keywords = {"n_embd": C, "n_head": H} | wanted
    kind = "block" if "hidden" in wanted else "attention"
    init = part("torch", "block" if kind == "block" else "multihead")
    tree = to_numpy(getattr(init, f"init_{kind}")(0, **keywords))
    rng = np.random.default_rng(seed)
    tree = mapped(lambda x: rng.standard_normal(x.shape) / (np.sqrt(C) if x.ndim == 2 else 1), tree)
    layer = make()
    layer.load(layer.write(tree))
    return layer, keywords, tree


def assert_same(got, want):
    """The same entries, and bits."""
    got, want = leaves(got), leaves(want)
    assert got.keys() == want.keys()
    for path, x in got.items():
        assert (x.dtype, x.shape, x.tobytes()) == (
            want[path].dtype,
            want[path].shape,
            want[path].tobytes(),
        ), path


def inputs(keywords):
    return drawn(2, T, C), drawn(2, 4, C, seed=2) if keywords.get("cross") else None


@every_layer
def test_parameters_go_there_and_back_bit_for_bit(name):
    layer, keywords, tree = made(name)
    got, read = layer.read()
    assert keywords.items() <= got.items()
    assert_same(read, tree)
    assert_same(layer.write(read), layer.held())


@both_frameworks
@every_layer
def test_our_module_with_their_keywords_and_parameters_gives_their_numbers(framework, name):
    layer, _, _ = made(name)
    keywords, tree = layer.read()
    module = (
        part(framework, "block").Block
        if "hidden" in keywords
        else part(framework, "multihead").MultiHeadAttention
    )
    x, context = inputs(keywords)
    ours = holding(framework, tree, lambda: module(**keywords))
    assert part_by(called(framework, ours, x, context), layer.run(x, context)) < 1e-14


def test_their_gradients_are_ours():
    import torch

    module = torch.nn.TransformerEncoderLayer(
        C, H, 12, norm_first=True, batch_first=True, dtype=torch.float64
    )
    keywords, tree = interop.from_torch(module.eval())
    x, dout = drawn(2, T, C), drawn(2, T, C, seed=2)
    module(to_native("torch", x)).backward(to_native("torch", dout))
    want = {name: to_numpy(p.grad) for name, p in module.named_parameters()}
    n_embd, n_head = keywords.pop("n_embd"), keywords.pop("n_head")
    params = native_tree("torch", tree)
    mapped(lambda p: p.requires_grad_(), params)
    part("torch", "block").block(params, to_native("torch", x), n_head, **keywords).backward(
        to_native("torch", dout)
    )
    got = interop.to_torch(mapped(lambda p: p.grad, params))
    assert n_embd == C
    assert tree_part_by(got, want) < 1e-13


@both_frameworks
def test_bfloat16_travels_as_float32(framework):
    tree = native_tree(framework, made("nnx")[2], "bfloat16")
    _, read = interop.from_flax(interop.to_flax(tree, H))
    assert_same(read, to_numpy(tree))


def torch_made(name, **options):
    import torch

    return getattr(torch.nn, name)(C, H, **options)


def flax_params(change):
    """The parameters of a grouped attention with biases, and one of their entries changed."""
    w = {name: {"kernel": np.ones((C, H, 4)), "bias": np.ones((H, 4))} for name in ("query", "key", "value")}
    params = w | {"out": {"kernel": np.ones((H, 4, C)), "bias": np.ones(C)}}
    for (layer, name), x in change.items():
        if x is None:
            del params[layer][name]
        else:
            params.setdefault(layer, {})[name] = x
    return params


def attention_tree(**changes):
    """The parameters of attention without bias, those given changed."""
    return {"w_qkv": np.ones((C, 3 * C)), "w_out": np.ones((C, C))} | changes


def block_tree(**changes):
    tree = {"attn": attention_tree(), "ln1": (np.ones(C),), "ln2": (np.ones(C),)}
    return tree | {"w_fc": np.ones((C, 12)), "w_proj": np.ones((12, C))} | changes


REFUSED = {
    "kdim": (lambda: interop.from_torch(torch_made("MultiheadAttention", kdim=3)), "kdim: got 3, wanted 8"),
    "bias-kv": (
        lambda: interop.from_torch(torch_made("MultiheadAttention", add_bias_kv=True)),
        "add_bias_kv: got True, wanted False",
    ),
    "zero-attn": (
        lambda: interop.from_torch(torch_made("MultiheadAttention", add_zero_attn=True)),
        "add_zero_attn: got True, wanted False",
    ),
    "activation": (
        lambda: interop.from_torch(torch_made(ENCODER, activation=np.tanh)),
        "activation: got tanh, wanted one of relu, gelu, silu",
    ),
    "some-biases": (
        lambda: interop.from_flax(flax_params({("key", "bias"): None})),
        "params: key/bias: missing",
    ),
    "keys-of-another-width": (
        lambda: interop.from_flax(flax_params({("key", "kernel"): np.ones((6, H, 4))})),
        "params: key/kernel: got shape (6, 2, 4), wanted (8, 2, 4)",
    ),
    "another-width-out": (
        lambda: interop.from_flax(flax_params({("out", "kernel"): np.ones((H, 4, 6))})),
        "params: out/kernel: got shape (2, 4, 6), wanted (2, 4, 8)",
    ),
    "other-parameters": (
        lambda: interop.from_flax(flax_params({("gate", "kernel"): np.ones((C, H, 4))})),
        "params: gate/kernel: unexpected",
    ),
    "no-heads": (
        lambda: interop.from_flax({"kernel": np.ones((C, C))}),
        "params: query/kernel: got nothing, wanted (C, H, D)",
    ),
    "gate": (
        lambda: interop.from_keras([np.ones((C, H, 4))] * 5),
        "weights: got 5 arrays, wanted 4, or 8 with biases",
    ),
    "grouped-for-torch": (
        lambda: interop.to_torch(attention_tree(w_qkv=np.ones((C, 2 * C)))),
        "tree: w_qkv: got shape (8, 16), wanted (8, 24)",
    ),
    "some-biases-for-torch": (
        lambda: interop.to_torch(attention_tree(b_qkv=np.ones(3 * C))),
        "tree: b_out: missing",
    ),
    "gated-for-torch": (
        lambda: interop.to_torch(block_tree(w_gate=np.ones((C, 12)))),
        "tree: w_gate: unexpected",
    ),
    "sandwich-for-torch": (
        lambda: interop.to_torch(block_tree(ln1_post=(np.ones(C),))),
        "tree: ln1_post/0: unexpected",
    ),
    "some-biases-for-flax": (
        lambda: interop.to_flax(attention_tree(b_out=np.ones(C)), H),
        "tree: b_qkv: missing",
    ),
    "heads-for-flax": (
        lambda: interop.to_flax(attention_tree(), 3),
        "n_head: got 3, wanted a divisor of w_out's first axis, 8",
    ),
    "all-heads-normed-for-flax": (
        lambda: interop.to_flax(attention_tree(q_norm=(np.ones(C),), k_norm=(np.ones(C),)), H),
        "tree: q_norm/0: got shape (8,), wanted (4,); k_norm/0: got shape (8,), wanted (4,)",
    ),
    "normed-for-keras": (
        lambda: interop.to_keras(attention_tree(q_norm=(np.ones(4),), k_norm=(np.ones(4),)), H),
        "tree: q_norm: unexpected; k_norm: unexpected",
    ),
    "a-block-for-flax": (
        lambda: interop.to_flax(block_tree(), H),
        "tree: w_out: missing",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_other_layout_cannot_hold_is_refused(name):
    call, text = REFUSED[name]
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        call()


def test_other_modules_are_refused():
    import torch

    wanted = (
        "module: got Linear, wanted MultiheadAttention, TransformerEncoderLayer or TransformerDecoderLayer"
    )
    with pytest.raises(TypeError, match=wanted):
        interop.from_torch(torch.nn.Linear(2, 2))
