"""Every family's dialect of the block: four routes to one value, all gradients, the oracle, dropout."""

import numpy as np
import pytest
from blocks import drawn, holding, leaves, part, part_by, tree_part_by
from families import DIALECTS, FAR, HEADS, SHARED_BY_ALL, C, T, every_dialect, random_tree, run
from frameworks import FRAMEWORKS, both_frameworks, to_native, to_numpy

from parity import oracle_block


@every_dialect
def test_the_frameworks_agree_in_value_and_every_gradient(name):
    tree, x, dout = random_tree(name), drawn(2, T, C), drawn(2, T, C, seed=2)
    torch, jax = (run((f, "function"), name, tree, x, dout) for f in FRAMEWORKS)
    assert part_by(jax[0], torch[0]) < 1e-13
    assert tree_part_by(jax[1], torch[1]) < 1e-13
    assert part_by(jax[2], torch[2]) < 1e-13


@both_frameworks
@pytest.mark.parametrize("name", ["gpt-neox", "bert", "mpt", "llama", "gemma2", "olmo2", "sandwich-decoder"])
def test_the_module_is_the_function(framework, name):
    """In torch its linear maps are torch's own, which add the bias in the product."""
    tree, x = random_tree(name), drawn(2, T, C)
    function, module = (run((framework, style), name, tree, x) for style in ("function", "module"))
    assert part_by(module, function) <= (0 if framework == "jax" else 1e-14)


@pytest.mark.parametrize("name", [name for name in DIALECTS if not DIALECTS[name].get("cross")])
def test_the_oracle_agrees_in_value_and_every_gradient(name):
    """Its frequencies are unscaled and it knows no ALiBi: these are given by their own effect or left out."""
    given = dict(DIALECTS[name])
    if given.get("positions") == "alibi" or "rotary_scaling" in given:
        given.pop("rotary_scaling", None)
        given.pop("positions", None)
        given = {key: value for key, value in given.items() if not key.startswith("rotary")}
    tree, x, dout = random_tree(name), drawn(2, T, C), drawn(2, T, C, seed=2)
    call = {"bias": SHARED_BY_ALL[name]["attn_bias"]} if name in SHARED_BY_ALL else {}
    renamed = {"norm_offset": "offset", "norm_placement": "placement"}
    kept = ("norm", "eps", "parallel", "causal", "qk_norm", "window", "softcap", "scale", *renamed)
    options = {renamed.get(key, key): value for key, value in given.items() if key in kept} | call
    if given.get("positions") == "rotary":
        turn = {
            key.removeprefix("rotary_"): value for key, value in given.items() if key.startswith("rotary")
        }
        if "dim" in turn:
            turn["rotary_dim"] = turn.pop("dim")
        options["turn"] = {"positions": FAR, **turn}
    gates = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}
    activation = given.get("activation", "gelu")
    options["activation"] = getattr(oracle_block, gates.get(activation, activation))
    want = oracle_block.evaluate(oracle_block.block, {"params": tree, "x": x}, dout, n_head=HEADS, **options)
    y, params, dx = run(("torch", "function"), name, tree, x, dout, dialect=given)
    assert part_by(y, want.pop("out")) < 1e-13
    assert part_by(dx, want.pop("dx")) < 1e-12
    got = {f"dparams.{path.replace('/', '.')}": g for path, g in leaves(params).items()}
    assert got.keys() == want.keys()
    assert {path for path in got if part_by(got[path], want[path]) > 1e-12} == set()


@pytest.mark.parametrize("source, target", [FRAMEWORKS, FRAMEWORKS[::-1]])
@pytest.mark.parametrize("name", ["llama", "gemma2", "olmo2", "sandwich-decoder"])
def test_a_tree_of_any_dialect_travels(source, target, name):
    tree = random_tree(name)
    for framework in (source, target):
        block = part(framework, "block").Block
        module = holding(framework, tree, lambda block=block: block(C, HEADS, **DIALECTS[name]))
        written = part(framework, "params").to_tree(module)
        assert list(leaves(written)) == list(leaves(tree))
        assert all((leaves(written)[path] == x).all() for path, x in leaves(tree).items())
        tree = written


