"""Whole pre-norm GPT-2 blocks with the same parameters: ours as functions and as modules, the libraries' too.

Each loader takes the parameter tree of parity.inputs.make_block (NumPy) and place, which puts an array on the
device in the cell's dtype. It returns (f, parameters, tree_of): f(x, *parameters) gives (B, T, C), and
tree_of(*gradients of the parameters) gives them in the form of the tree.
"""

from copy import deepcopy

from benchmarks.cells import HEADS


def torch_function(tree, place):
    from torch.utils._pytree import tree_flatten, tree_unflatten

    from attn_torch.block import block

    flat, form = tree_flatten(tree)

    def tree_of(*leaves):
        return tree_unflatten(list(leaves), form)

    return lambda x, *leaves: block(tree_of(*leaves), x, HEADS), tuple(map(place, flat)), tree_of


def torch_module(tree, place):
    """The module reads its own parameters; they are handed out only to be differentiated."""
    from attn_torch.block import Block
    from attn_torch.params import from_tree, to_tree

    module = Block(len(tree["b_proj"]), HEADS).to(place(tree["b_proj"]).device)
    from_tree(module, tree)

    def tree_of(*gradients):
        twin = deepcopy(module)
        for p, gradient in zip(twin.parameters(), gradients, strict=True):
            p.data = gradient
        return to_tree(twin)

    return lambda x, *parameters: module(x), tuple(module.parameters()), tree_of


def torch_layer(tree, place):
    """nn.TransformerEncoderLayer in evaluation mode: its norm_first is the page's order."""
    import torch

    C, attn = len(tree["b_proj"]), tree["attn"]
    layer = torch.nn.TransformerEncoderLayer(
        C, HEADS, 4 * C, dropout=0.0, activation="gelu", norm_first=True, batch_first=True
    ).eval()
    given = (
        ("self_attn.in_proj_", attn["w_qkv"].T, attn["b_qkv"]),
        ("self_attn.out_proj.", attn["w_out"].T, attn["b_out"]),
        ("linear1.", tree["w_fc"].T, tree["b_fc"]),
        ("linear2.", tree["w_proj"].T, tree["b_proj"]),
        ("norm1.", *tree["ln1"]),
        ("norm2.", *tree["ln2"]),
    )
    state = {
        name + part: x for name, *both in given for part, x in zip(("weight", "bias"), both, strict=True)
    }
    layer.load_state_dict({name: place(x.copy()) for name, x in state.items()}, assign=True)

    def run(x, *parameters):
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(
            1
        )  # this library's True hides
        return layer(x, src_mask=hidden, is_causal=True)

    def tree_of(*gradients):
        qkv, b_qkv, out, b_out, fc, b_fc, proj, b_proj, *norms = gradients  # in the order of the table above
        attn = {"w_qkv": qkv.T, "b_qkv": b_qkv, "w_out": out.T, "b_out": b_out}
        mlp = {"w_fc": fc.T, "b_fc": b_fc, "w_proj": proj.T, "b_proj": b_proj}
        return {"attn": attn, "ln1": tuple(norms[:2]), "ln2": tuple(norms[2:]), **mlp}

    return run, tuple(layer.parameters()), tree_of


def jax_function(tree, place):
    import jax

    from attn_jax.block import block

    return lambda x, params: block(params, x, HEADS), (jax.tree.map(place, tree),), lambda params: params


def jax_module(tree, place):
    """The module as a function of its state."""
    from flax import nnx

    from attn_jax.block import Block
    from attn_jax.params import from_tree, to_tree

    module = Block(len(tree["b_proj"]), HEADS)
    from_tree(module, tree)
    graph, state = nnx.split(module)
    return lambda x, state: nnx.merge(graph, state)(x), (state,), lambda s: to_tree(nnx.merge(graph, s))


def flax_parts(tree, place):
    """flax has no block: its attention; two-pass norms, products and exact GELU are written out around it."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    def norm(x, gain, bias):
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * gain + bias

    def run(x, params):
        B, T, C = x.shape
        attn = params["attn"]
        qkv = norm(x, *params["ln1"]) @ attn["w_qkv"] + attn["b_qkv"]
        q, k, v = (t.reshape(B, T, HEADS, C // HEADS) for t in jnp.split(qkv, 3, -1))
        y = nnx.dot_product_attention(q, k, v, is_causal=True)  # (B, T, H, D)
        x = x + y.reshape(B, T, C) @ attn["w_out"] + attn["b_out"]
        h = jax.nn.gelu(norm(x, *params["ln2"]) @ params["w_fc"] + params["b_fc"], approximate=False)
        return x + h @ params["w_proj"] + params["b_proj"]

    return run, (jax.tree.map(place, tree),), lambda params: params


BLOCKS = {
    "torch.nn layer": ("torch", torch_layer),
    "attn_torch block()": ("torch", torch_function),
    "attn_torch Block": ("torch", torch_module),
    "flax parts": ("jax", flax_parts),
    "attn_jax block()": ("jax", jax_function),
    "attn_jax Block": ("jax", jax_module),
}
