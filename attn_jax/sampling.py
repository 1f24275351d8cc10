"""The next token, by its logits: the likeliest, or drawn with a counter-based generator.

The same draws come out in either framework: probabilities become integers that sum to 2^30, so that no order
of summing matters, and the token is where their running sum exceeds a random number of 30 bits.
Axes: B rows, V entries of the vocabulary.
"""

import jax
import jax.numpy as jnp

from .arithmetic import INDEX, iota
from .dropout import WORD, threefry2x32, word

BITS = 30


def next_token(logits, temperature=None, top_k=None, top_p=None, seed=None, step=0):
    """A token for each row of logits (B, V): (B,) integers.

    temperature: what logits are divided by; None takes the likeliest, the first of equals.
    top_k, top_p: as in likely.
    seed, step: what the draw is a pure function of, besides the row's number.
    """
    if temperature is None:
        return jnp.argmax(logits, -1).astype(INDEX)
    z = logits.astype(jnp.float32)
    p = likely((z - z.max(-1, keepdims=True)) / temperature, top_k, top_p)
    weights = (p * 2**BITS).astype(jnp.int32)
    rest = 2**BITS - weights.sum(-1, keepdims=True, dtype=jnp.int32)
    best = jnp.argmax(p, -1).astype(INDEX)[:, None]
    weights = jnp.where(iota(p.shape[-1], p)[None] == best, weights + rest, weights)
    return (jnp.cumsum(weights, -1, dtype=jnp.int32) <= uniform(seed, step, logits)).sum(-1).astype(INDEX)


def likely(z, top_k=None, top_p=None):
    """softmax(z) (B, V) among the top_k largest, and then among the fewest whose sum is at least top_p.

    Of equals all are among them.
    Source: Fan et al. 2018, section 5.4 (top_k); Holtzman et al. 2020, section 3.1 (top_p).
    """
    if top_k is not None:
        z = jnp.where(z < jax.lax.top_k(z, top_k)[0][:, -1:], -jnp.inf, z)
    p = jax.nn.softmax(z, -1)
    if top_p is None:
        return p
    falling = jnp.sort(p, axis=-1, descending=True)
    before = jnp.cumsum(falling, -1) - falling
    least = jnp.where((before == 0) | (before < top_p), falling, jnp.inf).min(-1, keepdims=True)
    p = jnp.where(p < least, 0.0, p)
    return p / p.sum(-1, keepdims=True)


def uniform(seed, step, like):
    """A random number of 30 bits for each row of `like` (B, ...), as (B, 1)."""
    rows = iota(like.shape[0], like)
    words = (word(seed, like), word(rows, like)), (word(step, like), word(WORD, like))
    return (threefry2x32(*words)[0] >> (32 - BITS)).astype(jnp.int32)[:, None]
