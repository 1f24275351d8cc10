"""The dialects of the transformer: its keywords besides the block's, and the parameters that they make.

As in dialects, a keyword means the same in a module's constructor, in the function and in its init.
Axes: V entries of the vocabulary, N positions, C channels (n_embd), H heads (n_head).
"""

from collections.abc import Mapping
from typing import NamedTuple

from . import dialects
from .checks import flag, is_integer, kind_of, number, one_of

EMBEDDING_POSITIONS = ("none", "learned", "sinusoidal")
HEADS = ("tied", "free", "none")
POOLS = (None, "first", "last", "mean")
NAMES = (
    *("wte", "wpe", "wtt", "cls", "rel_bias", "ln_e", "ln_f", "ln_t", "w_patch", "b_patch"),
    *("w_stem1", "b_stem1", "w_stem2", "b_stem2", "w_transform", "b_transform", "w_head", "b_head"),
    *("w_pool", "b_pool", "w_projection"),
)


class Frame(NamedTuple):
    """What stands around a transformer's blocks: hashable. norm: normalise's keywords, as pairs."""

    n_vocab: int | None
    n_embd: int
    n_layer: int
    n_ctx: int | None
    embedding_positions: str
    position_start: int
    embed_scale: float
    embed_dropout: float
    relative_bias: tuple | None  # (n_bucket, max_distance)
    causal: bool
    head: str
    head_scale: float
    logit_softcap: float | None
    head_transform: str | None
    pool: str | None
    patch: tuple | None  # (size, channels, rows, columns, whether there is a bias)
    stem: int | None
    norm: tuple


class Dialect(NamedTuple):
    """A transformer's keywords: its Frame, those of each block, and the shapes of what is in no block."""

    frame: Frame
    blocks: tuple
    shapes: dict


def transformer(
    n_vocab,
    n_embd,
    n_head,
    n_layer,
    *,
    n_ctx=None,
    embedding_positions="none",
    position_start=0,
    n_type=0,
    embed_norm=False,
    embed_scale=1.0,
    embed_dropout=0.0,
    layers=(),
    relative_bias=None,
    final_norm=True,
    head="tied",
    head_bias=False,
    head_scale=1.0,
    logit_softcap=None,
    head_transform=None,
    pool=None,
    pooler=False,
    projection=None,
    patch=None,
    stem=None,
    **block,
):
    """The Dialect of these keywords, if the transformer's own are right; the block checks its own."""
    sizes = {"n_embd": n_embd, "n_layer": n_layer}
    sizes |= {"n_vocab": n_vocab} if n_vocab is not None else {}
    sizes |= {"stem": stem} if stem is not None else {}
    sizes |= {"projection": projection} if projection is not None else {}
    for name, x in sizes.items():
        whole(name, x, 1)
    whole("n_type", n_type, 0)
    patch = patches(patch)
    inputs(n_vocab, patch, stem, head)
    n_ctx = positions(n_ctx, embedding_positions, position_start, patch)
    if embedding_positions == "sinusoidal":
        dialects.even("n_embd", n_embd)
    number("embed_scale", embed_scale)
    dialects.probability("embed_dropout", embed_dropout)
    head_options(head, head_bias, head_scale, logit_softcap, head_transform, pool, pooler, projection)
    for name, x in {"embed_norm": embed_norm, "final_norm": final_norm}.items():
        flag(name, x)
    given = dialects.block(n_embd, **block)
    frame = Frame(
        n_vocab=n_vocab,
        n_embd=n_embd,
        n_layer=n_layer,
        n_ctx=n_ctx,
        embedding_positions=embedding_positions,
        position_start=position_start,
        embed_scale=embed_scale,
        embed_dropout=embed_dropout,
        relative_bias=buckets(relative_bias),
        causal=given.causal,
        head=head,
        head_scale=head_scale,
        logit_softcap=logit_softcap,
        head_transform=head_transform,
        pool=pool,
        patch=patch,
        stem=stem,
        norm=tuple(given.norm.items()),
    )
    norms = {"ln_e": embed_norm, "ln_f": final_norm, "ln_t": head_transform is not None}
    shapes = embedding_shapes(frame, n_type, n_head)
    shapes |= {name: given.norms["ln1"] for name, there in norms.items() if there}
    shapes |= head_shapes(frame, head_bias, pooler, projection)
    return Dialect(frame, block_keywords(n_layer, layers, block), shapes)


def completed(encoder, decoder):
    """The keywords of an encoder and of a decoder, with what they are by default."""
    wanted = ("n_vocab", "n_embd", "n_head", "n_layer")
    for name, x in {"encoder": encoder, "decoder": decoder}.items():
        if not isinstance(x, Mapping):
            raise TypeError(f"{name}: got {kind_of(x)}, wanted a mapping of a transformer's keywords")
        if missing := [size for size in wanted if size not in x]:
            raise ValueError(f"{name}: got no {', '.join(missing)}, wanted {', '.join(wanted)}")
    return {"causal": False, "head": "none"} | dict(encoder), {"cross": True} | dict(decoder)


