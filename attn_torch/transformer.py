"""The transformer: embeddings, blocks, a final norm, a head. Decoder, encoder, or of images, by its keywords.

Axes: V entries of the vocabulary, T/Tk positions, C channels (n_embd).
"""

import math
from functools import partial

import torch
from torch import nn

from . import calls, dialects, model_dialects
from .arithmetic import describe, known
from .block import Block, block, init_block
from .dropout import spread
from .embeddings import embed, shared_bias
from .heads import pooled, read_out
from .layers import drop, linear, linear_layer, norm_layer
from .multihead import drawn, split
from .norms import normalise


def init_transformer(key, n_vocab, n_embd, n_head, n_layer, **dialect):
    """Parameters of a transformer: wte (V, C), ln_f (gain (C,), bias (C,)), blocks: n_layer of init_block's.

    Or those of another dialect: the keywords are Transformer's.
    Weights and embeddings are normal, of standard deviation 1 / sqrt(C); biases are zero; norms leave their
    scale to the data; all are of the framework's default dtype.
    key: a PRNG key; where the framework has none, a seed or a generator, which draw other numbers.
    """
    return initial(key, model_dialects.transformer(n_vocab, n_embd, n_head, n_layer, **dialect), n_head)


def initial(key, given, n_head):
    """The parameters of a model_dialects.Dialect."""
    frame, n_layer = given.frame, given.frame.n_layer
    keys = split(key, n_layer + len(dialects.weights(given.shapes)))
    params = drawn(keys[n_layer:], given.shapes, frame.n_embd, dict(frame.norm)["norm_offset"])
    pairs = zip(keys[:n_layer], given.blocks, strict=True)
    return params | {"blocks": tuple(init_block(key, frame.n_embd, n_head, **block) for key, block in pairs)}


def transformer(
    params,
    tokens,
    n_head,
    context=None,
    *,
    mask=None,
    position_ids=None,
    type_ids=None,
    context_mask=None,
    dropout_seed=None,
    return_hidden=False,
    caches=None,
    new_lengths=None,
    logits_at=None,
    **dialect,
):
    """Logits of the tokens: embeddings, blocks, a norm, a head.

    params: as init_transformer's with the same keywords. tokens: (..., T) integers below V; where there is a
      patch, images (..., rows, columns, channels); where there is a stem, frames (..., frames, channels).
    mask: (..., T) bool, True = a real token: the others, padding, are read by none. position_ids: (T,) or
      (..., T) integers, by default counted over the real tokens from 0. type_ids: (..., T), by default zeros.
    context, context_mask: what cross-attention reads, (..., Tk, C), or a tuple of each block's context_cache
      of it; and its mask, (..., Tk). dropout_seed: an integer below 2**32; without one nothing is dropped.
    caches: of each block, what earlier calls have appended to; the tokens, (B, T), follow these.
      new_lengths: (B,) integers, how many of the T are real; the others are at the end. No mask then.
    logits_at: (...) integers below T, the one position of each row that the head reads; by default all.
    dialect: Transformer's keywords.
    Returns logits (..., T, V), or (..., T, C) where there is no head, or (..., V) with logits_at; with a pool
      also a vector (..., C) of each row; with return_hidden also n_layer + 1 states (..., T, C), before the
      first block and after each, the last one through the final norm; with caches also those that the next
      call takes.
    Raises ValueError if keywords, shapes and parameters do not agree, TypeError if one has another dtype.
    Source: Vaswani et al. 2017, section 3; Radford et al. 2019, section 2.3.
    """
    n_vocab, n_embd, n_layer, n_ctx = model_dialects.sizes(params, describe)
    if n_ctx is not None and dialect.get("embedding_positions") == "learned":
        dialect = {"n_ctx": n_ctx} | dialect
    given = model_dialects.transformer(n_vocab, n_embd, n_head, n_layer, **dialect)
    call = {"mask": mask, "position_ids": position_ids, "type_ids": type_ids, "dropout_seed": dropout_seed}
    call |= {"context": context, "context_mask": context_mask, "return_hidden": return_hidden}
    call |= {"caches": caches, "new_lengths": new_lengths, "logits_at": logits_at}
    return through(tokens, *functions(params, given, n_head), **call)


def functions(params, given, n_head):
    """parts, frame and layers, as through takes them, of these parameters and a model_dialects.Dialect."""
    dialects.agree(params, given.shapes, model_dialects.NAMES, describe)
    if len(params["blocks"]) != given.frame.n_layer:
        n = len(params["blocks"])
        raise ValueError(f"params: blocks: got {n}, wanted n_layer = {given.frame.n_layer}")
    arrays, norms, maps = model_dialects.kinds(given.shapes)
    parts = {name: params[name] for name in arrays}
    parts |= {name: partial(normalise, params=params[name], **dict(given.frame.norm)) for name in norms}
    parts |= {name: partial(linear, w=params[f"w_{name}"], b=params.get(f"b_{name}")) for name in maps}
    layers = [
        (partial(block, p, n_head=n_head, **keywords), keywords.get("cross", False))
        for p, keywords in zip(params["blocks"], given.blocks, strict=True)
    ]
    return parts, given.frame, layers


