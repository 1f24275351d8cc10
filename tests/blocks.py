"""What the tests of the block share: parameter trees, modules that hold them, and every gradient.

A route is one of the four ways to compute a block: (framework, style).
"""

import copy
from importlib import import_module

import numpy as np
import pytest
from frameworks import FRAMEWORKS, to_native, to_numpy

ROUTES = [(framework, style) for framework in FRAMEWORKS for style in ("function", "module")]
every_route = pytest.mark.parametrize("route", ROUTES, ids="-".join)


def part(framework, name):
    """A module of the package, by its file's name."""
    return import_module(f"attn_{framework}.{name}")


def mapped(f, tree):
    """f of every leaf of nested dicts and tuples."""
    if isinstance(tree, dict):
        return {name: mapped(f, branch) for name, branch in tree.items()}
    return tuple(mapped(f, branch) for branch in tree) if isinstance(tree, tuple) else f(tree)


def leaves(tree, path=""):
    """{path: leaf} of nested dicts and tuples."""
    if not isinstance(tree, dict | tuple):
        return {path.removeprefix("/"): tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {p: leaf for name, branch in items for p, leaf in leaves(branch, f"{path}/{name}").items()}


def drawn(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape)


def part_by(got, want):
    """The largest difference, as a share of the largest entry."""
    assert got.shape == want.shape
    return np.abs(got - want).max() / np.abs(want).max()


def tree_part_by(got, want):
    """The largest part_by of the trees' leaves."""
    got, want = leaves(got), leaves(want)
    assert got.keys() == want.keys()
    return max(part_by(got[path], want[path]) for path in want)


def random_tree(n_embd, seed=0):
    """A block's parameters in float64 NumPy, none of them 0 or 1."""
    rng, C = np.random.default_rng(seed), n_embd
    shapes = {
        "attn": {"w_qkv": (C, 3 * C), "b_qkv": (3 * C,), "w_out": (C, C), "b_out": (C,)},
        "ln1": ((C,), (C,)),
        "ln2": ((C,), (C,)),
        "w_fc": (C, 4 * C),
        "b_fc": (4 * C,),
        "w_proj": (4 * C, C),
        "b_proj": (C,),
    }

    def drawn(shape):
        if isinstance(shape, dict):
            return {name: drawn(s) for name, s in shape.items()}
        if isinstance(shape[0], tuple):
            return tuple(drawn(s) for s in shape)
        return rng.standard_normal(shape) / (np.sqrt(C) if len(shape) == 2 else 1)

    return drawn(shapes)


def native_tree(framework, tree, dtype="float64"):
    return mapped(lambda x: to_native(framework, x, dtype), tree)


def in_dtype(framework, module, dtype):
    """The module with its parameters in dtype (a name)."""
    if framework == "torch":
        import torch

        return module.to(getattr(torch, dtype))
    import jax
    from flax import nnx

    graph, state = nnx.split(module)
    return nnx.merge(graph, jax.tree.map(lambda p: p.astype(dtype), state))


def holding(framework, tree, make, dtype="float64"):
    """The module that make() returns, in dtype, with tree for its parameters."""
    if framework == "torch":
        module = in_dtype(framework, make(), dtype)
    else:
        from flax import nnx

        module = nnx.eval_shape(lambda: in_dtype(framework, make(), dtype))  # nothing drawn, nothing compiled
    part(framework, "params").from_tree(module, tree)
    return module


def block_module(framework, n_head, tree, dtype="float64"):
    """A Block that holds tree."""
    Block, n_embd = part(framework, "block").Block, len(tree["b_proj"])
    return holding(framework, tree, lambda: Block(n_embd, n_head), dtype)


def pure(route, tree, n_head, dtype="float64"):
    """f, params, as_tree: the block as f(params, x), and what makes a tree of anything shaped like params."""
    framework, style = route
    if style == "function":
        params, block = native_tree(framework, tree, dtype), part(framework, "block").block
        return jitted(framework, lambda params, x: block(params, x, n_head)), params, lambda like: like
    module, to_tree = block_module(framework, n_head, tree, dtype), part(framework, "params").to_tree
    if framework == "torch":
        from torch.func import functional_call

        def as_tree(like):
            held = copy.deepcopy(module)
            held.load_state_dict(like)
            return to_tree(held)

        params = {name: p.detach() for name, p in module.named_parameters()}
        return lambda params, x: functional_call(module, params, (x,)), params, as_tree
    from flax import nnx

    graph, params = nnx.split(module)
    f = jitted(framework, lambda params, x: nnx.merge(graph, params)(x))
    return f, params, lambda like: to_tree(nnx.merge(graph, like))


def jitted(framework, f):
    """jax.jit(f) in JAX: the first call costs a fifth of one op by op."""
    if framework == "torch":
        return f
    import jax

    return jax.jit(f)


def run_block(route, tree, x, n_head, dtype="float64"):
    """The block's output in NumPy."""
    f, params, _ = pure(route, tree, n_head, dtype)
    return to_numpy(f(params, to_native(route[0], x, dtype)))


def block_gradients(route, tree, x, dout, n_head):
    """The block's output, and d sum(output * dout) by every parameter (a tree) and by x: float64 NumPy."""
    framework, _ = route
    f, params, as_tree = pure(route, tree, n_head)
    x, dout = (to_native(framework, t, "float64") for t in (x, dout))
    if framework == "torch":
        params, x = mapped(lambda p: p.requires_grad_(), params), x.requires_grad_()
        y = f(params, x)
        y.backward(dout)
        dparams, dx = mapped(lambda p: p.grad, params), x.grad
    else:
        import jax

        def forward_and_back(params, x, dout):
            y, pull = jax.vjp(f, params, x)
            return y, *pull(dout)

        y, dparams, dx = jax.jit(forward_and_back)(params, x, dout)
    return to_numpy(y), to_numpy(as_tree(dparams)), to_numpy(dx)
