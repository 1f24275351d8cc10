"""GPT-2 models that decode, with the same parameters: ours in both frameworks, and transformers' own.

Each loader takes on (on_torch or on_jax), the cell, the parameter tree (NumPy, as params.from_tree takes it)
and tokens (B, T + 1). The model reads the first T of each row, and each call of the Program that is returned
reads the last one: (logits (B, V),).

A call is timed with what puts the context back to T positions for the next one, which moves no keys: ours
count a position less, attn_jax in its compiled program; transformers' cache is cropped, which gives views.
That it copies these in the next step is not for the crop: its cache grows by copying, in every step. Ours
have room for all positions that the model has.
"""

from functools import partial

from benchmarks.program import Program

POSITIONS = 1024  # rows of the table


def keywords(cell) -> dict:
    """The model as arguments of Transformer."""
    sizes = {"n_vocab": cell.V, "n_embd": cell.C, "n_head": cell.H, "n_layer": cell.L, "n_ctx": POSITIONS}
    return sizes | {"embedding_positions": "learned", "activation": "gelu_tanh"}


def one_back(caches):
    """The caches with a position less in each row."""
    return tuple(cache._replace(lengths=cache.lengths - 1) for cache in caches)


def torch_model(on, cell, tree, tokens):
    import torch

    from attn_torch import Transformer, dense_cache, from_tree

    model = Transformer(**keywords(cell))
    from_tree(model, tree)
    model.to(on.DEVICE)
    first, last = on.place(tokens, "").long().split([cell.T, 1], 1)
    caches = [dense_cache(cell.B, cell.H, POSITIONS, cell.D, device=on.DEVICE) for _ in range(cell.L)]
    with torch.no_grad():
        _, caches = model(first, caches=caches, logits_at=torch.zeros_like(first[:, 0]))

    @torch.no_grad()
    def call():
        nonlocal caches
        logits, caches = model(last, caches=caches)
        caches = one_back(caches)
        return (logits[:, 0],)

    return Program(call, backend=lambda: on.backend(call))


def jax_model(on, cell, tree, tokens):
    """Parameters are arguments of the program, and the caches' memory is used again."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from attn_jax import Transformer, dense_cache, from_tree

    model = Transformer(**keywords(cell))
    from_tree(model, tree)
    graph, state = nnx.split(model)

    @partial(jax.jit, donate_argnums=1)
    def read(state, caches, tokens):
        return nnx.merge(graph, state)(tokens, caches=caches, logits_at=0 * tokens[:, 0])[1]

    @partial(jax.jit, donate_argnums=1)
    def step(state, caches, tokens):
        logits, caches = nnx.merge(graph, state)(tokens, caches=caches)
        return logits[:, 0], one_back(caches)

    first, last = jnp.split(on.place(tokens, ""), [cell.T], 1)
    caches = tuple(dense_cache(cell.B, cell.H, POSITIONS, cell.D) for _ in range(cell.L))
    caches = read(state, caches, first)
    run, compile_s, estimate = on.ahead(step, state, caches, last)

    def call():
        nonlocal caches
        logits, caches = run(state, caches, last)
        return (logits,)

    return Program(call, compile_s, estimate, backend=lambda: on.backend(run.as_text()))


def transformers_model(on, cell, tree, tokens):
    """With the cache that it makes itself, and no mask, since no row has padding."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from parity.weights.entries import tensors
    from parity.weights.families import gpt2
    from parity.weights.folder import described, flattened

    config, entries = described(gpt2, "gpt2", keywords(cell), {})
    flat = dict(flattened(tree))
    state = {
        name: on.place(bits(), cell.dtype)
        for entry in entries
        for name, (_, _, bits) in tensors(entry, flat, cell.dtype)
    }
    state |= {name: state[gpt2.PREFIX + original] for name, original in gpt2.COPIES.items()}
    model = GPT2LMHeadModel(GPT2Config(**config)).eval().to(on.DEVICE)
    model.load_state_dict(state)
    first, last = on.place(tokens, "").long().split([cell.T, 1], 1)
    with torch.no_grad():
        cache = model(first, use_cache=True, logits_to_keep=1).cache

    @torch.no_grad()
    def call():
        logits = model(last, cache=cache, use_cache=True).logits
        cache.crop(-1)
        return (logits[:, 0],)

    return Program(call, backend=lambda: on.backend(call))


MODELS = {
    "transformers model": ("torch", transformers_model),
    "attn_torch model": ("torch", torch_model),
    "attn_jax model": ("jax", jax_model),
}
NEEDS = {"transformers model": "transformers"}  # name -> what it is of, besides the frameworks
