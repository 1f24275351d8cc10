"""What a call of a transformer must look like, and of generate; and what is said if it does not.

As in checks: on shapes and dtype names alone; a message names the argument, what was got, what was wanted.
"""

from . import cached
from .checks import INTEGERS, Spec, array, is_integer, kind_of, number, one_of
from .checks import seed as check_seed

CACHES = (None, "dense", "sliding", "paged")
COLDEST = 1e-30  # temperature that float32 holds well; 0 is another rule


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


def images(x, patch, name="tokens"):
    """Raise unless x, a Spec, holds images that can be cut into such patches."""
    array(name, x)
    size, channels, rows, columns, _ = patch
    wanted = (rows * size, columns * size, channels)
    if x.shape[-3:] != wanted:
        raise ValueError(f"{name}: got shape {x.shape}, wanted images (..., {', '.join(map(str, wanted))})")


def frames(x, channels, name="tokens"):
    """Raise unless x, a Spec, holds frames of so many channels."""
    array(name, x)
    if len(x.shape) < 2 or x.shape[-1] != channels:
        raise ValueError(f"{name}: got shape {x.shape}, wanted frames (..., T, {channels})")


def inputs(x, of_x, frame, lead):
    """Raise unless an encoder of this frame can read x, and of_x is its mask, for rows with these axes.

    Returns the axes of x that are of one row.
    """
    if frame.stem is not None:
        frames(x, frame.stem, "inputs")
        row, n = x.shape[-2:], (x.shape[-2] + 1) // 2
    elif frame.patch is not None:
        images(x, frame.patch, "inputs")
        row, n = x.shape[-3:], 1 + frame.patch[2] * frame.patch[3]
    else:
        tokens("inputs", x, frame.n_vocab)
        row, n = x.shape[-1:], x.shape[-1]
    if x.shape != (*lead, *row):
        raise ValueError(f"inputs: got shape {x.shape}, wanted {(*lead, *row)}, as many rows as tokens has")
    mask("inputs_mask", of_x, (*lead, n))
    return row


def context(x, lead):
    """Raise unless a context (..., Tk, C), if it is a Spec, has these axes before."""
    if isinstance(x, Spec) and len(x.shape) > 1 and x.shape[:-2] != lead:
        raise ValueError(f"context: got shape {x.shape}, wanted {(*lead, *x.shape[-2:])}, as tokens has rows")


def caches(caches, frame, mask, new_lengths):
    """Raise unless caches are one for each block, and a call with them leaves to them what they say."""
    n_layer = frame.n_layer
    if caches is None:
        if new_lengths is not None:
            raise ValueError("new_lengths: got an array without caches, wanted None, or a mask")
        return
    if not isinstance(caches, tuple | list) or len(caches) != n_layer:
        got = len(caches) if isinstance(caches, tuple | list) else kind_of(caches)
        raise ValueError(f"caches: got {got}, wanted {n_layer}, one for each block")
    if mask is not None:
        raise ValueError("mask: got an array with caches, wanted None; new_lengths says what is real")
    for cache in caches:
        cached.room(cache)
    if frame.relative_bias is not None and "SlidingCache" in (type(cache).__name__ for cache in caches):
        raise ValueError("caches: got a SlidingCache with a relative_bias, wanted DenseCache or PagedCache")


def lengths(lengths):
    """Raise unless the caches of all blocks have the same lengths, lists, or None where not to be read."""
    for i, other in enumerate(lengths):
        if None not in (other, lengths[0]) and other != lengths[0]:
            raise ValueError(f"caches: got lengths {other} in block {i}, wanted {lengths[0]}, as in block 0")


def room(frame, furthest):
    """Raise unless a table of positions has this one, if there is a table and the number can be read."""
    n = None if frame.n_ctx is None else frame.n_ctx - frame.position_start
    if n is not None and furthest is not None and furthest >= n:
        raise ValueError(f"tokens: got position {furthest}, wanted below {n}, n_ctx less position_start")


def logits_at(at, shape):
    """Raise unless at, a Spec or None, has a place in each row of tokens of this shape."""
    if at is None:
        return
    if not isinstance(at, Spec) or at.dtype not in INTEGERS:
        raise TypeError(
            f"logits_at: got {at.dtype if isinstance(at, Spec) else kind_of(at)}, wanted integers"
        )
    if at.shape != shape[:-1]:
        raise ValueError(f"logits_at: got shape {at.shape}, wanted {shape[:-1]}, a place in each row")
    if at.low is not None and at.high is not None and not 0 <= at.low <= at.high < shape[-1]:
        got = at.low if at.low < 0 else at.high
        raise ValueError(f"logits_at: got {got}, wanted at least 0 and below {shape[-1]}")


def one_dtype(parameters):
    """Raise unless these parameters, a Spec by each name, have the dtype of the first."""
    for name, spec in parameters.items():
        first, like = next(iter(parameters.items()))
        if spec.dtype != like.dtype:
            raise TypeError(f"params: {name}: got dtype {spec.dtype}, wanted {like.dtype}, that of {first}")


def generation(frame, T, n_new, temperature, top_k, top_p, seed, stop, cache):
    """Raise unless n_new tokens can follow T by these rules. frame: the decoder's."""
    others = frame.patch, frame.stem, frame.pool
    if frame.head == "none" or not frame.causal or any(x is not None for x in others):
        wanted = "causal=True, tokens, a head and no pool"
        raise ValueError(f"model: got one that gives no next token alone, wanted {wanted}")
    if T < 1:
        raise ValueError("tokens: got no positions, wanted at least one")
    if not is_integer(n_new) or n_new < 1:
        raise ValueError(f"n_new: got {n_new!r}, wanted an integer of at least 1")
    room = None if frame.n_ctx is None else frame.n_ctx - frame.position_start
    if room is not None and T + n_new - 1 > room:
        raise ValueError(f"n_new: got {n_new} after {T} tokens, wanted at most {room - T + 1}, by n_ctx")
    number("temperature", temperature)
    if temperature is None or not (temperature == 0 or temperature >= COLDEST):
        raise ValueError(f"temperature: got {temperature}, wanted 0, or at least {COLDEST:g}")
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
        check_seed(seed, "seed")
    elif temperature > 0:
        raise ValueError("seed: got None with a temperature above 0, wanted an integer from 0 to 2**32 - 1")
    for token in stops(stop):
        if not is_integer(token) or not 0 <= token < frame.n_vocab:
            got = token if is_integer(token) else kind_of(token)
            raise ValueError(f"stop: got {got}, wanted integers from 0 to {frame.n_vocab - 1}")
    one_of("cache", cache, CACHES)


def stops(stop):
    """The tokens that end a row: none, one, or several."""
    return () if stop is None else tuple(stop) if isinstance(stop, tuple | list) else (stop,)


def some_real(lengths):
    """Raise unless each row has a real token, as far as lengths, a Spec or None, tells."""
    if lengths is not None and lengths.low is not None and lengths.low < 1:
        raise ValueError("mask: got a row without a real token, wanted at least one in each")