@both_frameworks
@every_dialect
def test_init_makes_the_modules_tree_and_norms_of_one(framework, name):
    init, Block = part(framework, "block").init_block, part(framework, "block").Block
    if framework == "jax":
        import jax

        tree = jax.eval_shape(lambda key: init(key, C, HEADS, **DIALECTS[name]), jax.random.key(0))
        parameters = part(framework, "params").parameters
        want = jax.eval_shape(lambda: parameters(Block(C, HEADS, **DIALECTS[name])))
    else:
        tree = init(0, C, HEADS, **DIALECTS[name])
        want = part(framework, "params").parameters(Block(C, HEADS, **DIALECTS[name]))
        offset = DIALECTS[name].get("norm_offset", 0.0)
        for place in (place for place in tree if place.startswith("ln")):
            assert (to_numpy(tree[place][0]) + offset == 1).all()
            assert (to_numpy(want[place][0]) + offset == 1).all()
    shapes = {path: tuple(x.shape) for path, x in leaves(tree).items()}
    assert shapes == {path: tuple(x.shape) for path, x in leaves(want).items()}


# Dropout.

DROPS = {"attn_dropout": 0.5, "mlp_dropout": 0.25, "resid_dropout": 0.125}


def test_dropout_is_the_same_in_both_frameworks_and_styles_and_needs_a_seed():
    tree, x = random_tree("whisper"), drawn(2, T, C)
    dialect = DIALECTS["whisper"] | DROPS
    dry = run(("torch", "function"), "whisper", tree, x)
    np.testing.assert_array_equal(run(("torch", "function"), "whisper", tree, x, dialect=dialect), dry)
    seen = []
    for framework in FRAMEWORKS:
        for style in ("function", "module"):
            seen.append(run((framework, style), "whisper", tree, x, dialect=dialect, dropout_seed=7))
            assert part_by(seen[-1], seen[0]) < 1e-13
    other = run(("torch", "function"), "whisper", tree, x, dialect=dialect, dropout_seed=8)
    assert part_by(seen[0], dry) > 0.01
    assert part_by(other, seen[0]) > 0.01
    for one in DROPS:
        alone = DIALECTS["whisper"] | {one: DROPS[one]}
        assert (
            part_by(run(("torch", "function"), "whisper", tree, x, dialect=alone, dropout_seed=7), dry) > 0.01
        )


@both_frameworks
def test_drop_keeps_the_share_it_says_and_the_mean(framework):
    drop, spread = part(framework, "layers").drop, part(framework, "dropout").spread
    x = to_native(framework, np.ones((2, 100, 300)))
    first, second = spread(7, 2, x)
    y, z = (to_numpy(drop(x, 0.25, seed)) for seed in (first, second))
    assert set(np.unique(y)) == {0.0, 4 / 3}
    assert abs((y > 0).mean() - 0.75) < 5 * np.sqrt(0.25 * 0.75 / y.size)
    both = ((y > 0) & (z > 0)).mean()  # two places drop independently
    assert abs(both - 0.75**2) < 5 * np.sqrt(0.75**2 * (1 - 0.75**2) / y.size)
    assert drop(x, 0.25, None) is x


def test_flax_static_parts_are_hashable():
    from flax import nnx

    from attn_jax.block import Block

    graph, _ = nnx.split(nnx.eval_shape(lambda: Block(C, HEADS, **DIALECTS["llama"])))
    again, _ = nnx.split(nnx.eval_shape(lambda: Block(C, HEADS, **DIALECTS["llama"])))
    assert (hash(graph), graph) == (hash(again), again)


def test_torch_compiles_without_a_graph_break():
    import torch

    x = torch.from_numpy(drawn(2, T, C)).float()
    module = part("torch", "block").Block(C, HEADS, **DIALECTS["gemma2"] | DROPS, qk_norm="head")
    got = torch.compile(module, fullgraph=True, backend="aot_eager")(x, dropout_seed=3)
    assert part_by(to_numpy(got), to_numpy(module(x, dropout_seed=3))) < 1e-5