def through(
    tokens,
    parts,
    frame,
    layers,
    *,
    context=None,
    mask=None,
    position_ids=None,
    type_ids=None,
    context_mask=None,
    dropout_seed=None,
    return_hidden=False,
    caches=None,
    new_lengths=None,
    logits_at=None,
):
    """What transformer returns. parts: as in embeddings. layers: (a block, whether it reads the context)."""
    dialects.context(any(cross for _, cross in layers), context, context_mask)
    calls.caches(caches, frame, describe(mask), describe(new_lengths))
    calls.lengths([known(cache.lengths) for cache in caches or ()])
    first = None if caches is None else caches[0]
    x, at = embed(parts, frame, tokens, mask, position_ids, type_ids, first)
    calls.context(describe(context), tuple(x.shape[:-2]))
    seeds = spread(dropout_seed, frame.n_layer + 1, x)
    x = drop(x, frame.embed_dropout, seeds[0])
    call = {"attn_bias": shared_bias(parts, frame, at, first)}
    if mask is not None or position_ids is not None:
        call |= {"mask": every_query(mask), "position_ids": at}
    contexts = context if isinstance(context, tuple | list) else (context,) * frame.n_layer
    hidden, kept = [x], []
    for i, (layer, cross) in enumerate(layers):
        given = call | ({"context": contexts[i], "context_mask": every_query(context_mask)} if cross else {})
        if caches is None:
            x = layer(x=x, dropout_seed=seeds[i + 1], **given)
        else:
            x, cache = layer(
                x=x, cache=caches[i], new_lengths=new_lengths, dropout_seed=seeds[i + 1], **given
            )
            kept.append(cache)
        hidden.append(x)
    if "ln_f" in parts:
        x = hidden[-1] = parts["ln_f"](x)
    calls.logits_at(describe(logits_at), tuple(x.shape[:-1]))
    results = [read_out(parts, frame, x if logits_at is None else one_of_each(x, logits_at))]
    if frame.pool is not None:
        results.append(pooled(parts, frame, x, mask))
    if return_hidden:
        results.append(tuple(hidden))
    if caches is not None:
        results.append(tuple(kept))
    return tuple(results) if len(results) > 1 else results[0]


def one_of_each(x, at):
    """Of each row of x (..., T, C) the place (...) that at says: (..., C)."""
    return torch.take_along_dim(x, at[..., None, None], -2)[..., 0, :]


def every_query(mask):
    """A mask (..., T) of keys as one of scores, (..., 1, 1, T)."""
    return None if mask is None else mask[..., None, None, :]


class Transformer(nn.Module):
    """transformer as a module. tokens (..., T) -> logits (..., T, V).

    A call takes the keywords that are of one call: mask, position_ids, ..., logits_at.
    Its linear maps are drawn as the framework's own are; params.from_tree loads others.

    n_vocab: V, or None for a model of images or sounds without a head.
    The keywords, each the same for transformer and init_transformer, and besides them Block's:
    embedding_positions: "none", "learned" or "sinusoidal", added to the embeddings. n_ctx: rows of the table
      of learned ones. position_start: the table's row of position 0.
    n_type: types of tokens, with an embedding each. embed_norm: a norm after all embeddings. embed_scale:
      multiplies the tokens' embeddings. embed_dropout: as Block's resid_dropout.
    layers: mappings of keywords, over the others; block i takes the one at i modulo their number.
    relative_bias: {"n_bucket": 32, "max_distance": 128}: T5's bias, one table for all blocks.
    final_norm: a norm after the last block.
    head: "tied" to the embedding, "free" with weights of its own, or "none". head_bias: it has a bias.
      head_scale: multiplies what it reads. logit_softcap: logits become cap * tanh(logits / cap).
      head_transform: the activation of a linear map and norm before it.
    pool: "first" real token, "last", or "mean" of them: a call returns a vector of each row too. pooler: it
      goes through a linear map and tanh. projection: the size to which it is mapped then.
    patch: {"size": 16, "channels": 3, "image": 224}, and possibly "bias": images instead of tokens, 224 high
      and wide, or (high, wide).
    stem: channels of frames, instead of tokens: two convolutions, of which the second halves their number.
    """

    def __init__(self, n_vocab, n_embd, n_head, n_layer, **dialect):
        super().__init__()
        sizes = {"n_vocab": n_vocab, "n_embd": n_embd, "n_head": n_head, "n_layer": n_layer}
        self.held = dialects.held(sizes | dialect)
        self.frame, options, shapes = model_dialects.transformer(n_vocab, n_embd, n_head, n_layer, **dialect)
        self.names = tuple(shapes)
        self.arrays, self.norms, self.maps = map(tuple, model_dialects.kinds(shapes))
        for name in self.arrays:
            drawn = torch.zeros(shapes[name]) if name == "b_head" else torch.randn(shapes[name])
            setattr(self, name, nn.Parameter(drawn / math.sqrt(n_embd)))
        for name in self.norms:
            setattr(self, name, norm_layer(shapes, name, **dict(self.frame.norm)))
        for name in self.maps:
            setattr(self, name, linear_layer(shapes, name))
        self.blocks = nn.ModuleList(Block(n_embd, n_head, **given) for given in options)

    @property
    def keywords(self):
        """The constructor's arguments, in a dict."""
        return dialects.given(self.held)

    def forward(self, tokens, context=None, **call):
        parts = {name: getattr(self, name) for name in (*self.arrays, *self.norms, *self.maps)}
        layers = [(layer, layer.cross) for layer in self.blocks]
        return through(tokens, parts, self.frame, layers, context=context, **call)
