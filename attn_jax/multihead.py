"""Attention in several subspaces at once: one projection gives every head its q, k, v, another mixes them.

Each level takes the keywords that are its own and hands the others down: the block, multi_head_attention,
attend, scaled_dot_product_attention, which refuses what it does not know.
Axes: T/Tk positions, C channels (n_embd), H heads (n_head), Hkv heads of k and v (n_kv_head), D head size.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from . import cached, dialects
from .arithmetic import accumulator, describe, iota
from .attention import scaled_dot_product_attention
from .cache import ContextCache, append, fitting, held, next_positions, over_keys
from .layers import check_channels, linear, linear_layer, norm_layer
from .norms import normalise
from .positions import alibi, rotary


def split(key, n):
    """n keys in place of one. A generator advances with every draw, so that it stands for all n."""
    return jax.random.split(key, n)


def normal(key, shape):
    """shape, independent, of mean 0 and variance 1, in the framework's default dtype."""
    return jax.random.normal(key, shape)


def drawn(keys, shapes, n_embd, norm_offset=0.0):
    """Parameters: weights of standard deviation 1 / sqrt(C), from a key each, and biases b_... of zeros.

    Norms have a gain of one, less norm_offset, and a bias of zeros, if shapes has one for them.
    """
    weights = dialects.weights(shapes)
    params = {w: normal(key, shapes[w]) / math.sqrt(n_embd) for w, key in zip(weights, keys, strict=True)}
    like = params[weights[0]]

    def vector(shape, value):
        return jnp.full(shape, value, like.dtype)

    for name in shapes.keys() - params.keys():
        if name.startswith("b_"):
            params[name] = vector(shapes[name], 0.0)
        else:
            params[name] = tuple(map(vector, shapes[name], (1.0 - norm_offset, 0.0)))
    return {name: params[name] for name in shapes}


