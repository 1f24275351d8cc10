"""What is done with blocks: parts hooked and replaced, copies, training, compilation and the transforms."""

import copy
import pickle

import numpy as np
import pytest
from blocks import (
    block_module,
    drawn,
    jitted,
    leaves,
    native_tree,
    part_by,
    random_tree,
    run_block,
)
from frameworks import both_frameworks, to_native, to_numpy

C, HEADS = 12, 3
TREE, X, DOUT = random_tree(C), drawn(2, 5, C), drawn(2, 5, C, seed=2)


@both_frameworks
def test_projections_are_called_as_modules_and_can_be_replaced(framework):
    """As LoRA does it: another module that holds the linear map and adds something to what it gives."""
    block, x = block_module(framework, HEADS, TREE), to_native(framework, X)
    run = jitted(framework, lambda x: block(x))
    before = to_numpy(run(x))
    block.attn.c_attn = wrapped(framework, block.attn.c_attn, added=0.0)
    block.attn.c_proj = wrapped(framework, block.attn.c_proj, added=1.0)
    block.mlp.c_fc = wrapped(framework, block.mlp.c_fc, added=0.0)
    block.mlp.c_proj = wrapped(framework, block.mlp.c_proj, added=-1.0)
    after = to_numpy(jitted(framework, lambda x: block(x))(x))  # the norm takes away what c_proj added
    assert part_by(after, before) < 1e-13
    block.mlp.c_proj = block.mlp.c_proj.inner
    assert part_by(to_numpy(jitted(framework, lambda x: block(x))(x)), before + 1) < 1e-13


def wrapped(framework, inner, added):
    """A module that calls inner and adds a number."""
    if framework == "torch":
        import torch

        class Wrapped(torch.nn.Module):
            def forward(self, x):
                return self.inner(x) + added
    else:
        from flax import nnx

        class Wrapped(nnx.Module):
            def __call__(self, x):
                return self.inner(x) + added

    module = Wrapped()
    module.inner = inner
    return module


@pytest.mark.parametrize("n_out", [6, 7])
@pytest.mark.parametrize("rows", [0, 1, 2, 4])
def test_torch_maps_few_rows_as_it_does_many(rows, n_out, monkeypatch):
    """Forward and backward; few are another product, where that is faster."""
    import torch

    from attn_torch.layers import Linear, linear

    monkeypatch.setattr("attn_torch.layers._of_amd", lambda: True)
    layer = Linear(5, n_out).double()
    w, b = layer.weight.T, layer.bias
    x, dout = (torch.from_numpy(drawn(9, n, seed=n)) for n in (5, n_out))
    want = x[:rows] @ w + b
    grads = dout[:rows] @ w.T, dout[:rows].T @ x[:rows], dout[:rows].sum(0)
    for f in (layer, lambda x: linear(x, w, b)):
        few = x[:rows].clone().requires_grad_()
        out = f(few)
        got = torch.autograd.grad(out, (few, layer.weight, b), dout[:rows])
        for y, z in zip((out, *got), (want, *grads), strict=True):
            assert y.shape == z.shape
            assert rows == 0 or part_by(to_numpy(y), to_numpy(z)) < 1e-13
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        layer(torch.ones(rows + 1, 1, dtype=torch.float64))


def test_torch_modules_have_the_names_that_checkpoints_use_and_can_be_copied():
    import torch

    from attn_torch.block import Block

    block = Block(C, HEADS)
    parts = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    assert list(block.state_dict()) == [f"{p}.{leaf}" for p in parts for leaf in ("weight", "bias")]
    assert isinstance(block.ln_1, torch.nn.LayerNorm)
    x = torch.from_numpy(X).float()
    other = Block(C, HEADS)
    other.load_state_dict(block.state_dict())
    for twin in (copy.deepcopy(block), pickle.loads(pickle.dumps(block)), other):
        assert torch.equal(twin(x), block(x))


def test_torch_hooks_fire():
    from attn_torch.block import Block

    block, fired = Block(C, HEADS), []
    for name, module in block.named_modules():
        module.register_forward_hook(lambda *_, name=name: fired.append(name))
    block(to_native("torch", X, "float32"))
    assert fired == [
        *("ln_1", "attn.c_attn", "attn.c_proj", "attn"),
        *("ln_2", "mlp.c_fc", "mlp.c_proj", "mlp", ""),
    ]


def test_flax_modules_can_be_split_jitted_and_copied():
    from flax import nnx

    from attn_jax.block import Block

    block, x = Block(C, HEADS), to_native("jax", X, "float32")
    paths = {".".join(path) for path, _ in nnx.to_flat_state(nnx.state(block))}
    parts = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert paths == {f"{p}.{leaf}" for p in parts for leaf in ("kernel", "bias")} | {
        f"{p}.{leaf}" for p in ("ln_1", "ln_2") for leaf in ("weight", "bias")
    }
    run = nnx.jit(lambda block, x: block(x))
    y = run(block, x)
    for twin in (nnx.merge(*nnx.split(block)), nnx.clone(block), copy.deepcopy(block)):
        np.testing.assert_array_equal(run(twin, x), y)


