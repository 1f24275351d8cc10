"""What a cache and a call with one must look like, and what is said otherwise: on shapes, dtypes and lengths.

Every message names the argument, what was got and what was wanted. Nothing here knows a framework.
"""

from collections import Counter

from .checks import INTEGERS, Spec, array, is_integer, kind_of, per_row

CACHES = ("DenseCache", "SlidingCache", "PagedCache")
# What a call with one may not say: the cache does; and with dropout no single pass would be the same.
REFUSED = (
    *("q_offset", "q_lengths", "kv_lengths", "q_segment_ids", "kv_segment_ids"),
    *("dropout_seed", "dropout_p", "dropout_mask"),
)


def sizes(**sizes):
    """Raise unless every size is an integer above 0, but for the batch, which may be empty."""
    for name, n in sizes.items():
        least = 0 if name == "batch" else 1
        if not is_integer(n) or n < least:
            raise ValueError(f"{name}: got {n!r}, wanted an integer of at least {least}")


def left_of(window):
    """How many positions to the left a window lets a query see. Raise unless these are so many."""
    left = window[0] if isinstance(window, tuple | list) and window else window
    if not is_integer(left) or left < 0:
        raise ValueError(f"window: got {window!r}, wanted an integer of at least 0 to the left")
    return left


def block_table(table, batch, n, n_block):
    """Raise unless table, a Spec, names of each row's n blocks the numbers, -1 where there is none."""
    array("table", table)
    if table.dtype not in INTEGERS:
        raise TypeError(f"table: got dtype {table.dtype}, wanted integers")
    if table.shape != (batch, n):
        raise ValueError(f"table: got shape {table.shape}, wanted {(batch, n)}, the blocks of each row")
    if table.low is not None and not -1 <= table.low <= table.high < n_block:
        got = table.low if table.low < -1 else table.high
        raise ValueError(f"table: got block {got}, wanted at least -1 and at most {n_block - 1}")


def room(cache):
    """How many positions a row can have, by the shapes; None if there is no end. Raise if it is no cache."""
    kind = type(cache).__name__
    if kind not in CACHES:
        raise TypeError(f"cache: got {kind_of(cache)}, wanted one of {', '.join(CACHES)}")
    n = cache.k.shape[2]
    return {"DenseCache": n, "SlidingCache": None}.get(kind, n * getattr(cache, "table", cache.k).shape[1])


def tokens(cache, shape):
    """Raise unless tokens of this shape can follow those that a cache has."""
    room(cache)
    batch = cache.lengths.shape[0]
    if len(shape) != 2 or shape[0] != batch:
        raise ValueError(f"tokens: got shape {shape} with caches, wanted ({batch}, T), as in these")


def attention(cache, q_shape, cross, positions, position_ids, options):
    """Raise TypeError or ValueError unless attention of q (..., T, H D) can have this cache.

    options: the other keywords by name, arrays as Spec.
    """
    n, kind, window = room(cache), type(cache).__name__, options["window"]
    if cross:
        raise ValueError("cache: got one with cross=True, wanted None; a context_cache goes to context=")
    if len(q_shape) != 3:
        raise ValueError(f"x: got {len(q_shape)} axes with a cache, wanted 3, (B, T, C)")
    if not options["causal"]:
        raise ValueError("causal: got False with a cache, wanted True")
    if position_ids is not None and positions == "alibi":
        raise ValueError("position_ids: got an array with a cache and positions='alibi', wanted None")
    for name in REFUSED:
        if options.get(name) is not None:
            raise ValueError(f"{name}: got a value in a call with a cache, wanted None")
    if kind == "SlidingCache":
        left, wanted = window[0] if isinstance(window, tuple | list) else window, cache.k.shape[2] - 1
        if left != wanted:
            raise ValueError(f"window: got {window!r}, wanted {wanted} to the left, that of the cache")
    for name, x in (("mask", options["mask"]), ("attn_bias", options["bias"])):
        if isinstance(x, Spec) and x.shape and x.shape[-1] not in (1, n):
            wanted = "1, with a SlidingCache" if n is None else f"1 or {n}, the capacity of the cache"
            raise ValueError(f"{name}: got {x.shape[-1]} keys, wanted {wanted}")


def append(batch, rooms, before, more, cache_k, cache_v, k, v, new_lengths):
    """Raise TypeError or ValueError unless k and v can be appended to a cache of batch rows.

    rooms: how many positions a row can have, or a list of each row's; None if there is no end. before, more:
    lengths and new_lengths as lists. Each is None if it cannot be read.
    """
    for name, x, pool in (("k", k, cache_k), ("v", v, cache_v)):
        array(name, x)
        if x.dtype != pool.dtype:
            raise TypeError(f"{name}: got dtype {x.dtype}, wanted {pool.dtype}, the dtype of the cache")
        T = k.shape[2] if len(k.shape) == 4 else "T"
        if x.shape != (batch, pool.shape[1], T, pool.shape[3]):
            wanted = f"({batch}, {pool.shape[1]}, {T if name == 'v' else 'T'}, {pool.shape[3]})"
            raise ValueError(f"{name}: got shape {x.shape}, wanted {wanted} for the cache")
    if new_lengths is not None:
        array("new_lengths", new_lengths)
        per_row("new_lengths", new_lengths, (batch,), 0, T)
    more = [T] * batch if new_lengths is None else more
    if rooms is None or before is None or more is None:
        return
    rooms = [rooms] * batch if isinstance(rooms, int) else rooms
    for row, (had, new, n) in enumerate(zip(before, more, rooms, strict=True)):
        if had + new > n:
            raise ValueError(
                f"cache: got {new} positions for row {row} with lengths[{row}] = {had}, wanted at most "
                f"{n - had}: the capacity is {n}"
            )


def blocks(table, size, before, after):
    """Raise unless each block that is written to, of size positions, is in the table once.

    table, before, after: the numbers of each row's blocks and its lengths, as lists.
    """
    times = Counter(block for row in table for block in row)
    for row, start, end in zip(table, before, after, strict=True):
        for block in row[start // size : -(-end // size)]:
            if times[block] > 1:
                raise ValueError(f"cache: got new positions for block {block}, wanted it in table only once")
