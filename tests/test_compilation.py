"""Whole models compiled: one graph in torch and one program in JAX, for a pass and for a step of decoding."""

import numpy as np
import pytest
from blocks import holding, native_tree, part
from frameworks import package, to_native, to_numpy
from models import HEADS, LAYERS, MODELS, TOKENS, inputs_of, model, random_model, some
from test_encoder_decoder import INPUTS, PAIRS, random_pair

ROOM = 8


@pytest.fixture(autouse=True)
def one_linear_map(monkeypatch):
    """Uncompiled, torch maps few rows in another order of sums."""
    monkeypatch.setattr("attn_torch.layers._few_rows", lambda x, w: False)


def flat(x):
    return [leaf for part in x for leaf in flat(part)] if isinstance(x, tuple | list) else [x]


def compiled(f, **options):
    """f as one graph, and the list of the graphs that were made: one for each time it was compiled."""
    import torch

    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    return torch.compile(f, fullgraph=True, **({"backend": backend} | options)), graphs


def equal(got, want):
    for x, y in zip(flat(got), flat(want), strict=True):
        np.testing.assert_array_equal(to_numpy(x), to_numpy(y))


@some("bert", "gemma3", among=MODELS)
def test_torch_compiles_a_model_whole(name):
    f, x = model(("torch", "module"), name, random_model(name)), to_native("torch", inputs_of(name))
    run, graphs = compiled(f)
    equal(run(x, return_hidden=True), f(x, return_hidden=True))
    assert len(graphs) == 1


@some("gemma3", among=("gpt2", "mpt", "t5-causal"))
def test_torch_compiles_the_functions_too_and_for_every_length(name):
    """From the second length on torch calls sizes unknown."""
    f = model(("torch", "function"), name, random_model(name))
    run, _ = compiled(f)
    for n in (5, 4):
        tokens = to_native("torch", TOKENS[:, :n])
        equal(run(tokens), f(tokens))


@some("t5-causal", among=("gpt2", "gemma3", "bert"))
def test_torch_differentiates_a_compiled_model(name):
    import torch

    f, x = model(("torch", "module"), name, random_model(name)), to_native("torch", inputs_of(name))

    def gradients(run):
        return torch.autograd.grad(sum((y * y).sum() for y in flat(run(x))), list(f.parameters()))

    equal(gradients(compiled(f, backend="aot_eager")[0]), gradients(f))


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_torch_compiles_an_encoder_and_a_decoder_whole(name):
    both = part("torch", "encoder_decoder")
    f = holding("torch", random_pair(name), lambda: both.EncoderDecoder(**PAIRS[name]))
    arrays = [to_native("torch", x) for x in (INPUTS[name], TOKENS)]
    run, graphs = compiled(f)
    equal(run(*arrays), f(*arrays))
    assert len(graphs) == 1


@some("gemma3", among=("gpt2", "mpt", "t5-causal"))
@pytest.mark.parametrize(
    "kind", ["dense", *[pytest.param(k, marks=pytest.mark.slow) for k in ("sliding", "paged")]]
)
def test_torch_compiles_one_step_of_decoding_for_all(name, kind):
    import torch

    f, tokens = model(("torch", "module"), name, random_model(name)), to_native("torch", TOKENS)
    run, graphs = compiled(f)
    with torch.no_grad():
        caches = [part("torch", "generate").empty(f, 2, ROOM, kind) for _ in range(2)]
        ys = [[], []]
        for t in range(5):
            for i, step in enumerate((run, f)):
                y, caches[i] = step(tokens[:, t : t + 1], caches=caches[i])
                ys[i].append(y)
    assert len(graphs) == 1
    want = to_numpy(f(tokens))
    for y in ys:
        assert abs(np.concatenate(to_numpy(y), 1) - want).max() < 1e-13 * abs(want).max()


def test_jax_compiles_one_step_of_the_functional_style_for_all():
    import jax

    P, name, traced = package("jax"), "gemma3", []
    params, tokens = native_tree("jax", random_model(name)), to_native("jax", TOKENS)
    layer = params["blocks"][0]["attn"]["w_qkv"]
    caches = tuple(P.dense_cache(2, 1, ROOM, 8, dtype=layer.dtype) for _ in range(LAYERS))

    @jax.jit
    def step(params, tokens, caches):
        traced.append(tokens.shape)
        return P.transformer(params, tokens, HEADS, caches=caches, **MODELS[name])

    ys = []
    for t in range(5):
        y, caches = step(params, tokens[:, t : t + 1], caches)
        ys.append(y)
    want = to_numpy(jax.jit(lambda p, x: P.transformer(p, x, HEADS, **MODELS[name]))(params, tokens))
    assert abs(np.concatenate(to_numpy(ys), 1) - want).max() < 1e-13 * abs(want).max()
    assert traced == [(2, 1)]
