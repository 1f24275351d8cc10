"""The transformer block: a residual stream that attention and an MLP read, normalised, and write to.

Axes: T/Tk positions, C channels (n_embd).
"""

from flax import nnx

from . import dialects
from .arithmetic import describe
from .dropout import spread
from .layers import check_channels, drop, norm_layer
from .mlp import MLP, mlp
from .multihead import (
    CausalSelfAttention,
    MultiHeadAttention,
    context_cache,
    drawn,
    init_attention,
    multi_head_attention,
    split,
)
from .norms import normalise


def init_block(key, n_embd, n_head=1, **dialect):
    """Parameters of a block: attn (init_attention's), ln1 and ln2, both (gain (C,), bias (C,)), the MLP's.

    The MLP's: w_fc (C, 4C), b_fc (4C,), w_proj (4C, C), b_proj (C,). C = n_embd.
    Or those of another dialect: the keywords are Block's. n_head only matters to these.
    Weights are normal, of standard deviation 1 / sqrt(C); biases are zero; norms leave their scale to the
    data; all are of the framework's default dtype.
    key: a PRNG key; where the framework has none, a seed or a generator, which draw other numbers.
    """
    given = dialects.block(n_embd, **dialect)
    shapes = given.norms | dialects.mlp_shapes(n_embd, **given.mlp)
    k1, *keys = split(key, 1 + len(dialects.weights(shapes)) + given.cross)
    params = {"attn": init_attention(k1, n_embd, n_head, causal=given.causal, **given.attn)}
    if given.cross:
        params["cross_attn"] = init_attention(keys.pop(), n_embd, n_head, cross=True, **given.cross_attn)
    return params | drawn(keys, shapes, n_embd, given.norm["norm_offset"])


def block(
    params,
    x,
    n_head,
    context=None,
    *,
    context_mask=None,
    context_lengths=None,
    dropout_seed=None,
    cache=None,
    **dialect,
):
    """x + attention(norm(x)), then x + mlp(norm(x)): pre-norm, so the stream itself is never normalised.

    params: as init_block's with the same keywords. x: (..., T, C), in the parameters' dtype.
    context, context_mask, context_lengths: what cross-attention reads, (..., Tk, C) or the
      its block_context_cache, and its mask and kv_lengths.
    dropout_seed: an integer below 2**32; without one nothing is dropped.
    dialect: Block's keywords, and those of one call that attend and scaled_dot_product_attention take for
      self-attention: cache, new_lengths, mask, attn_bias, position_ids, q_lengths, kv_lengths, ...
    Returns (..., T, C); with a cache also the cache that the next call takes.
    Raises ValueError if keywords, shapes and parameters do not agree, TypeError if x has another dtype.
    Source: Radford et al. 2019, section 2.3; Xiong et al. 2020, section 3.
    """
    n_embd = dialects.size(params, "ln1", 0, describe)
    given = dialects.block(n_embd, **dialect)
    check_channels(x, n_embd)
    branches = ("attn", "cross_attn") if given.cross else ("attn",)
    dialects.agree(params, given.norms, dialects.NORM_NAMES, describe, branches)
    dialects.context(given.cross, context, context_mask, context_lengths)
    seeds, p = spread(dropout_seed, 6, x), given.resid_dropout

    def norm(name, h):
        return normalise(h, params[name], **given.norm)

    def attn(h):
        nonlocal cache
        options = {"causal": given.causal, "dropout_seed": seeds[0], "cache": cache}
        h = multi_head_attention(params["attn"], h, n_head, **options, **given.attn)
        h, cache = h if cache is not None else (h, None)
        return drop(h, p, seeds[1])

    def feed(h):
        return drop(mlp(params, h, dropout_seed=seeds[2], **given.mlp), p, seeds[3])

    def read(h):
        options = {"mask": context_mask, "kv_lengths": context_lengths, "dropout_seed": seeds[4]}
        h = multi_head_attention(
            params["cross_attn"], h, n_head, context, cross=True, **options, **given.cross_attn
        )
        return drop(h, p, seeds[5])

    y = stream(x, norm, given.norm_placement, attn, feed, read if given.cross else None, given.parallel)
    return y if cache is None else (y, cache)


def block_context_cache(params, context, n_head, **dialect):
    """What a block's cross-attention reads of a context, computed once: block takes it for the context.

    params, n_head, dialect: as in block, with cross=True. context: (..., Tk, C). Returns a ContextCache.
    """
    given = dialects.block(dialects.size(params, "ln1", 0, describe), **dialect)
    dialects.context(given.cross, context)
    dialects.agree(params, given.norms, dialects.NORM_NAMES, describe, ("attn", "cross_attn"))
    return context_cache(params["cross_attn"], context, n_head, **given.cross_attn)


