"""What a transformer's blocks begin with: a vector for each token, patch of an image, or frame of sound.

Axes: T positions, C channels (n_embd). parts: of each array of a model's parameters the array, and of each
norm and linear map a function; frame: the model's model_dialects.Frame.
"""

import torch

from . import cached, calls, dialects
from .arithmetic import INDEX, accumulator, describe, iota, rows
from .cache import next_positions
from .mlp import gelu
from .positions import relative_bias, sinusoidal


def embed(parts, frame, tokens, mask=None, position_ids=None, type_ids=None, cache=None):
    """(x (..., T, C), the positions (T,) or (..., T) of its tokens).

    tokens, mask, position_ids, type_ids: as in transformer. cache: of its first block, if there is one.
    """
    x = read(parts, frame, tokens)
    if cache is not None:
        cached.tokens(cache, tuple(x.shape[:-1]))
    calls.one_dtype({name: describe(parts[name]) for name in ("wte", "cls", "wpe", "wtt") if name in parts})
    calls.mask("mask", describe(mask), tuple(x.shape[:-1]))
    at = positions(frame, x, mask, position_ids, cache)
    if "wtt" in parts:
        types = torch.zeros_like(x[..., 0], dtype=INDEX) if type_ids is None else type_ids
        calls.tokens("type_ids", describe(types), parts["wtt"].shape[0], tuple(x.shape[:-1]))
        x = x + rows(parts["wtt"], types)
    elif type_ids is not None:
        raise ValueError("type_ids: got an array with n_type=0, wanted None")
    if frame.embedding_positions == "learned":
        x = x + torch.broadcast_to(rows(parts["wpe"], at + frame.position_start), x.shape)
    if frame.embedding_positions == "sinusoidal":
        table = sinusoidal(at, frame.n_embd, dtype=accumulator(x.dtype)).to(x.dtype)
        x = x + torch.broadcast_to(table, x.shape)
    return (parts["ln_e"](x) if "ln_e" in parts else x), at


def read(parts, frame, tokens):
    """tokens (..., T), images (..., rows, columns, channels) or frames (..., T, channels) as (..., T, C)."""
    if frame.patch is not None:
        return patched(parts, frame.patch, tokens)
    if frame.stem is not None:
        calls.frames(describe(tokens), frame.stem)
        return convolved(parts["stem2"], convolved(parts["stem1"], tokens, 1), 2)
    calls.tokens("tokens", describe(tokens), frame.n_vocab)
    x = rows(parts["wte"], tokens)
    if frame.embed_scale == 1:
        return x
    return (x.to(accumulator(x.dtype)) * frame.embed_scale).to(x.dtype)


def patched(parts, patch, images):
    """A class token, and then each patch of the images (..., rows, columns, channels), row by row.

    Source: Dosovitskiy et al. 2021, eq. 1.
    """
    calls.images(describe(images), patch)
    size, channels, rows, columns, _ = patch
    lead = images.shape[:-3]
    x = images.reshape(*lead, rows, size, columns, size, channels).swapaxes(-4, -3)
    x = parts["patch"](x.reshape(*lead, rows * columns, size * size * channels))
    first = torch.broadcast_to(parts["cls"], (*lead, 1, x.shape[-1]))
    return torch.concatenate((first, x), -2)  # (..., 1 + rows * columns, C)


def convolved(linear, x, stride):
    """gelu of a convolution over three positions at each stride; beyond either end are zeros.

    linear: a function of three positions side by side, (..., 3 C).
    Source: Radford et al. 2022, section 2.2.
    """
    T, zero = x.shape[-2], torch.zeros_like(x[..., :1, :])
    x = torch.concatenate((zero, x, zero), -2)
    taps = [x[..., i : i + T, :] for i in range(3)]
    return gelu(linear(torch.concatenate(taps, -1)[..., ::stride, :]))


def positions(frame, x, mask, position_ids, cache=None):
    """The positions (T,) or (..., T) of x's tokens: as given, or counted over those that are real.

    cache: what was there before, if there is one.
    """
    T = x.shape[-2]
    if frame.n_ctx is not None and frame.n_ctx - frame.position_start < T:
        room = frame.n_ctx - frame.position_start
        raise ValueError(f"tokens: got {T} positions, wanted at most {room}, n_ctx less position_start")
    if position_ids is not None:
        given = describe(position_ids)
        dialects.position_ids(given, tuple(x.shape[:-2]), T)
        if frame.n_ctx is not None:
            calls.tokens("position_ids", given, frame.n_ctx - frame.position_start)
        return position_ids.to(INDEX)
    if mask is None:
        at = next_positions(cache, T, x)
        if cache is not None:
            calls.room(frame, describe(at).high)
        return at
    return torch.clip(torch.cumsum(mask, -1) - 1, 0, None).to(INDEX)


def shared_bias(parts, frame, at, cache=None):
    """The bias (..., H, T, Tk) that every block adds to its scores, or None, for queries at these positions.

    The keys are at the same, or with a cache at all positions that there is room for.
    Source: Raffel et al. 2020, section 2.1.
    """
    if frame.relative_bias is None:
        return None
    keys = at if cache is None else iota(cached.room(cache), at)[None]
    return relative_bias(parts["rel_bias"], at, keys, frame.relative_bias[1], not frame.causal)
