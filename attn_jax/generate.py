"""Generation: token after token, each drawn from what the model says of those before it.

Axes: B rows, T positions of the prompt, N positions that there is room for, V entries of the vocabulary.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from . import calls, dialects, model_dialects
from .arithmetic import INDEX, describe, iota
from .cache import dense_cache, paged_cache, sliding_cache
from .encoder_decoder import EncoderDecoder
from .sampling import next_token
from .transformer import Transformer


def generate(
    model,
    tokens,
    n_new,
    *,
    inputs=None,
    mask=None,
    inputs_mask=None,
    temperature=0.0,
    top_k=None,
    top_p=None,
    seed=None,
    stop=None,
    cache="dense",
):
    """n_new tokens to follow each row of tokens.

    model: a Transformer with causal=True and a head, or an EncoderDecoder. Parameters of the functional style
      go into one by params.from_tree.
    tokens: (..., T) integers, the prompts. mask: (..., T) bool, True = a real token: prompts of several
      lengths have padding on either side.
    inputs: what an EncoderDecoder's encoder reads, (..., Tk) or frames; inputs_mask: its mask, (..., Tk).
    temperature: 0 takes the likeliest token, the first of equals; else logits are divided by it and a token
      is drawn, of the top_k likeliest if that is given, and of the fewest that are top_p likely together.
    seed: an integer below 2**32: draws are a pure function of it, the row's number and the step.
    stop: a token or several: a row that has one is at its end, and repeats it.
    cache: "dense"; "sliding", with rings where a block has a window; "paged"; None, which computes all anew
      for each token.
    Returns (..., n_new) integers.
    Raises TypeError or ValueError, naming the argument, what was got and what was wanted.
    """
    decoder = check(model, tokens, mask, inputs, inputs_mask)
    T = tokens.shape[-1]
    calls.generation(decoder.frame, T, n_new, temperature, top_k, top_p, describe(seed), stop, cache)
    lead = tokens.shape[:-1]
    tokens = tokens.astype(INDEX)
    if inputs is not None:
        row = calls.inputs(describe(inputs), describe(inputs_mask), model.encoder.frame, tuple(lead))
        inputs = inputs.reshape(-1, *row)
        inputs_mask = None if inputs_mask is None else inputs_mask.reshape(-1, inputs_mask.shape[-1])
    tokens, lengths = to_the_left(*(None if x is None else x.reshape(-1, T) for x in (tokens, mask)))
    calls.some_real(describe(lengths))
    temperature, top_p = float(temperature) or None, None if top_p is None else float(top_p)
    draw = {"temperature": temperature, "top_p": top_p, "seed": seed}
    mode = {"n_new": n_new, "stop": calls.stops(stop), "kind": cache, "top_k": top_k}
    out = run(model, tokens, lengths, inputs, inputs_mask, draw, **mode)
    return out.reshape(*lead, n_new)


def check(model, tokens, mask, inputs, inputs_mask):
    """The decoder, if these are a model that has one, a prompt for it, and inputs if there is an encoder."""
    if not isinstance(model, Transformer | EncoderDecoder):
        raise TypeError(f"model: got {type(model).__name__}, wanted Transformer or EncoderDecoder")
    pair = isinstance(model, EncoderDecoder)
    decoder = model.decoder if pair else model
    if pair and inputs is None:
        raise ValueError("inputs: got None, wanted what the model's encoder reads")
    for name, x in {"inputs": inputs, "inputs_mask": inputs_mask}.items():
        if x is not None and not pair:
            raise ValueError(f"{name}: got an array, wanted None for a model without an encoder")
    calls.tokens("tokens", describe(tokens), decoder.frame.n_vocab)
    calls.mask("mask", describe(mask), tuple(tokens.shape))
    return decoder


def to_the_left(tokens, mask):
    """tokens (B, T) with the real ones of each row first, in their order; and how many these are, (B,).

    Both as they are, and None, without a mask.
    """
    if mask is None:
        return tokens, None
    order = jnp.argsort(~mask, axis=-1, stable=True)
    return jnp.take_along_axis(tokens, order, -1), mask.sum(-1).astype(INDEX)


def started(model, tokens, lengths, inputs, inputs_mask, n_new, kind):
    """(decode, logits (B, V), past): the decoder as a function, what it says after the prompt, what it keeps.

    past: a cache of each block; or, without caches, the tokens and how many there are.
    """
    decoder, room = model, tokens.shape[-1] + n_new - 1
    context = {}
    if isinstance(model, EncoderDecoder):
        decoder, x = model.decoder, model.encoder(inputs, mask=inputs_mask)
        caches = tuple(block.context_cache(x) if block.cross else None for block in decoder.blocks)
        context = {"context": caches, "context_mask": inputs_mask}

    def decode(tokens, **call):
        return decoder(tokens, **context, **call)

    last = jnp.full_like(tokens[:, 0], tokens.shape[-1], dtype=INDEX) if lengths is None else lengths
    if kind is None:
        unwritten = jnp.zeros((tokens.shape[0], n_new - 1), INDEX)
        past = jnp.concatenate((tokens, unwritten), -1), last
        return decode, anew(decode, *past), past
    caches = empty(decoder, tokens.shape[0], room, kind)
    logits, caches = decode(tokens, caches=caches, new_lengths=lengths, logits_at=last - 1)
    return decode, logits, caches


def followed(decode, token, past, kind):
    """(logits (B, V), past) once each row has its token (B,) too."""
    if kind is None:
        tokens, lengths = past
        here = iota(tokens.shape[-1], tokens)[None] == lengths[:, None]
        past = jnp.where(here, token[:, None], tokens), lengths + 1
        return anew(decode, *past), past
    logits, past = decode(token[:, None], caches=past)
    return logits[:, 0], past


def anew(decode, tokens, lengths):
    """The logits (B, V) after the first tokens of each row, as many as lengths (B,) says."""
    real = iota(tokens.shape[-1], tokens)[None] < lengths[:, None]
    return decode(tokens, mask=real, logits_at=lengths - 1)


def empty(decoder, batch, room, kind):
    """An empty cache for each block, of this kind. room: positions of each row."""
    frame, blocks, _ = model_dialects.transformer(**decoder.keywords)
    like, caches = decoder.wte, []
    for keywords in blocks:
        heads = (keywords.get(name) for name in ("n_kv_head", "head_dim"))
        n_kv_head, head_dim = dialects.heads(frame.n_embd, decoder.keywords["n_head"], *heads)
        window = keywords.get("window")
        left = window[0] if isinstance(window, tuple | list) else window
        make, n = {"paged": paged_cache}.get(kind, dense_cache), room
        if kind == "sliding" and left is not None:
            make, n = sliding_cache, window
        caches.append(make(batch, n_kv_head, n, head_dim, dtype=like.dtype))
    return tuple(caches)


def run(model, tokens, lengths, inputs, inputs_mask, draw, *, n_new, stop, kind, top_k):
    """n_new tokens (B, n_new) after tokens (B, T), of which lengths (B,) are real.

    draw: keywords of next_token. The rest is generate's.
    """
    graph, state = nnx.split(model)
    if draw["seed"] is not None:
        draw = draw | {"seed": np.uint32(draw["seed"])}
    mode = {"n_new": n_new, "stop": stop, "kind": kind, "top_k": top_k}
    return _run(graph, state, tokens, lengths, inputs, inputs_mask, draw, **mode)


@partial(jax.jit, static_argnames=("graph", "n_new", "stop", "kind", "top_k"))
def _run(graph, state, tokens, lengths, inputs, inputs_mask, draw, *, n_new, stop, kind, top_k):
    """run, as one program: a loop whose step is compiled once."""
    model = nnx.merge(graph, state)
    decode, logits, past = started(model, tokens, lengths, inputs, inputs_mask, n_new, kind)
    token = next_token(logits, step=0, top_k=top_k, **draw)
    out = jnp.zeros((len(token), n_new), INDEX).at[:, 0].set(token)

    def unfinished(carry):
        step, _, done, _, _ = carry
        return (step < n_new) & ~jnp.all(done)

    def step_on(carry):
        step, token, done, past, out = carry
        logits, past = followed(decode, token, past, kind)
        new = next_token(logits, step=step, top_k=top_k, **draw)
        token = jnp.where(done, token, new)
        return step + 1, token, done | ended(token, stop), past, out.at[:, step].set(token)

    carry = (jnp.asarray(1, INDEX), token, ended(token, stop), past, out)
    step, token, _, _, out = jax.lax.while_loop(unfinished, step_on, carry)
    return jnp.where(iota(n_new, out)[None] < step, out, token[:, None])


def ended(token, stop):
    """Whether each token (B,) is one of stop."""
    done = jnp.zeros_like(token, dtype=jnp.bool)
    for end in stop:
        done = done | (token == end)
    return done
