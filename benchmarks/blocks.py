"""Whole pre-norm GPT-2 blocks with the same parameters: ours, as functions and as modules, and the libraries'.

Each loader takes the parameter tree of parity.inputs.make_block (NumPy, float64) and a function that puts an
array on the device in the cell's dtype. It returns (f, parameters): f(x, *parameters) gives (B, T, C).
"""

from benchmarks.cells import HEADS


def torch_function(tree, place):
    from torch.utils._pytree import tree_flatten, tree_unflatten

    from attn_torch import block

    flat, structure = tree_flatten(tree)
    return lambda x, *flat: block(tree_unflatten(list(flat), structure), x, HEADS), tuple(map(place, flat))


def torch_module(tree, place):
    """The module reads its own parameters; they are handed out only to be differentiated."""
    from attn_torch import Block, params

    module = Block(len(tree["b_proj"]), HEADS)
    params.from_tree(module, tree)
    return lambda x, *parameters: module(x), tuple(module.parameters())


def torch_layer(tree, place):
    """nn.TransformerEncoderLayer in evaluation mode: its norm_first is the page's order."""
    import torch

    C = len(tree["b_proj"])
    layer = torch.nn.TransformerEncoderLayer(
        C, HEADS, 4 * C, dropout=0.0, activation="gelu", norm_first=True, batch_first=True
    ).eval()
    attn, state = tree["attn"], {}
    for name, weight, bias in (
        ("self_attn.in_proj_", attn["w_qkv"].T, attn["b_qkv"]),
        ("self_attn.out_proj.", attn["w_out"].T, attn["b_out"]),
        ("linear1.", tree["w_fc"].T, tree["b_fc"]),
        ("linear2.", tree["w_proj"].T, tree["b_proj"]),
        ("norm1.", *tree["ln1"]),
        ("norm2.", *tree["ln2"]),
    ):
        state |= {f"{name}weight": place(weight.copy()), f"{name}bias": place(bias)}
    layer.load_state_dict(state, assign=True)

    def run(x, *parameters):
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)  # this library's True hides
        return layer(x, src_mask=hidden, is_causal=True)

    return run, tuple(layer.parameters())


def jax_function(tree, place):
    import jax

    from attn_jax import block

    return lambda x, params: block(params, x, HEADS), (jax.tree.map(place, tree),)


def jax_module(tree, place):
    """The module as a function of its state."""
    from flax import nnx

    from attn_jax import Block, params

    module = Block(len(tree["b_proj"]), HEADS, rngs=nnx.Rngs(0))
    params.from_tree(module, tree)
    graph, state = nnx.split(module)
    return lambda x, state: nnx.merge(graph, state)(x), (state,)


def flax_parts(tree, place):
    """flax has no block: its attention, with norms (two-pass), products and exact GELU written out around it."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    def norm(x, gain_bias):
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * gain_bias[0] + gain_bias[1]

    def run(x, params):
        B, T, C = x.shape
        attn = params["attn"]
        qkv = norm(x, params["ln1"]) @ attn["w_qkv"] + attn["b_qkv"]
        q, k, v = (t.reshape(B, T, HEADS, C // HEADS) for t in jnp.split(qkv, 3, -1))
        y = nnx.dot_product_attention(q, k, v, is_causal=True)  # (B, T, H, D)
        x = x + y.reshape(B, T, C) @ attn["w_out"] + attn["b_out"]
        h = jax.nn.gelu(norm(x, params["ln2"]) @ params["w_fc"] + params["b_fc"], approximate=False)
        return x + h @ params["w_proj"] + params["b_proj"]

    return run, (jax.tree.map(place, tree),)


BLOCKS = {
    "torch.nn layer": ("torch", torch_layer),
    "attn_torch block()": ("torch", torch_function),
    "attn_torch Block": ("torch", torch_module),
    "flax parts": ("jax", flax_parts),
    "attn_jax block()": ("jax", jax_function),
    "attn_jax Block": ("jax", jax_module),
}
