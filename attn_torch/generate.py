"""Generation: token after token, each drawn from what the model says of those before it.

Axes: B rows, T positions of the prompt, N positions that there is room for, V entries of the vocabulary.
"""

import torch

from . import calls, dialects, model_dialects
from .arithmetic import INDEX, describe, iota
from .cache import dense_cache, paged_cache, sliding_cache
from .encoder_decoder import EncoderDecoder
from .sampling import next_token
from .transformer import Transformer


@torch.no_grad()
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
    tokens = tokens.to(INDEX)
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
    order = torch.argsort(~mask, dim=-1, stable=True)
    return torch.take_along_dim(tokens, order, -1), mask.sum(-1).to(INDEX)


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

    last = torch.full_like(tokens[:, 0], tokens.shape[-1], dtype=INDEX) if lengths is None else lengths
    if kind is None:
        unwritten = torch.zeros_like(tokens[:, :1]).expand(-1, n_new - 1)
        past = torch.concatenate((tokens, unwritten), -1), last
        return decode, anew(decode, *past), past
    caches = empty(decoder, tokens.shape[0], room, kind)
    logits, caches = decode(tokens, caches=caches, new_lengths=lengths, logits_at=last - 1)
    return decode, logits, caches


def followed(decode, token, past, kind):
    """(logits (B, V), past) once each row has its token (B,) too."""
    if kind is None:
        tokens, lengths = past
        here = iota(tokens.shape[-1], tokens)[None] == lengths[:, None]
        past = torch.where(here, token[:, None], tokens), lengths + 1
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
        caches.append(make(batch, n_kv_head, n, head_dim, dtype=like.dtype, device=like.device))
    return tuple(caches)


def run(model, tokens, lengths, inputs, inputs_mask, draw, *, n_new, stop, kind, top_k):
    """n_new tokens (B, n_new) after tokens (B, T), of which lengths (B,) are real.

    draw: keywords of next_token. The rest is generate's.
    """
    draw = draw | {"top_k": top_k}
    decode, logits, past = started(model, tokens, lengths, inputs, inputs_mask, n_new, kind)
    token = next_token(logits, step=0, **draw)
    done, out = ended(token, stop), [token]
    while len(out) < n_new and not (stop and done.all()):
        logits, past = followed(decode, token, past, kind)
        new = next_token(logits, step=len(out), **draw)
        token = torch.where(done, token, new) if stop else new
        done = done | ended(token, stop)
        out.append(token)
    return torch.stack(out + [token] * (n_new - len(out)), -1)


def ended(token, stop):
    """Whether each token (B,) is one of stop."""
    done = torch.zeros_like(token, dtype=torch.bool)
    for end in stop:
        done = done | (token == end)
    return done