def init_attention(key, n_embd, n_head=1, *, cross=False, **options):
    """Parameters of attention: w_qkv (C, 3C), b_qkv (3C,), w_out (C, C), b_out (C,), C = n_embd.

    Or those of another dialect: the keywords are multi_head_attention's. n_head only matters to these.
    Weights are normal, of standard deviation 1 / sqrt(C); biases are zero; norms leave their scale to the
    data; all are of the framework's default dtype.
    key: a PRNG key; where the framework has none, a seed or a generator, which draw other numbers.
    """
    shapes, norms, options = dialects.attention(n_embd, n_head, cross=cross, **options)
    dialects.attention_options(shapes["w_out"][0] // n_head, cross, **options)
    return drawn(split(key, 3 if cross else 2), shapes, n_embd, norms["norm_offset"])


def multi_head_attention(params, x, n_head, context=None, *, cross=False, qk_norm="none", **options):
    """Multi-head attention of x to itself, or with cross=True to the context.

    params: as init_attention's with the same keywords. The columns of w_qkv are q | k | v, those of w_kv
      k | v, and in each head 0 | head 1 | ...
    x: (..., T, C), in the parameters' dtype. context: (..., Tk, C), which cross-attention reads, or the
      context_cache of it.
    n_kv_head: heads of k and v, each read by n_head / n_kv_head of q's; by default n_head. head_dim: D, by
      default C / n_head.
    bias: True, False, or some of "qkv", "out" and, of qk_norm, "norm".
    qk_norm: "none"; "head", which normalises each head of q and k; "all", all heads as one vector.
    norm, norm_offset, eps: the norm that qk_norm means, as in normalise.
    options: attend's.
    Returns (..., T, C); with a cache also the cache that the next call takes.
    Raises ValueError if keywords, shapes and parameters do not agree, TypeError if x has another dtype.
    Source: Vaswani et al. 2017, section 3.2.2; Ainslie et al. 2023 (grouped heads); Dehghani et al. 2023,
    section 2 (qk_norm).
    """
    n_embd = dialects.size(params, "w_out", -1, describe)
    shapes, norms, options = dialects.attention(n_embd, n_head, cross=cross, qk_norm=qk_norm, **options)
    check_channels(x, n_embd)
    dialects.agree(params, shapes, dialects.ATTENTION_NAMES, describe)

    def project(name, x):
        return linear(x, params[f"w_{name}"], params.get(f"b_{name}"))

    def normed(name):
        return lambda t: normalise(t, params[name], **norms)

    q, kv = q_and_kv(project, x, context, cross, n_embd, shapes["w_out"][0])
    options |= {"qk_norm": qk_norm, "q_norm": normed("q_norm"), "k_norm": normed("k_norm")}
    y, cache = attend(q, kv, n_head, cross=cross, **options)
    return project("out", y) if cache is None else (project("out", y), cache)


def causal_self_attention(params, x, n_head, **options):
    """multi_head_attention with causal=True: a position reads itself and those before it.

    params: as init_attention's. x: (..., T, C), in the parameters' dtype. options: multi_head_attention's.
    Returns (..., T, C); with a cache also the cache that the next call takes.
    Raises ValueError if n_head does not divide C or x has another shape, TypeError if x has another dtype.
    Source: Vaswani et al. 2017, section 3.2.2.
    """
    return multi_head_attention(params, x, n_head, causal=True, **options)


def context_cache(params, context, n_head, *, qk_norm="none", **options):
    """What cross-attention reads of a context, computed once: multi_head_attention takes it for the context.

    params, n_head, qk_norm, options: as in multi_head_attention with cross=True. context: (..., Tk, C).
    Returns a ContextCache.
    """
    n_embd = dialects.size(params, "w_out", -1, describe)
    shapes, norms, _ = dialects.attention(n_embd, n_head, cross=True, qk_norm=qk_norm, **options)
    check_channels(context, n_embd, "context")
    dialects.agree(params, shapes, dialects.ATTENTION_NAMES, describe)
    kv = linear(context, params["w_kv"], params.get("b_kv"))
    D = shapes["w_out"][0] // n_head
    return held(*kv_heads(kv, D, qk_norm, lambda t: normalise(t, params["k_norm"], **norms)))


def q_and_kv(project, x, context, cross, n_embd, q_width):
    """q (..., T, H D) and kv (..., Tk, 2 Hkv D) by project(name, x): of x in one, or of x and the context."""
    dialects.context(cross, context)
    if isinstance(context, ContextCache):
        return project("q", x), context
    if cross:
        check_channels(context, n_embd, "context")
        return project("q", x), project("kv", context)
    qkv = project("qkv", x)
    return qkv[..., :q_width], qkv[..., q_width:]


def attend(
    q,
    kv,
    n_head,
    *,
    qk_norm="none",
    q_norm=None,
    k_norm=None,
    cross=False,
    causal=False,
    window=None,
    positions="none",
    rotary_theta=10000.0,
    rotary_dim=None,
    rotary_interleaved=False,
    rotary_scaling=None,
    position_ids=None,
    mask=None,
    attn_bias=None,
    attn_dropout=0.0,
    dropout_seed=None,
    cache=None,
    new_lengths=None,
    **core,
):
    """Attention of every head, and the heads side by side again.

    q: (..., T, H D). kv: (..., Tk, 2 Hkv D), k | v, or a ContextCache. q_norm, k_norm: functions, where
      qk_norm says.
    positions: "none"; "rotary", which turns q and k as positions.rotary does; "alibi", which adds
      positions.alibi to the scores. rotary_theta, rotary_dim, rotary_interleaved, rotary_scaling: rotary's.
    position_ids: (T,) or (..., T) integers, by default 0 ... T - 1, with a cache from each row's length on;
      where positions is "none" they are checked and not read, so that layers without positions take the same
      call.
    attn_bias: the bias of scaled_dot_product_attention, added to the scores.
    attn_dropout: probability with which a weight is dropped, in calls with a dropout_seed.
    causal, window, mask, core: scaled_dot_product_attention's; core holds scale, softcap, lengths, ...
    cache: what earlier calls appended to, and this one appends to (cache.append); attention is causal then,
      and x (B, T, C). mask and attn_bias are over all positions that there is room for.
    new_lengths: (B,) integers, how many of the T positions of each row are real; the others are at the end.
    Returns (..., T, H D), and the cache with the new positions or None.
    """
    D = q.shape[-1] // n_head
    turn = (rotary_theta, rotary_dim, rotary_interleaved, rotary_scaling)
    dialects.position_options(positions, causal, window, cross)
    dialects.rotary_options(D, *turn, used=positions == "rotary")
    dialects.probability("attn_dropout", attn_dropout)
    dialects.output_alone(core)
    core = {"causal": causal, "window": window, "mask": mask, "bias": attn_bias, **core}
    if cache is not None or new_lengths is not None:
        call = {name: describe(x) for name, x in core.items()} | {"dropout_seed": dropout_seed}
        cached.attention(cache, q.shape, cross, positions, position_ids, call)
    q = heads(q, D, qk_norm, q_norm)  # (..., H, T, D)
    k, v = kv if isinstance(kv, ContextCache) else kv_heads(kv, D, qk_norm, k_norm)  # each (..., Hkv, Tk, D)
    dialects.position_ids(describe(position_ids), q.shape[:-3], q.shape[-2])
    if positions != "none":
        at = k_at = next_positions(cache, q.shape[-2], q) if position_ids is None else position_ids
    if positions == "rotary":
        q, k = (rotary(t, at[..., None, :], *turn) for t in (q, k))
    if cache is not None:
        cache, k, v, k_at, call = append(cache, k, v, new_lengths)
        core |= {name: over_keys(core[name], k) for name in ("mask", "bias")} | call
    if positions == "alibi":
        k_at = iota(k.shape[-2], q) if k_at is None else k_at
        k_at = jnp.broadcast_to(k_at, (*at.shape[:-1], k.shape[-2]))
        far = alibi(n_head, at, k_at, accumulator(q.dtype))  # (..., H, T, Tk)
        bias = core["bias"]
        core["bias"] = far if bias is None else added(far, bias, (*q.shape[:-1], k.shape[-2]))
    if dropout_seed is not None and attn_dropout > 0:
        core = {"dropout_p": attn_dropout, "dropout_seed": dropout_seed, **core}
    y = merge_heads(scaled_dot_product_attention(q, k, v, **core))  # (..., T, H D)
    return y if cache is None else fitting(cache, y), cache


def added(x, y, shape):
    """x + y, both broadcast to shape, in the dtype of x."""
    return jnp.broadcast_to(x, shape) + jnp.broadcast_to(y, shape).astype(x.dtype)


def heads(x, D, qk_norm="none", norm=None):
    """(..., T, H D) -> (..., H, T, D), normalised as qk_norm says."""
    x = norm(x) if qk_norm == "all" else x
    x = split_heads(x, x.shape[-1] // D)
    return norm(x) if qk_norm == "head" else x


def kv_heads(kv, D, qk_norm="none", k_norm=None):
    """k | v, (..., Tk, 2 Hkv D), as k and v, each (..., Hkv, Tk, D)."""
    k, v = kv[..., : kv.shape[-1] // 2], kv[..., kv.shape[-1] // 2 :]
    return heads(k, D, qk_norm, k_norm), heads(v, D)


def split_heads(x, n_head):
    """(..., T, H D) -> (..., H, T, D)."""
    return x.reshape(*x.shape[:-1], n_head, x.shape[-1] // n_head).swapaxes(-3, -2)


def merge_heads(x):
    """(..., H, T, D) -> (..., T, H D)."""
    x = x.swapaxes(-3, -2)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


class MultiHeadAttention(nnx.Module):
    """multi_head_attention as a module, with its keywords. x (..., T, C) -> (..., T, C).

    c_attn projects to q | k | v; in cross-attention c_q projects x, and c_kv the context. A call takes the
    keywords that are of one call: mask, attn_bias, position_ids, q_offset, lengths, ids, dropout_seed, and
    cache and new_lengths, with which it also returns the cache that the next call takes.
    """

    def __init__(self, n_embd, n_head, *, cross=False, qk_norm="none", rngs=None, **options):
        rngs = nnx.Rngs(0) if rngs is None else rngs
        shapes, norms, options = dialects.attention(n_embd, n_head, cross=cross, qk_norm=qk_norm, **options)
        dialects.attention_options(shapes["w_out"][0] // n_head, cross, **options)
        self.n_embd, self.n_head, self.cross, self.qk_norm = n_embd, n_head, cross, qk_norm
        self.width, self.options = shapes["w_out"][0], dialects.frozen(options)
        self.c_attn, self.c_q, self.c_kv = (linear_layer(shapes, name, rngs) for name in ("qkv", "q", "kv"))
        self.q_norm, self.k_norm = (norm_layer(shapes, name, **norms) for name in ("q_norm", "k_norm"))
        self.c_proj = linear_layer(shapes, "out", rngs)

    def __call__(self, x, context=None, **call):
        check_channels(x, self.n_embd)
        layers = {"qkv": self.c_attn, "q": self.c_q, "kv": self.c_kv}

        def project(name, x):
            return layers[name](x)

        q, kv = q_and_kv(project, x, context, self.cross, self.n_embd, self.width)
        norms = {"qk_norm": self.qk_norm, "q_norm": self.q_norm, "k_norm": self.k_norm}
        y, cache = attend(q, kv, self.n_head, cross=self.cross, **norms, **dict(self.options), **call)
        return self.c_proj(y) if cache is None else (self.c_proj(y), cache)

    def context_cache(self, context):
        """What cross-attention reads of a context (..., Tk, C), computed once: a call takes it for that."""
        dialects.context(self.cross, context)
        check_channels(context, self.n_embd, "context")
        return held(*kv_heads(self.c_kv(context), self.width // self.n_head, self.qk_norm, self.k_norm))


class CausalSelfAttention(MultiHeadAttention):
    """causal_self_attention as a module, with its keywords. x (..., T, C) -> (..., T, C)."""

    def __init__(self, n_embd, n_head, **options):
        super().__init__(n_embd, n_head, causal=True, **options)
