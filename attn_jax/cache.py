"""What decoding keeps of the positions it has read: their keys and values, dense, in a ring, or in blocks.

A cache is of one attention layer. Its arrays keep their shapes, so that a compiled program serves every step.
What lies in them beyond the lengths is never read, be it NaN.
Axes: B batch, H kv heads, T new positions, N positions that there is room for, D head size, Dv of the values.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from . import cached
from .arithmetic import INDEX, describe, index, iota, known


class DenseCache(NamedTuple):
    """Room for N positions of each row: position p of row b is in k[b, :, p]."""

    k: Array  # (B, H, N, D)
    v: Array  # (B, H, N, Dv)
    lengths: Array  # (B,) integers: how many positions each row has


class SlidingCache(NamedTuple):
    """The last N positions of each row, in a ring: position p of row b is in k[b, :, p % N]."""

    k: Array  # (B, H, N, D)
    v: Array  # (B, H, N, Dv)
    lengths: Array  # (B,) integers: how many positions each row has had


class PagedCache(NamedTuple):
    """Positions in blocks of S: position p of row b is in k[table[b, p // S], :, p % S].

    Rows may have a block in common, as of the same beginning, until one of them is to write to it. A row's
    blocks end at the first number -1. The last block of all is nobody's; what is padding goes there.
    """

    k: Array  # (blocks + 1, H, S, D)
    v: Array  # (blocks + 1, H, S, Dv)
    table: Array  # (B, n) integers: numbers of blocks
    lengths: Array  # (B,) integers: how many positions each row has


class ContextCache(NamedTuple):
    """The keys and values of a context, for cross-attention to read in every step."""

    k: Array  # (..., H, Tk, D)
    v: Array  # (..., H, Tk, Dv)


def dense_cache(batch, n_kv_head, capacity, head_dim, *, value_dim=None, dtype=None, device=None):
    """An empty DenseCache with room for capacity positions of each row.

    value_dim: Dv, by default head_dim. dtype: by default the framework's default. ValueError for bad sizes.
    """
    return DenseCache(*_arrays(batch, batch, n_kv_head, capacity, head_dim, value_dim, dtype, device))


def sliding_cache(batch, n_kv_head, window, head_dim, *, value_dim=None, dtype=None, device=None):
    """An empty SlidingCache for attention with this window, w or (left, right): it keeps left + 1 positions.

    value_dim: Dv, by default head_dim. dtype: by default the framework's default. ValueError for bad sizes.
    """
    n = cached.left_of(window) + 1
    return SlidingCache(*_arrays(batch, batch, n_kv_head, n, head_dim, value_dim, dtype, device))


def paged_cache(
    batch,
    n_kv_head,
    capacity,
    head_dim,
    *,
    block_size=16,
    n_block=None,
    table=None,
    value_dim=None,
    dtype=None,
    device=None,
):
    """An empty PagedCache with room for capacity positions of each row, rounded up to whole blocks.

    n_block: how many blocks there are, by default enough for all rows. table: (B, n) integers, the numbers of
    each row's blocks, -1 for none yet; by default the first n are row 0's, the next row 1's, and so on.
    value_dim: Dv, by default head_dim. dtype: by default the framework's default. ValueError for bad sizes.
    """
    cached.sizes(batch=batch, capacity=capacity, block_size=block_size)
    n = -(-capacity // block_size)
    cached.sizes(n_block=1 if n_block is None else n_block)
    n_block = batch * n if n_block is None else n_block
    k, v, lengths = _arrays(batch, n_block + 1, n_kv_head, block_size, head_dim, value_dim, dtype, device)
    table = iota(batch * n, lengths).reshape(batch, n) if table is None else table
    cached.block_table(describe(table), batch, n, n_block)
    return PagedCache(k, v, table.astype(INDEX), lengths)


def _arrays(batch, n_row, n_kv_head, n, head_dim, value_dim, dtype, device):
    value_dim = head_dim if value_dim is None else value_dim
    cached.sizes(batch=batch, n_kv_head=n_kv_head, capacity=n, head_dim=head_dim, value_dim=value_dim)
    k, v = (jnp.zeros((n_row, n_kv_head, n, d), dtype=dtype, device=device) for d in (head_dim, value_dim))
    return k, v, jnp.zeros(batch, dtype=INDEX, device=device)


def append(cache, k, v, new_lengths=None):
    """Append T positions to each row: new_lengths[b] of them to row b, the others being padding at the end.

    k (B, H, T, D) and v (B, H, T, Dv), of the cache's dtype. new_lengths: (B,) integers, by default all T.
    Returns cache, k, v, at, call: the cache with the new positions; the keys (B, H, Tk, D) and values to
    attend to; the positions (B, Tk) of these, or None where key j stands at position j; and the keywords of
    scaled_dot_product_attention which, before causal=True and the layer's window, let the new queries see
    what they would see in one pass. A query that is padding sees nothing.
    The cache that was given is used up: where the framework can, it is written to, unless a gradient is to
    flow through it.
    Raises TypeError or ValueError if these do not fit, or a row has no room. While lengths cannot be read, as
    in a program that is being compiled, they count on past the capacity, and fitting gives NaN.
    """
    rooms = _rooms(cache)
    rooms = known(rooms) if isinstance(rooms, Array) else rooms
    before, more = (known(x) if isinstance(x, Array) else None for x in (cache.lengths, new_lengths))
    arrays = map(describe, (cache.k, cache.v, k, v, new_lengths))
    cached.append(cache.lengths.shape[0], rooms, before, more, *arrays)
    new_lengths = None if new_lengths is None else index(new_lengths, k.shape[2])
    kind = {DenseCache: _append_dense, SlidingCache: _append_sliding, PagedCache: _append_paged}[type(cache)]
    return kind(cache, k, v, new_lengths)


def _append_dense(cache, k, v, new_lengths):
    B, _, T, _ = k.shape
    at, real = _places(cache, T, new_lengths)
    k, v = (_put(pool, iota(B, k)[:, None], at, x, real) for pool, x in zip(cache[:2], (k, v), strict=True))
    after = cache.lengths + (T if new_lengths is None else new_lengths)
    return DenseCache(k, v, after), k, v, None, {"q_offset": cache.lengths} | _ends(new_lengths, after)


def _append_sliding(cache, k, v, new_lengths):
    T, N = k.shape[2], cache.k.shape[2]
    after = cache.lengths + (T if new_lengths is None else new_lengths)
    write = _append_one if T == 1 else _append_many
    k, v, pools, at, call = write(cache, N, after, k, v, new_lengths)
    return SlidingCache(pools[0], pools[1], after), k, v, at, call


def _append_one(cache, N, after, k, v, new_lengths):
    """The ring holds what the new position sees, and nothing else."""
    at, real = _places(cache, 1, new_lengths)
    rows = iota(k.shape[0], k)[:, None]
    k, v = (_put(pool, rows, at % N, x, real) for pool, x in zip(cache[:2], (k, v), strict=True))
    call = {"causal": False, "window": None} | _ends(new_lengths, after.clip(max=N))
    last = after[:, None] - 1
    return k, v, (k, v), last - (last - iota(N, k)[None]) % N, call


def _append_many(cache, N, after, k, v, new_lengths):
    """Before the new positions come the last N in their order; after it, of all these the last N are kept."""
    at = cache.lengths[:, None] - N + iota(N + k.shape[2], k)[None]  # (B, N + T)
    slots = at[:, :N] % N
    k, v = (jnp.concatenate((_taken(pool, slots), x), 2) for pool, x in zip(cache[:2], (k, v), strict=True))
    call = {"q_offset": N, "mask": (at >= 0)[:, None, None, :]}
    call |= {} if new_lengths is None else _ends(new_lengths, N + new_lengths)
    last = after[:, None] - 1
    kept = last - (last - iota(N, k)[None]) % N  # the position in each slot, (B, N)
    pools = [_taken(x, (kept - at[:, :1]).clip(min=0)) for x in (k, v)]
    return k, v, pools, at, call


def _append_paged(cache, k, v, new_lengths):
    n, S, T = cache.table.shape[1], cache.k.shape[2], k.shape[2]
    after = cache.lengths + (T if new_lengths is None else new_lengths)
    table, lengths = known(cache.table), [known(x) for x in (cache.lengths, after)]
    if table is not None and None not in lengths:
        cached.blocks(table, S, *lengths)
    at, real = _places(cache, T, new_lengths, n * S)
    block = jnp.take_along_axis(cache.table, (at // S).clip(max=n - 1), 1)
    block = jnp.where(real, block, -1)
    pools = [_put(pool, block, at % S, x) for pool, x in zip((cache.k, cache.v), (k, v), strict=True)]
    k, v = (pool[cache.table].swapaxes(1, 2) for pool in pools)  # (B, H, n, S, D)
    k, v = (x.reshape(*x.shape[:2], n * S, x.shape[4]) for x in (k, v))
    call = {"q_offset": cache.lengths} | _ends(new_lengths, after)
    return cache._replace(k=pools[0], v=pools[1], lengths=after), k, v, None, call


def _ends(new_lengths, kv_lengths):
    """What is padding: keys from kv_lengths on, queries from new_lengths on."""
    return {"kv_lengths": kv_lengths} | ({} if new_lengths is None else {"q_lengths": new_lengths})


def _places(cache, T, new_lengths, N=None):
    """The next T positions of each row, (B, T), and which are real and below N, or None if all are."""
    at = cache.lengths[:, None] + iota(T, cache.lengths)[None]
    real = None if new_lengths is None else iota(T, cache.lengths)[None] < new_lengths[:, None]
    if N is not None:
        real = at < N if real is None else real & (at < N)
    return at, real


def _put(pool, i, j, x, real=None):
    """pool (I, H, J, D) with x[b, :, t] in place of pool[i[b, t], :, j[b, t]], where real[b, t]."""
    if j.shape[1] > 1 or not x.size:
        j = j if real is None else jnp.where(real, j, pool.shape[2])  # what is out of the pool is dropped
        return pool.at[i, :, j].set(x.swapaxes(1, 2), mode="drop")

    B = x.shape[0]

    def put(b, pool):  # ten times as fast as a scatter, on a CPU
        b = jnp.minimum(b, B - 1)
        at = [n.astype(INDEX) for n in (i[b, 0], 0 * b, j[b, 0], 0 * b)]
        new = lax.dynamic_slice_in_dim(x, b, 1)  # (1, H, 1, D)
        if real is not None:
            new = jnp.where(real[b], new, lax.dynamic_slice(pool, at, new.shape))
        return lax.dynamic_update_slice(pool, new, at)

    return lax.fori_loop(0, max(B, 2), put, pool)  # a loop of one turn XLA writes out, and copies the pool


def _taken(x, at):
    """x (B, H, N, D) at the places (B, T): (B, H, T, D)."""
    return jnp.take_along_axis(x, at[:, None, :, None], 2)


def _rooms(cache):
    """How many positions a row can have: one number, or (B,) integers; None if there is no end."""
    if isinstance(cache, PagedCache):
        return (cache.table >= 0).cumprod(-1).sum(-1).astype(INDEX) * cache.k.shape[2]
    return cached.room(cache)


def next_positions(cache, T, like):
    """The positions of the next T to be appended, (B, T); without a cache 0 ... T - 1, (T,)."""
    return iota(T, like) if cache is None else cache.lengths[:, None] + iota(T, like)[None]


def over_keys(x, k):
    """x (..., N), over all the positions that there is room for, cut to the keys k (B, H, Tk, D)."""
    return x if x is None or x.shape[-1] == 1 else x[..., : k.shape[2]]


def held(k, v):
    """k and v, (..., H, Tk, D), as a ContextCache."""
    return ContextCache(k, v)


def fitting(cache, y):
    """y (B, ...), with NaN for the rows that more was appended to than there is room for."""
    rooms = _rooms(cache)
    if rooms is None or known(cache.lengths) is not None:  # then append has raised
        return y
    fits = (cache.lengths <= rooms).reshape(-1, *(1,) * (y.ndim - 1))
    return jnp.where(fits, y, jnp.nan)
