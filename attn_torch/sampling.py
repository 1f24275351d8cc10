"""The next token, by its logits: the likeliest, or drawn with a counter-based generator.

The same draws come out in either framework: probabilities become integers that sum to 2^30, so that no order
of summing matters, and the token is where their running sum exceeds a random number of 30 bits.
Axes: B rows, V entries of the vocabulary.
"""

import torch

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
        return torch.argmax(logits, -1).to(INDEX)
    z = logits.to(torch.float32)
    p = likely((z - z.amax(-1, keepdim=True)) / temperature, top_k, top_p)
    weights = (p * 2**BITS).to(torch.int32)
    rest = 2**BITS - weights.sum(-1, keepdim=True, dtype=torch.int32)
    best = torch.argmax(p, -1).to(INDEX)[:, None]
    weights = torch.where(iota(p.shape[-1], p)[None] == best, weights + rest, weights)
    return (torch.cumsum(weights, -1, dtype=torch.int32) <= uniform(seed, step, logits)).sum(-1).to(INDEX)


def likely(z, top_k=None, top_p=None):
    """softmax(z) (B, V) among the top_k largest, and then among the fewest whose sum is at least top_p.

    Of equals all are among them.
    Source: Fan et al. 2018, section 5.4 (top_k); Holtzman et al. 2020, section 3.1 (top_p).
    """
    if top_k is not None:
        z = torch.where(z < torch.topk(z, top_k)[0][:, -1:], -torch.inf, z)
    p = torch.softmax(z, -1)
    if top_p is None:
        return p
    falling = torch.sort(p, -1, descending=True)[0]
    before = torch.cumsum(falling, -1) - falling
    least = torch.where((before == 0) | (before < top_p), falling, torch.inf).amin(-1, keepdim=True)
    p = torch.where(p < least, 0.0, p)
    return p / p.sum(-1, keepdim=True)


def uniform(seed, step, like):
    """A random number of 30 bits for each row of `like` (B, ...), as (B, 1)."""
    rows = iota(like.shape[0], like)
    words = (word(seed, like), word(rows, like)), (word(step, like), word(WORD, like))
    return (threefry2x32(*words)[0] >> (32 - BITS)).to(torch.int32)[:, None]
