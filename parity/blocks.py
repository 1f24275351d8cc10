"""Whole blocks in the matrix: the same parameters and inputs through both packages, all gradients judged.

A block's limits come from parity.montecarlo. Its values are representable in bfloat16 and in float16, so that
every dtype is judged on the same numbers and by the same runs.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from parity import inputs, montecarlo, oracle_block
from parity.verdict import Verdict, judge_all

STYLES = ("function", "module")


@dataclass(frozen=True)
class BlockCase:
    """A block of n_embd channels and n_head heads on x (B, T, n_embd). style: a name of STYLES."""

    name: str
    catches: str
    n_embd: int
    n_head: int
    B: int
    T: int
    style: str
    budget: str = "default"


BLOCKS = {
    case.name: case
    for case in (
        BlockCase(
            "block", "order of q, k, v, of norm and residual, of heads", 48, 3, 2, 5, "function", "quick"
        ),
        BlockCase(
            "block-module", "a parameter transposed or left out on the way", 48, 3, 2, 5, "module", "quick"
        ),
        BlockCase("block-gpt2-small", "what only shows at width", 768, 12, 1, 4, "function"),
        BlockCase("block-gpt2-small-module", "what only shows at width", 768, 12, 1, 4, "module"),
    )
}


@lru_cache(maxsize=2)
def given(n_embd: int, n_head: int, B: int, T: int, seed: int):
    """(parameter tree, x, dout), the same for every style and dtype."""
    made = inputs.make_block(n_embd, n_head, B, T, "bfloat16", seed)
    return mapped(lambda a: inputs.represent(a, "float16"), made)  # small ones lose bits, none gets any


@lru_cache(maxsize=4)
def limits(n_embd: int, n_head: int, B: int, T: int, seed: int, claims: tuple[str, ...]):
    params, x, dout = given(n_embd, n_head, B, T, seed)
    return montecarlo.limits(oracle_block.block, {"params": params, "x": x}, dout, claims, n_head=n_head)


def judge(case: BlockCase, seed: int, results: dict, claim: str, claims: tuple[str, ...]) -> Verdict:
    """results, as from run, under a claim; claims: all it is judged by in this run, for they share work."""
    exact, allowed = limits(case.n_embd, case.n_head, case.B, case.T, seed, claims)
    return judge_all(results, exact, allowed[claim], warn_above=montecarlo.WARN_ABOVE)


def run(
    framework: str,
    implementation: str,
    case: BlockCase,
    dtype: str,
    device: str,
    seed: int,
    compiler_options: dict | None = None,
) -> dict:
    """Output and gradients by the names of parity.oracle_block.evaluate: "out", "dx", "dparams.w_fc", ..."""
    params, x, dout = given(case.n_embd, case.n_head, case.B, case.T, seed)
    take: Callable = partial(jax_block, compiler_options) if framework == "jax" else torch_block
    block = importlib.import_module(f"attn_{framework}.block")
    exchange = importlib.import_module(f"attn_{framework}.params")
    out, dx, dparams = take(block, exchange, implementation, case, params, x, dout, dtype, device)
    return {"out": out, "dx": dx, **oracle_block.flatten(dparams, "dparams")}


def mapped(f: Callable, tree):
    """f of every leaf of nested dicts and tuples."""
    if isinstance(tree, dict):
        return {name: mapped(f, branch) for name, branch in tree.items()}
    return tuple(mapped(f, branch) for branch in tree) if isinstance(tree, tuple) else f(tree)


def torch_block(block, exchange, implementation, case, params, x, dout, dtype, device):
    import torch

    def native(a):
        return torch.from_numpy(a).to(device, getattr(torch, dtype))

    def plain(a):
        return a.detach().to("cpu", torch.float64 if dtype == "float64" else torch.float32).numpy()

    x, dout = native(x).requires_grad_(), native(dout)
    if case.style == "function":
        tree = mapped(lambda a: native(a).requires_grad_(), params)
        out = block.block(tree, x, case.n_head, implementation=implementation)
        out.backward(dout)
        return plain(out), plain(x.grad), mapped(lambda a: plain(a.grad), tree)
    module = block.Block(case.n_embd, case.n_head, implementation=implementation)
    module = module.to(device, getattr(torch, dtype))
    exchange.from_tree(module, params)
    out = module(x)
    out.backward(dout)
    for p in module.parameters():
        p.data = p.grad  # then the tree of the module is the tree of its gradients
    return plain(out), plain(x.grad), exchange.to_tree(module)


def jax_block(compiler_options, block, exchange, implementation, case, params, x, dout, dtype, device):
    import jax
    from flax import nnx

    place = jax.devices({"cuda": "gpu"}.get(device, device))[0]

    def native(a):
        return jax.device_put(a.astype(jax.numpy.dtype(dtype)), place)

    def plain(a):
        return np.asarray(a).astype("float64" if dtype == "float64" else "float32")

    x, dout = native(x), native(dout)

    def both(f):  # one compilation for the value and the gradients
        def call(p, x, dout):
            out, pull = jax.vjp(f, p, x)
            return out, *pull(dout)

        return jax.jit(call, compiler_options=compiler_options)

    if case.style == "function":
        call = both(lambda p, x: block.block(p, x, case.n_head, implementation=implementation))
        out, dparams, dx = call(mapped(native, params), x, dout)
        return plain(out), plain(dx), mapped(plain, dparams)
    module = block.Block(case.n_embd, case.n_head, implementation=implementation)
    graph, state = nnx.split(module)
    module = nnx.merge(graph, jax.tree.map(lambda a: a.astype(dtype), state))
    exchange.from_tree(module, params)
    graph, state = nnx.split(module)
    out, dstate, dx = both(lambda state, x: nnx.merge(graph, state)(x))(state, x, dout)
    return plain(out), plain(dx), exchange.to_tree(nnx.merge(graph, dstate))