def encoder_decoder(encoder, decoder, share_embedding):
    """The Dialects of an encoder and a decoder, if they go together; a shared embedding is the encoder's."""
    flag("share_embedding", share_embedding)
    encoder, decoder = completed(encoder, decoder)
    first, second = transformer(**encoder), transformer(**decoder)
    if first.frame.head != "none" or first.frame.pool is not None:
        raise ValueError("encoder: got a head or a pool, wanted head='none' and pool=None")
    if not any(block.get("cross", False) for block in second.blocks):
        raise ValueError("decoder: got no block with cross=True, wanted at least one")
    if first.frame.n_embd != second.frame.n_embd:
        raise ValueError(
            f"decoder: got n_embd = {second.frame.n_embd}, wanted {first.frame.n_embd}, the encoder's"
        )
    if share_embedding:
        if first.shapes.get("wte") != second.shapes.get("wte") or "wte" not in first.shapes:
            raise ValueError("share_embedding: got True, wanted False, or one n_vocab for both")
        second.shapes.pop("wte")
    return first, second


def whole(name, x, least):
    """Raise unless x is an integer of at least so much."""
    if not is_integer(x) or x < least:
        raise ValueError(f"{name}: got {x!r}, wanted an integer of at least {least}")


def inputs(n_vocab, patch, stem, head):
    """Raise unless it is clear what the model reads, tokens, images or frames, and what its head tells."""
    one_of("head", head, HEADS)
    if patch is not None and stem is not None:
        raise ValueError(f"stem: got {stem} with a patch, wanted None")
    tokens = patch is None and stem is None
    if n_vocab is None and (tokens or head == "free"):
        raise ValueError("n_vocab: got None, wanted an integer of at least 1")
    if not tokens and head == "tied":
        raise ValueError(
            f"head: got 'tied' with a {'stem' if patch is None else 'patch'}, wanted 'free' or 'none'"
        )


def patches(patch):
    """A patch mapping as (size, channels, rows, columns of patches, whether there is a bias), or None."""
    if patch is None:
        return None
    keywords("patch", patch, ("size", "channels", "image"), ("bias",))
    size, channels, image = (patch[name] for name in ("size", "channels", "image"))
    bias = patch.get("bias", True)
    flag("patch['bias']", bias)
    sides = tuple(image) if isinstance(image, tuple | list) else (image, image)
    for name, x in {"patch['size']": size, "patch['channels']": channels}.items():
        whole(name, x, 1)
    if len(sides) != 2 or not all(is_integer(n) and n > 0 and n % size == 0 for n in sides):
        raise ValueError(f"patch['image']: got {image!r}, wanted a multiple of size = {size}, or two")
    return size, channels, sides[0] // size, sides[1] // size, bias