def test_flax_trains():
    import jax
    from flax import nnx

    from attn_jax.block import Block

    block, x, target = Block(C, HEADS), *(to_native("jax", t, "float32") for t in (X, DOUT))

    @nnx.jit
    def step(block):
        loss, gradients = nnx.value_and_grad(lambda block: ((block(x) - target) ** 2).mean())(block)
        nnx.update(block, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(block), gradients))
        return loss

    assert float(step(block)) > float(step(block))


def test_torch_trains():
    import torch

    from attn_torch.block import Block

    torch.manual_seed(0)
    block, x, target = Block(C, HEADS), *(to_native("torch", t, "float32") for t in (X, DOUT))
    optimizer, losses = torch.optim.SGD(block.parameters(), lr=0.1), []
    for _ in range(2):
        optimizer.zero_grad()
        losses.append(((block(x) - target) ** 2).mean())
        losses[-1].backward()
        optimizer.step()
    assert losses[0] > losses[1]
    assert all((p.grad != 0).any() for p in block.parameters())


def test_flax_modules_draw_from_rngs():
    from flax import nnx

    from attn_jax.block import Block

    first, same, other = (Block(C, HEADS, rngs=rngs) for rngs in (None, nnx.Rngs(0), nnx.Rngs(1)))
    kernels = [np.asarray(b.mlp.c_fc.kernel[...]) for b in (first, same, other)]
    assert np.array_equal(kernels[0], kernels[1])
    assert not np.array_equal(kernels[0], kernels[2])


def test_torch_compiles_without_a_graph_break():
    import torch

    from attn_torch.block import Block, block, init_block

    module, params, x = Block(C, HEADS), init_block(0, C), torch.from_numpy(X).float()
    for f, want in ((module, module(x)), (lambda x: block(params, x, HEADS), block(params, x, HEADS))):
        got = torch.compile(f, fullgraph=True, backend="aot_eager")(x)
        assert part_by(to_numpy(got), to_numpy(want)) < 1e-5


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_torch_func():
    import torch

    from attn_torch.block import block

    params, x = native_tree("torch", TREE), torch.from_numpy(X)

    def run(params, x):
        return block(params, x, HEADS)

    one_by_one = torch.func.vmap(run, in_dims=(None, 0))(params, x)
    assert part_by(to_numpy(one_by_one), to_numpy(run(params, x))) < 1e-13
    per_row = torch.func.vmap(torch.func.grad(lambda p, x: run(p, x).sum()), in_dims=(None, 0))(params, x)
    whole = torch.func.grad(lambda p, x: run(p, x).sum())(params, x)
    for path, g in leaves(whole).items():
        assert part_by(to_numpy(leaves(per_row)[path].sum(0)), to_numpy(g)) < 1e-12
    _, tangent = torch.func.jvp(lambda x: run(params, x), (x,), (torch.from_numpy(DOUT),))
    dx = torch.func.vjp(lambda x: run(params, x), x)[1](x)[0]
    assert abs((tangent * x).sum() / (dx * torch.from_numpy(DOUT)).sum() - 1) < 1e-12
    assert torch.autograd.gradcheck(lambda x: run(params, x), x[:1, :2].clone().requires_grad_())


def test_jax_transforms():
    import jax

    from attn_jax.block import block

    params, x, t = native_tree("jax", TREE), to_native("jax", X), to_native("jax", DOUT)

    def run(x):
        return block(params, x, HEADS)

    @jax.jit
    def transformed(x, t):
        y, tangent = jax.jvp(run, (x,), (t,))
        (dx,) = jax.vjp(jax.checkpoint(jax.vmap(run)), x)[1](y)
        return y, tangent, dx

    y, tangent, dx = map(np.asarray, transformed(x, t))
    assert part_by(y, run_block(("torch", "function"), TREE, X, HEADS)) < 1e-13
    assert abs((tangent * y).sum() / (dx * DOUT).sum() - 1) < 1e-12


def test_jax_products_ask_for_full_float32_on_every_device():
    import jax
    from flax import nnx

    from attn_jax.block import Block, block, init_block

    graph, state = nnx.split(nnx.eval_shape(lambda: Block(C, HEADS, implementation="reference")))
    params = jax.eval_shape(lambda key: init_block(key, C), jax.random.key(0))
    params, x = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, "float32"), (params, X))
    for program in (
        jax.make_jaxpr(lambda state, x: nnx.merge(graph, state)(x))(state, x),
        jax.make_jaxpr(lambda params, x: block(params, x, HEADS, implementation="reference"))(params, x),
    ):
        precisions = [eqn.params["precision"] for eqn in products(program.jaxpr)]
        assert len(precisions) == 6  # q k v together, scores, weighted values, and out; then the MLP's two
        assert all(p == (jax.lax.Precision.HIGHEST,) * 2 for p in precisions)


def products(jaxpr):
    """Every dot_general of a program and of the programs within it."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            yield eqn
        for inner in eqn.params.values():
            if hasattr(inner, "jaxpr"):
                yield from products(inner.jaxpr)
