"""What a call of a transformer must look like, and of generate; and what is said if it does not.

As in checks: on shapes and dtype names alone; a message names the argument, what was got, what was wanted.
"""

from .checks import INTEGERS, Spec, array, is_integer, kind_of, number, one_of
from .checks import seed as check_seed

CACHES = (None, "dense", "sliding", "paged")


def tokens(name, x, n, shape=None):
    """Raise unless x, a Spec, holds integers (..., T) from 0 to n - 1; of this shape, if one is given."""
    if not isinstance(x, Spec) or x.dtype not in INTEGERS:
        got = x.dtype if isinstance(x, Spec) else kind_of(x)
        raise TypeError(f"{name}: got {got}, wanted an array of integers")
    if not x.shape:
        raise ValueError(f"{name}: got shape (), wanted (..., T)")
    if shape is not None and x.shape != shape:
        raise ValueError(f"{name}: got shape {x.shape}, wanted {shape}")
    if x.low is not None and x.high is not None and not 0 <= x.low <= x.high < n:
        raise ValueError(f"{name}: got {x.low if x.low < 0 else x.high}, wanted at least 0 and below {n}")


def mask(name, x, shape):
    """Raise unless x, a Spec or None, is boolean and of this shape, (..., T)."""
    if x is None:
        return
    if not isinstance(x, Spec) or x.dtype != "bool":
        got = x.dtype if isinstance(x, Spec) else kind_of(x)
        raise TypeError(f"{name}: got {got}, wanted an array of bool, True = a real token")
    if x.shape != shape:
        raise ValueError(f"{name}: got shape {x.shape}, wanted {shape}")


def images(x, patch):
    """Raise unless x, a Spec, holds images that can be cut into such patches."""
    array("tokens", x)
    size, channels, rows, columns, _ = patch
    wanted = (rows * size, columns * size, channels)
    if x.shape[-3:] != wanted:
        raise ValueError(f"tokens: got shape {x.shape}, wanted images (..., {', '.join(map(str, wanted))})")


def frames(x, channels):
    """Raise unless x, a Spec, holds frames of so many channels."""
    array("tokens", x)
    if len(x.shape) < 2 or x.shape[-1] != channels:
        raise ValueError(f"tokens: got shape {x.shape}, wanted frames (..., T, {channels})")


def caches(caches, n_layer, mask, new_lengths):
    """Raise unless caches are one for each block, and a call with them leaves to them what they say."""
    if caches is None:
        if new_lengths is not None:
            raise ValueError("new_lengths: got an array without caches, wanted None, or a mask")
        return
    if not isinstance(caches, tuple | list) or len(caches) != n_layer:
        got = len(caches) if isinstance(caches, tuple | list) else kind_of(caches)
        raise ValueError(f"caches: got {got}, wanted {n_layer}, one for each block")
    if mask is not None:
        raise ValueError("mask: got an array with caches, wanted None; new_lengths says what is real")


def generation(frame, T, n_new, temperature, top_k, top_p, seed, stop, cache):
    """Raise unless n_new tokens can follow T by these rules. frame: the decoder's."""
    if frame.head == "none" or not frame.causal or frame.patch is not None or frame.stem is not None:
        raise ValueError("model: got one that gives no next token, wanted causal=True, tokens and a head")
    for name, n in {"tokens": T, "n_new": n_new}.items():
        if not is_integer(n) or n < 1:
            raise ValueError(f"{name}: got {n!r}, wanted at least 1")
    room = None if frame.n_ctx is None else frame.n_ctx - frame.position_start
    if room is not None and T + n_new - 1 > room:
        raise ValueError(f"n_new: got {n_new} after {T} tokens, wanted at most {room - T + 1}, by n_ctx")
    number("temperature", temperature)
    if temperature is None or temperature < 0:
        raise ValueError(f"temperature: got {temperature}, wanted at least 0")
    given = {"top_k": top_k, "top_p": top_p}
    for name in [name for name, x in given.items() if x is not None and temperature == 0]:
        raise ValueError(
            f"{name}: got {given[name]} with temperature=0, wanted None, or a temperature above 0"
        )
    if top_k is not None and not (is_integer(top_k) and 0 < top_k <= frame.n_vocab):
        raise ValueError(f"top_k: got {top_k!r}, wanted an integer from 1 to {frame.n_vocab}")
    number("top_p", top_p, positive=True)
    if top_p is not None and top_p > 1:
        raise ValueError(f"top_p: got {top_p}, wanted above 0 and at most 1")
    if seed is not None:
        check_seed(seed)
    elif temperature > 0:
        raise ValueError("seed: got None with a temperature above 0, wanted an integer from 0 to 2**32 - 1")
    for token in stops(stop):
        if not is_integer(token) or not 0 <= token < frame.n_vocab:
            raise ValueError(f"stop: got {token!r}, wanted integers from 0 to {frame.n_vocab - 1}")
    one_of("cache", cache, CACHES)


def stops(stop):
    """The tokens that end a row: none, one, or several."""
    return () if stop is None else tuple(stop) if isinstance(stop, tuple | list) else (stop,)


def some_real(lengths):
    """Raise unless each row has a real token, as far as lengths, a Spec or None, tells."""
    if lengths is not None and lengths.low is not None and lengths.low < 1:
        raise ValueError("mask: got a row without a real token, wanted at least one in each")