def buckets(relative_bias):
    """A relative_bias mapping as (n_bucket, max_distance), or None."""
    if relative_bias is None:
        return None
    keywords("relative_bias", relative_bias, ("n_bucket", "max_distance"), ())
    n_bucket, max_distance = relative_bias["n_bucket"], relative_bias["max_distance"]
    if not is_integer(n_bucket) or n_bucket < 4 or n_bucket % 4:
        raise ValueError(f"relative_bias['n_bucket']: got {n_bucket!r}, wanted a multiple of 4")
    whole("relative_bias['max_distance']", max_distance, n_bucket // 2 + 1)
    return n_bucket, max_distance


def keywords(name, x, must, may):
    """Raise unless x is a mapping with these names."""
    if not isinstance(x, Mapping):
        raise TypeError(f"{name}: got {kind_of(x)}, wanted a mapping with {', '.join(must)}")
    if not set(must) <= set(x) <= {*must, *may}:
        text = ", ".join(must) + (f", and possibly {', '.join(may)}" if may else "")
        raise ValueError(f"{name}: got {', '.join(map(str, x)) or 'nothing'}, wanted {text}")


def positions(n_ctx, embedding_positions, position_start, patch):
    """n_ctx, the rows of the table of positions, if there is one. Raise unless these go together."""
    one_of("embedding_positions", embedding_positions, EMBEDDING_POSITIONS)
    whole("position_start", position_start, 0)
    learned = embedding_positions == "learned"
    if position_start and not learned:
        raise ValueError(f"position_start: got {position_start}, wanted 0, or embedding_positions='learned'")
    if not learned and n_ctx is not None:
        raise ValueError(f"n_ctx: got {n_ctx}, wanted None, or embedding_positions='learned'")
    if learned and n_ctx is None and patch is not None:
        return 1 + patch[2] * patch[3]
    if learned:
        whole("n_ctx", n_ctx, position_start + 1)
    return n_ctx


def head_options(head, head_bias, head_scale, logit_softcap, head_transform, pool, pooler, projection):
    """Raise unless the keywords of what reads the last block's output go together."""
    flag("head_bias", head_bias)
    number("head_scale", head_scale)
    number("logit_softcap", logit_softcap, positive=True)
    if head_transform is not None:
        one_of("head_transform", head_transform, dialects.PLAIN)
    one_of("pool", pool, POOLS)
    flag("pooler", pooler)
    if head == "none":
        given = {"head_bias": head_bias, "logit_softcap": logit_softcap, "head_transform": head_transform}
        given["head_scale"] = None if head_scale == 1 else head_scale
        for name in [name for name, x in given.items() if x]:
            raise ValueError(f"{name}: got {given[name]!r} with head='none', wanted 'tied' or 'free'")
    for name, x in {"pooler": pooler, "projection": projection}.items():
        if x and pool is None:
            raise ValueError(f"{name}: got {x!r} with pool=None, wanted pool 'first', 'last' or 'mean'")


def block_keywords(n_layer, layers, block):
    """The keywords of each block: layers' entries in turn, over the keywords of all."""
    if not isinstance(layers, tuple | list) or not all(isinstance(x, Mapping) for x in layers):
        raise TypeError(f"layers: got {kind_of(layers)}, wanted a tuple of mappings of a block's keywords")
    if len(layers) > n_layer:
        raise ValueError(f"layers: got {len(layers)}, wanted at most n_layer = {n_layer}")
    return tuple(block | dict(layers[i % len(layers)]) if layers else block for i in range(n_layer))


# ---- parameters: name -> shape, or the shapes of a norm's gain and bias


def embedding_shapes(frame, n_type, n_head):
    """wte (V, C), or patches' w_patch, b_patch and cls, or a stem's; wpe (N, C); wtt; rel_bias."""
    C = frame.n_embd
    shapes: dict[str, tuple] = {}
    if frame.patch is not None:
        size, channels, *_, bias = frame.patch
        shapes["w_patch"] = (size * size * channels, C)
        shapes |= ({"b_patch": (C,)} if bias else {}) | {"cls": (C,)}
    elif frame.stem is not None:
        shapes |= {"w_stem1": (3 * frame.stem, C), "b_stem1": (C,), "w_stem2": (3 * C, C), "b_stem2": (C,)}
    else:
        shapes["wte"] = (frame.n_vocab, C)
    if frame.embedding_positions == "learned":
        shapes["wpe"] = (frame.n_ctx, C)
    if n_type:
        shapes["wtt"] = (n_type, C)
    if frame.relative_bias is not None:
        shapes["rel_bias"] = (frame.relative_bias[0], n_head)
    return shapes


def head_shapes(frame, head_bias, pooler, projection):
    """w_transform (C, C), b_transform; w_head (C, V), b_head; w_pool (C, C), b_pool; w_projection (C, n)."""
    C = frame.n_embd
    shapes: dict[str, tuple] = {}
    if frame.head_transform is not None:
        shapes |= {"w_transform": (C, C), "b_transform": (C,)}
    if frame.head == "free":
        shapes["w_head"] = (C, frame.n_vocab)
    if head_bias:
        shapes["b_head"] = (frame.n_vocab,)
    if pooler:
        shapes |= {"w_pool": (C, C), "b_pool": (C,)}
    if projection is not None:
        shapes["w_projection"] = (C, projection)
    return shapes


def kinds(shapes):
    """(names of arrays, of norms, of linear maps): the map of w_head and perhaps b_head is head."""
    norms = [name for name, shape in shapes.items() if isinstance(shape[0], tuple)]
    maps = [name[2:] for name in shapes if name.startswith("w_")]
    taken = {*norms, *(f"{letter}_{name}" for name in maps for letter in "wb")}
    return [name for name in shapes if name not in taken], norms, maps


def sizes(params, describe):
    """(n_vocab or None, n_embd, n_layer, n_ctx or None) of a parameter tree."""
    if not isinstance(params, Mapping):
        raise TypeError(f"params: got {kind_of(params)}, wanted a dict")
    blocks = params.get("blocks")
    if not isinstance(blocks, tuple | list) or not blocks:
        raise ValueError("params: blocks: missing")
    n_embd = dialects.size(blocks[0], "ln1", 0, describe)
    where = ("w_head", 1) if "w_head" in params else ("wte", 0)
    n_vocab = dialects.size(params, *where, describe) if where[0] in params else None
    return (
        n_vocab,
        n_embd,
        len(blocks),
        dialects.size(params, "wpe", 0, describe) if "wpe" in params else None,
    )