def stream(x, norm, norm_placement, attn, feed, read=None, parallel=False):
    """The stream x with what attention, cross-attention (read) and the MLP (feed) add to it.

    norm(name, h): h normalised by the norm of that name.
    """
    if parallel:
        return residual(x, norm, norm_placement, ln1=attn, ln2=feed)
    x = residual(x, norm, norm_placement, ln1=attn)  # across positions
    if read is not None:
        x = residual(x, norm, norm_placement, ln3=read)  # from the context
    return residual(x, norm, norm_placement, ln2=feed)  # within each


def residual(x, norm, norm_placement, **branches):
    """x plus each branch of x, under the name of its norm.

    norm_placement: "pre", x + f(norm(x)); "output", x + norm(f(x)); "sandwich", x + norm(f(norm(x)));
      "post", norm(x + f(x)).
    """
    y = x
    for name, f in branches.items():
        h = f(norm(name, x) if norm_placement in ("pre", "sandwich") else x)
        if norm_placement in ("output", "sandwich"):
            h = norm(name if norm_placement == "output" else f"{name}_post", h)
        y = y + h
    return norm(name, y) if norm_placement == "post" else y


class Block(nnx.Module):
    """block as a module. x (..., T, C) -> (..., T, C); in a call with a cache also that for the next call.

    Its parameters are drawn as the framework's own linear layers are; params.from_tree loads others.

    The keywords, each the same for block and init_block:
    n_kv_head, head_dim, qk_norm: as in multi_head_attention. hidden, activation: as in mlp.
    bias: True, False, or some of "norm", "qkv", "out", "fc", "proj", which have a bias each.
    norm, norm_offset, eps: every norm, as in norms.normalise. norm_placement: as in residual.
    parallel: attention and the MLP read the same x, each with its own norm.
    causal: as in scaled_dot_product_attention, by default True. cross: there is cross-attention between
      attention and the MLP; a call has a context then.
    positions, rotary_theta, rotary_dim, rotary_interleaved, rotary_scaling: as in attend.
    scale, softcap, window, precision, implementation: as in scaled_dot_product_attention.
    attn_dropout, mlp_dropout, resid_dropout: probabilities with which a weight, an activation, and what
      attention and the MLP give is dropped, in calls with a dropout_seed.
    Cross-attention has self-attention's n_kv_head, head_dim, qk_norm, scale, softcap, attn_dropout,
    precision and implementation.
    """

    def __init__(self, n_embd, n_head, *, rngs=None, **dialect):
        rngs = nnx.Rngs(0) if rngs is None else rngs
        given = dialects.block(n_embd, **dialect)
        self.n_embd, self.cross, self.parallel = n_embd, given.cross, given.parallel
        self.norm_placement, self.resid_dropout = given.norm_placement, given.resid_dropout

        def ln(name):
            return norm_layer(given.norms, name, **given.norm)

        Attention = CausalSelfAttention if given.causal else MultiHeadAttention
        self.ln_1, self.attn = ln("ln1"), Attention(n_embd, n_head, rngs=rngs, **given.attn)
        self.ln_1_post, self.ln_3 = ln("ln1_post"), ln("ln3")
        if given.cross:
            self.cross_attn = MultiHeadAttention(n_embd, n_head, cross=True, rngs=rngs, **given.cross_attn)
        self.ln_3_post = ln("ln3_post")
        self.ln_2, self.mlp, self.ln_2_post = ln("ln2"), MLP(n_embd, rngs=rngs, **given.mlp), ln("ln2_post")

    def __call__(
        self,
        x,
        context=None,
        *,
        context_mask=None,
        context_lengths=None,
        dropout_seed=None,
        cache=None,
        **call,
    ):
        check_channels(x, self.n_embd)
        dialects.context(self.cross, context, context_mask, context_lengths)
        seeds, p = spread(dropout_seed, 6, x), self.resid_dropout

        def norm(name, h):
            return getattr(self, name.replace("ln", "ln_"))(h)

        def attn(h):
            nonlocal cache
            h = self.attn(h, dropout_seed=seeds[0], cache=cache, **call)
            h, cache = h if cache is not None else (h, None)
            return drop(h, p, seeds[1])

        def feed(h):
            return drop(
                self.mlp(h, dropout_seed=seeds[2]) if seeds[2] is not None else self.mlp(h), p, seeds[3]
            )

        def read(h):
            options = {"mask": context_mask, "kv_lengths": context_lengths, "dropout_seed": seeds[4]}
            return drop(self.cross_attn(h, context, **options), p, seeds[5])

        y = stream(x, norm, self.norm_placement, attn, feed, read if self.cross else None, self.parallel)
        return y if cache is None else (y, cache)

    def context_cache(self, context):
        """What cross-attention reads of a context (..., Tk, C), computed once: a call takes it for that."""
        dialects.context(self.cross, context)
        return self.cross_attn.context_cache(context)
