"""What reads a transformer's last block: a head that gives logits, a vector for all positions together.

Axes: V entries of the vocabulary, T positions, C channels (n_embd). parts, frame: as in embeddings.
"""

import jax.numpy as jnp

from .arithmetic import accumulator
from .layers import linear
from .mlp import ACTIVATIONS


def read_out(parts, frame, x):
    """x (..., T, C) as logits (..., T, V), or with head="none" as it is.

    Source: Press & Wolf 2017 (a tied head); Devlin et al. 2019, and its code (a transform before it).
    """
    if frame.head == "none":
        return x
    if frame.head_transform is not None:
        x = parts["ln_t"](ACTIVATIONS[frame.head_transform](parts["transform"](x)))
    if frame.head_scale != 1:
        x = (x.astype(accumulator(x.dtype)) * frame.head_scale).astype(x.dtype)
    logits = linear(x, parts["wte"].T, parts.get("b_head")) if frame.head == "tied" else parts["head"](x)
    if frame.logit_softcap is None:
        return logits
    z = logits.astype(accumulator(logits.dtype))
    return (frame.logit_softcap * jnp.tanh(z / frame.logit_softcap)).astype(logits.dtype)


def pooled(parts, frame, x, mask=None):
    """One vector (..., C) of x (..., T, C): the first or the last real token, or the mean of the real ones.

    Then tanh of a linear map of it if the model has a pooler, and the projection if it has one.
    mask: (..., T) bool, True = real. Where no token is real, 0 takes the vector's place.
    Source: Devlin et al. 2019, and its code (the pooler); Radford et al. 2021, section 2.4 (the projection).
    """
    real = jnp.ones_like(x[..., 0], dtype=jnp.bool) if mask is None else mask
    n, rank = real.sum(-1)[..., None], jnp.cumsum(real, -1)
    chosen = {"first": real & (rank == 1), "last": real & (rank == n), "mean": real}[frame.pool]
    wide = accumulator(x.dtype)
    total = jnp.where(chosen[..., None], x.astype(wide), 0.0).sum(-2)  # (..., C)
    x = (total / jnp.clip(chosen.sum(-1)[..., None], 1, None).astype(wide)).astype(x.dtype)
    if "pool" in parts:
        x = jnp.tanh(parts["pool"](x))
    return parts["projection"](x) if "projection" in parts else x
