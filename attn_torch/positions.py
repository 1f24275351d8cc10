"""Where a token stands, told to attention: rotary turns, ALiBi's and T5's biases, the table of sines.

Positions are integers. Angles are float32 at least (float64 for float64); their frequencies are rounded once.
Axes: H heads, T/Tq/Tk positions, D head size, C channels.
"""

import math

import torch
from torch import Tensor

from . import dialects
from .arithmetic import INDEX, accumulator, constant


def rotary(
    x: Tensor, positions: Tensor, theta=10000.0, rotary_dim=None, interleaved=False, scaling=None
) -> Tensor:
    """Each pair of channels turned by position * frequency; the channels from rotary_dim on stay.

    (a, b) becomes (a cos - b sin, b cos + a sin), by the angle positions * theta^(-2n/d) for pair n of d/2.

    x: (..., T, D) float16/bfloat16/float32/float64. positions: integers that broadcast to (..., T).
    rotary_dim: d, even; None is D. interleaved: pairs are channels (2n, 2n + 1), and otherwise (n, n + d/2).
    scaling: as in frequencies.
    Returns (..., T, D) in x's dtype.
    Raises ValueError or TypeError unless x can be turned so.
    Source: Su et al. 2021, eq. 34; halves as in GPT-NeoX (Black et al. 2022).
    """
    dialects.rotary_options(x.shape[-1], theta, rotary_dim, interleaved, scaling)
    d, dtype = x.shape[-1] if rotary_dim is None else rotary_dim, accumulator(x.dtype)
    freqs, factor = frequencies(d, theta, scaling)
    freqs = torch.broadcast_to(constant(freqs, dtype, x), (*positions.shape, d // 2))
    angle = torch.broadcast_to(positions.to(dtype)[..., None] * freqs, (*x.shape[:-1], d // 2))
    cos, sin = torch.cos(angle) * factor, torch.sin(angle) * factor  # (..., T, d/2)
    z = x.to(dtype)
    a, b = (z[..., 0:d:2], z[..., 1:d:2]) if interleaved else (z[..., : d // 2], z[..., d // 2 : d])
    turned = paired(a * cos - b * sin, b * cos + a * sin, interleaved)  # (..., T, d)
    return torch.concatenate((turned, z[..., d:]), -1).to(x.dtype)


def paired(a: Tensor, b: Tensor, interleaved) -> Tensor:
    """(..., d/2) twice as (..., d): a, b, a, b, ... if interleaved; otherwise all of a, then all of b."""
    if interleaved:
        return torch.stack((a, b), -1).reshape(*a.shape[:-1], 2 * a.shape[-1])
    return torch.concatenate((a, b), -1)


def frequencies(d, theta=10000.0, scaling=None):
    """([frequency of each of d/2 pairs], factor of all cosines and sines), in double precision.

    scaling: None, or a mapping as in a model's config.json, rope_type and what that takes:
      linear: factor, by which all frequencies are divided.
      llama3: factor, low_freq_factor, high_freq_factor, original_max_position_embeddings (n): waves longer
        than n / low_freq_factor are divided, those shorter than n / high_freq_factor are not, and between
        the two it is a mean of both.
      yarn: factor, original_max_position_embeddings, and possibly beta_fast (32), beta_slow (1), truncate
        (True): the pairs that turn more than beta_fast times in n positions are kept, those that turn less
        than beta_slow times divided. Cosines and sines are multiplied by attention_factor, by default
        0.1 log(factor) + 1, or a ratio of two of these with mscale and mscale_all_dim for 0.1.
    Source: Chen et al. 2023, section 2.3 (linear); Dubey et al. 2024, section 3.4, and Llama 3.1's code
    (llama3); Peng et al. 2023, section 3.4 (yarn).
    """
    freqs = [theta ** (-2 * n / d) for n in range(d // 2)]
    given = dict(scaling or {"rope_type": "default"})
    kind, factor, length = (given.get(k) for k in ("rope_type", "factor", "original_max_position_embeddings"))
    if kind == "linear":
        return [f / factor for f in freqs], 1.0
    if kind == "llama3":
        low, high = given["low_freq_factor"], given["high_freq_factor"]
        kept = [(length * f / (2 * math.pi) - low) / (high - low) for f in freqs]
        return _blended(freqs, factor, kept), 1.0
    if kind == "yarn":
        return _blended(freqs, factor, _yarn_kept(d, theta, length, given)), _yarn_factor(factor, given)
    return freqs, 1.0


def _blended(freqs, factor, kept):
    """kept (cut to 0 ... 1) of each frequency, and the rest of it divided by factor."""
    kept = [min(max(k, 0.0), 1.0) for k in kept]
    return [k * f + (1 - k) * f / factor for f, k in zip(freqs, kept, strict=True)]


def _yarn_kept(d, theta, length, given):
    def pair(turns):  # the pair that turns so often in length positions, in between two as a rule
        return d * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair(given.get("beta_fast") or 32), pair(given.get("beta_slow") or 1)
    if given.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, d - 1)
    return [1 - (n - first) / ((last - first) or 0.001) for n in range(d // 2)]


def _yarn_factor(factor, given):
    def magnitude(slope):
        return slope * math.log(factor) + 1 if factor > 1 else 1.0

    if given.get("attention_factor") is not None:
        return given["attention_factor"]
    if given.get("mscale") and given.get("mscale_all_dim"):
        return magnitude(0.1 * given["mscale"]) / magnitude(0.1 * given["mscale_all_dim"])
    return magnitude(0.1)


def alibi_slopes(n_head):
    """Each head's slope: 2^(-8h/n) for h = 1 ... n, if n heads are a power of two.

    Otherwise those of the power of two below, and then of the one above every second, from the first on.
    Source: Press, Smith & Lewis 2022, section 3, and its code for other numbers of heads.
    """
    below = 2 ** int(math.log2(n_head))
    slopes = [2 ** (-8 * h / below) for h in range(1, below + 1)]
    return slopes + [2 ** (-8 * h / (2 * below)) for h in range(1, 2 * (n_head - below), 2)]


def alibi(n_head, q_positions: Tensor, k_positions: Tensor, dtype=torch.float32) -> Tensor:
    """-slope * |q_position - k_position|, to be added to the scores.

    q_positions: (..., Tq) integers. k_positions: (..., Tk), as many axes. Returns (..., H, Tq, Tk) of dtype.
    Source: Press, Smith & Lewis 2022, section 3.
    """
    right = k_positions[..., None, None, :] - q_positions[..., None, :, None]  # (..., 1, Tq, Tk)
    slopes = constant(alibi_slopes(n_head), dtype, q_positions)[:, None, None]
    slopes = torch.broadcast_to(slopes, (*q_positions.shape[:-1], n_head, 1, 1))
    return -slopes * torch.abs(right).to(dtype)  # (..., H, Tq, Tk)


def sinusoidal(positions: Tensor, n_embd, theta=10000.0, interleaved=True, dtype=torch.float32) -> Tensor:
    """The sine and the cosine of position * theta^(-2n/C), for n < C/2.

    positions: (..., T) integers. interleaved: sine, cosine, sine, ...; otherwise all sines, then all cosines.
    Returns (..., T, C) of dtype, float32 or float64.
    Raises ValueError if C is odd.
    Source: Vaswani et al. 2017, section 3.5.
    """
    dialects.even("n_embd", n_embd)
    freqs, _ = frequencies(n_embd, theta)
    freqs = torch.broadcast_to(constant(freqs, dtype, positions), (*positions.shape, n_embd // 2))
    angle = positions.to(dtype)[..., None] * freqs
    return paired(torch.sin(angle), torch.cos(angle), interleaved)


def relative_bucket(
    q_positions: Tensor, k_positions: Tensor, n_bucket=32, max_distance=128, bidirectional=True
) -> Tensor:
    """The bucket of each key's distance: one for each small distance, and then ever wider ones.

    q_positions: (..., Tq) integers. k_positions: (..., Tk), as many axes. n_bucket: half of them for keys
    to the right if bidirectional; otherwise a key to the right is in bucket 0. max_distance: from there on
    all is one bucket.
    Returns (..., Tq, Tk) integers below n_bucket.
    Source: Raffel et al. 2020, section 2.1, and its code.
    """
    n = n_bucket // 2 if bidirectional else n_bucket
    bucket_of = constant(_buckets(n, max_distance), INDEX, q_positions)
    right = k_positions[..., None, :] - q_positions[..., :, None]  # (..., Tq, Tk)
    distance = torch.abs(right) if bidirectional else -right
    bucket = bucket_of[torch.clip(distance, 0, max_distance)]
    return bucket + n * (right > 0).to(INDEX) if bidirectional else bucket


def _buckets(n, max_distance):
    """The bucket of each distance up to max_distance: the first n/2 alone, the others in equal steps of log.

    In integers: n/2 + the largest k with (m/e)^k <= (r/e)^(n - e), e = n/2, m = max_distance.
    """
    e, m = n // 2, max_distance
    steps = range(1, n - e)
    return [
        r if r < e else e + sum(m**k * e ** (n - e) <= r ** (n - e) * e**k for k in steps)
        for r in range(max_distance + 1)
    ]


def relative_bias(
    table: Tensor, q_positions: Tensor, k_positions: Tensor, max_distance=128, bidirectional=True
) -> Tensor:
    """T5's bias, to be added to the scores: for each head its own number for each bucket of distances.

    table: (n_bucket, H). Positions as in relative_bucket. Returns (..., H, Tq, Tk) in the table's dtype.
    Source: Raffel et al. 2020, section 2.1.
    """
    bucket = relative_bucket(q_positions, k_positions, table.shape[0], max_distance, bidirectional)
    return torch.moveaxis(table[bucket], -1, -3)
