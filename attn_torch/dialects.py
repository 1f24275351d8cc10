"""The dialects of the block: what its keywords may be, which go together, and the parameters they make.

A keyword means the same in a module's constructor, in the function and in the function's init; a dialect is
one dict of keywords that all three take. Every message names the argument, what was got, what was wanted.
Axes: C channels (n_embd), H heads (n_head), D head size (head_dim), F hidden channels.
"""

from collections.abc import Mapping
from typing import NamedTuple

from .checks import INTEGERS, Spec, above_zero, array, flag, is_integer, kind_of, number, one_of, window_sides

NORMS = ("layer", "rms")
PLACEMENTS = ("pre", "post", "output", "sandwich")
PLAIN = ("gelu", "gelu_tanh", "gelu_sigmoid", "relu", "silu")
GATED = ("swiglu", "geglu", "geglu_tanh")
POSITIONS = ("none", "rotary", "alibi")
QK_NORMS = ("none", "head", "all")
BIASES = ("norm", "qkv", "out", "fc", "proj")
SCALINGS = {  # rope_type -> what it must and what it may have besides, by the names of a model's config.json
    "linear": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"),
    ),
}
# What a block's cross-attention takes over of its self-attention's keywords.
SHARED = (
    "n_kv_head",
    "head_dim",
    "qk_norm",
    "softcap",
    "scale",
    "attn_dropout",
    "precision",
    "implementation",
)
ATTENTION_NAMES = (
    *("w_qkv", "b_qkv", "w_q", "b_q", "w_kv", "b_kv"),
    *("q_norm", "k_norm", "w_out", "b_out"),
)
MLP_NAMES = ("w_fc", "b_fc", "w_gate", "b_gate", "w_proj", "b_proj")
NORM_NAMES = ("ln1", "ln2", "ln3", "ln1_post", "ln2_post", "ln3_post")


# ---- keywords


def block_options(norm_placement, parallel, causal, cross, resid_dropout):
    """Raise unless the block's own keywords are of their choices and go together."""
    one_of("norm_placement", norm_placement, PLACEMENTS)
    flag("parallel", parallel)
    flag("causal", causal)
    flag("cross", cross)
    probability("resid_dropout", resid_dropout)
    if parallel and norm_placement == "post":
        raise ValueError("norm_placement: got 'post' with parallel=True, wanted pre, output or sandwich")
    if parallel and cross:
        raise ValueError("parallel: got True with cross=True, wanted False")


class Dialect(NamedTuple):
    """A block's keywords by who takes them, its own as they are. norms: name -> shapes of gain and bias."""

    norms: dict
    norm: dict
    attn: dict
    cross_attn: dict
    mlp: dict
    norm_placement: str
    parallel: bool
    causal: bool
    cross: bool
    resid_dropout: float


def block(
    n_embd,
    *,
    hidden=None,
    activation="gelu",
    bias=True,
    norm="layer",
    norm_placement="pre",
    norm_offset=0.0,
    eps=None,
    parallel=False,
    causal=True,
    cross=False,
    mlp_dropout=0.0,
    resid_dropout=0.0,
    **attention,
):
    """The Dialect of these keywords, if the block's own are right; attention checks its own."""
    above_zero("n_embd", n_embd)
    block_options(norm_placement, parallel, causal, cross, resid_dropout)
    norms = {"norm": norm, "norm_offset": norm_offset, "eps": eps}
    norm_options(**norms)
    both = {"bias": bias, **norms}
    return Dialect(
        norms=block_norm_shapes(n_embd, norm_placement, cross, norm, bias),
        norm=norms,
        attn=both | attention,
        cross_attn={name: x for name, x in attention.items() if name in SHARED} | both,
        mlp={"hidden": hidden, "activation": activation, "bias": bias, "mlp_dropout": mlp_dropout},
        norm_placement=norm_placement,
        parallel=parallel,
        causal=causal,
        cross=cross,
        resid_dropout=resid_dropout,
    )


def norm_options(norm, norm_offset, eps):
    """Raise unless the keywords of a norm are of their choices and go together."""
    one_of("norm", norm, NORMS)
    number("norm_offset", norm_offset)
    number("eps", eps)
    if norm_offset and norm == "layer":
        raise ValueError(f"norm_offset: got {norm_offset} with norm='layer', wanted 0, or norm='rms'")


def attention_options(
    head_dim,
    cross=False,
    *,
    causal=False,
    positions="none",
    rotary_theta=10000.0,
    rotary_dim=None,
    rotary_interleaved=False,
    rotary_scaling=None,
    window=None,
    softcap=None,
    scale=None,
    attn_dropout=0.0,
    precision=None,
    implementation="auto",
):
    """Raise unless attention can have these keywords."""
    position_options(positions, causal, window, cross)
    turned = positions == "rotary"
    rotary_options(head_dim, rotary_theta, rotary_dim, rotary_interleaved, rotary_scaling, turned)
    window_sides(window)
    number("softcap", softcap, positive=True)
    number("scale", scale)
    probability("attn_dropout", attn_dropout)


def frozen(options):
    """Keywords as hashable pairs, for a module to hold: mappings become pairs too, and lists tuples."""

    def plain(x):
        return tuple(sorted(x.items())) if isinstance(x, Mapping) else tuple(x) if isinstance(x, list) else x

    return tuple((name, plain(x)) for name, x in options.items())


class Pairs(tuple):
    """A mapping as hashable pairs."""


def held(x):
    """x, of keywords, as something hashable of which given makes mappings and tuples again."""
    if isinstance(x, Mapping):
        return Pairs((name, held(y)) for name, y in x.items())
    return tuple(map(held, x)) if isinstance(x, tuple | list) else x


def given(x):
    """What held was given, with tuples for lists."""
    if isinstance(x, Pairs):
        return {name: given(y) for name, y in x}
    return tuple(map(given, x)) if isinstance(x, tuple) else x


def position_options(positions, causal, window, cross):
    """Raise unless attention, or with cross=True cross-attention, can have these positions and limits."""
    one_of("positions", positions, POSITIONS)
    flag("causal", causal)
    if cross and positions != "none":
        raise ValueError(f"positions: got {positions!r} with cross=True, wanted 'none'")
    if cross and causal:
        raise ValueError("causal: got True with cross=True, wanted False")
    if cross and window is not None:
        raise ValueError(f"window: got {window!r} with cross=True, wanted None")


def position_ids(position_ids, batch, T):
    """Raise unless positions of T tokens, a Spec or None, are integers of shape (T,) or (*batch, T)."""
    if position_ids is None:
        return
    if not isinstance(position_ids, Spec) or position_ids.dtype not in INTEGERS:
        got = position_ids.dtype if isinstance(position_ids, Spec) else kind_of(position_ids)
        raise TypeError(f"position_ids: got {got}, wanted an array of integers")
    if position_ids.shape not in ((T,), (*batch, T)):
        raise ValueError(f"position_ids: got shape {position_ids.shape}, wanted {(T,)} or {(*batch, T)}")


def rotary_options(head_dim, theta, rotary_dim, interleaved, scaling, used=True):
    """Raise unless heads of head_dim channels can be turned so; if nothing is, unless nothing says how."""
    number("rotary_theta", theta, positive=True)
    flag("rotary_interleaved", interleaved)
    given = {"rotary_dim": rotary_dim, "rotary_scaling": scaling}
    for name in [name for name, x in given.items() if x is not None and not used]:
        raise ValueError(f"{name}: got {given[name]!r}, wanted None, or positions='rotary'")
    d = head_dim if rotary_dim is None else rotary_dim
    if used and (not is_integer(d) or d % 2 or not 0 < d <= head_dim):
        raise ValueError(f"rotary_dim: got {d}, wanted an even number from 2 to the head size, {head_dim}")
    if scaling is None:
        return
    if not isinstance(scaling, Mapping | tuple):
        raise TypeError(f"rotary_scaling: got {kind_of(scaling)}, wanted a mapping with 'rope_type'")
    scaling = dict(scaling)
    one_of("rotary_scaling['rope_type']", scaling.get("rope_type"), SCALINGS)
    must, may = SCALINGS[scaling["rope_type"]]
    names = set(scaling) - {"rope_type"}
    if not set(must) <= names <= {*must, *may}:
        text = ", ".join(must) + (f", and possibly {', '.join(may)}" if may else "")
        raise ValueError(f"rotary_scaling: got {', '.join(sorted(names)) or 'nothing'}, wanted {text}")


def gated(activation):
    """Whether the activation is a gated one. Raise unless there is such an activation."""
    one_of("activation", activation, (*PLAIN, *GATED))
    return activation in GATED


def biases(bias):
    """The names, of BIASES, of what has a bias: all, none, or those that were given."""
    if isinstance(bias, bool):
        return BIASES if bias else ()
    if not isinstance(bias, tuple | list) or not all(name in BIASES for name in bias):
        raise ValueError(f"bias: got {bias!r}, wanted True, False, or some of {', '.join(BIASES)}")
    return tuple(bias)


def even(name, n):
    """Raise unless channels can be taken in pairs, a sine and a cosine each."""
    if n % 2:
        raise ValueError(f"{name}: got {n}, wanted an even number, for sines and cosines")


def probability(name, p):
    """Raise unless something can be dropped with this probability."""
    number(name, p)
    if p is None or not 0 <= p < 1:
        raise ValueError(f"{name}: got {p}, wanted at least 0 and below 1")


def heads(n_embd, n_head, n_kv_head=None, head_dim=None):
    """(n_kv_head, head_dim), each what it is where it is None. Raise unless they are heads of n_embd."""
    above_zero("n_embd", n_embd)
    whole = is_integer(n_head) and n_head > 0
    if head_dim is None and (not whole or n_embd % n_head):
        raise ValueError(f"n_head: got {n_head}, wanted a divisor of n_embd = {n_embd}")
    above_zero("n_head", n_head)
    if head_dim is not None:
        above_zero("head_dim", head_dim)
    if n_kv_head is not None and not (is_integer(n_kv_head) and n_kv_head > 0 and n_head % n_kv_head == 0):
        raise ValueError(f"n_kv_head: got {n_kv_head}, wanted a divisor of n_head = {n_head}")
    return n_head if n_kv_head is None else n_kv_head, n_embd // n_head if head_dim is None else head_dim


def context(cross, context, context_mask=None, context_lengths=None):
    """Raise unless a call has a context, and what is said about it, only where cross-attention reads it."""
    if cross and context is None:
        raise ValueError("context: got None with cross=True, wanted an array (..., Tk, C)")
    given = {"context": context, "context_mask": context_mask, "context_lengths": context_lengths}
    for name, x in given.items():
        if x is not None and not cross:
            got = x if is_integer(x) else "an array"
            raise ValueError(f"{name}: got {got} with cross=False, wanted None")


def output_alone(core):
    """Raise if the keywords of a call ask for more than the output: only attention itself gives more."""
    for name in ("return_lse", "return_weights"):
        if core.get(name):
            raise ValueError(f"{name}: got {core[name]!r}, wanted False, or scaled_dot_product_attention")


# ---- parameters: name -> shape, or the shapes of a norm's gain and bias


def norm_shapes(n, norm="layer", bias=True):
    """((n,), (n,)): gain and bias; a gain alone where there is no bias, as in every rms norm."""
    return ((n,), (n,)) if norm == "layer" and "norm" in biases(bias) else ((n,),)


def attention(
    n_embd,
    n_head,
    *,
    n_kv_head=None,
    head_dim=None,
    bias=True,
    cross=False,
    qk_norm="none",
    norm="layer",
    norm_offset=0.0,
    eps=None,
    **options,
):
    """(shapes of the parameters, keywords of the norm of q and k, the other keywords), if these are right.

    w_qkv (C, (H + 2 Hkv) D), or for cross-attention w_q and w_kv; q_norm, k_norm; w_out (H D, C); biases.
    """
    n_kv_head, D = heads(n_embd, n_head, n_kv_head, head_dim)
    flag("cross", cross)
    one_of("qk_norm", qk_norm, QK_NORMS)
    norm_options(norm, norm_offset, eps)
    q, kv, which = n_head * D, n_kv_head * D, biases(bias)
    shapes: dict[str, tuple] = {}
    for name, width in (("q", q), ("kv", 2 * kv)) if cross else (("qkv", q + 2 * kv),):
        shapes[f"w_{name}"] = (n_embd, width)
        if "qkv" in which:
            shapes[f"b_{name}"] = (width,)
    if qk_norm != "none":
        shapes["q_norm"] = norm_shapes(D if qk_norm == "head" else q, norm, bias)
        shapes["k_norm"] = norm_shapes(D if qk_norm == "head" else kv, norm, bias)
    shapes["w_out"] = (q, n_embd)
    if "out" in which:
        shapes["b_out"] = (n_embd,)
    return shapes, {"norm": norm, "norm_offset": norm_offset, "eps": eps}, options


def mlp_shapes(n_embd, *, hidden=None, activation="gelu", bias=True, mlp_dropout=0.0):
    """w_fc (C, F), with a gated activation w_gate (C, F), and w_proj (F, C); the biases that there are."""
    probability("mlp_dropout", mlp_dropout)
    above_zero("n_embd", n_embd)
    F, which = 4 * n_embd if hidden is None else hidden, biases(bias)
    above_zero("hidden", F)
    shapes = {"w_fc": (n_embd, F), "b_fc": (F,), "w_gate": (n_embd, F), "b_gate": (F,)}
    shapes |= {"w_proj": (F, n_embd), "b_proj": (n_embd,)}
    absent = {"b_fc", "b_gate"} if "fc" not in which else set()
    absent |= {"b_proj"} if "proj" not in which else set()
    absent |= {"w_gate", "b_gate"} if not gated(activation) else set()
    return {name: shape for name, shape in shapes.items() if name not in absent}


def block_norm_shapes(n_embd, norm_placement, cross, norm, bias):
    """ln1 of attention, ln2 of the MLP, ln3 of cross-attention; in a sandwich ln1_post ... after them too."""
    places = ("ln1", "ln2", "ln3") if cross else ("ln1", "ln2")
    after = [f"{name}_post" for name in places] if norm_placement == "sandwich" else []
    return dict.fromkeys((*places, *after), norm_shapes(n_embd, norm, bias))


def weights(shapes):
    """The names of what is neither a norm nor a bias."""
    return [n for n, shape in shapes.items() if not n.startswith("b_") and not isinstance(shape[0], tuple)]


def size(params, name, axis, describe):
    """The size of this axis of the parameter of that name; of a norm's, of its gain. Raise without one."""
    if not isinstance(params, Mapping):
        raise TypeError(f"params: got {kind_of(params)}, wanted a dict")
    x = params.get(name)
    x = next(iter(x), None) if isinstance(x, tuple | list) else x
    if x is None:
        raise ValueError(f"params: {name}: missing")
    spec = describe(x)
    array(f"params: {name}", spec)
    if not spec.shape:
        raise ValueError(f"params: {name}: got shape (), wanted an axis of channels")
    return spec.shape[axis]


def agree(params, shapes, names, describe, branches=()):
    """Raise ValueError with a list unless params has branches, these shapes and, of names, no other entry.

    TypeError for what is no array: describe gives the Spec of one.
    """
    wrong = [f"{name}: missing" for name in branches if name not in params]
    for name, wanted in shapes.items():
        got = params.get(name)
        if got is None:
            wrong.append(f"{name}: missing")
            continue
        specs = [describe(x) for x in got] if isinstance(got, tuple | list) else [describe(got)]
        for spec in specs:
            array(f"params: {name}", spec)
        got = tuple(spec.shape for spec in specs) if isinstance(got, tuple | list) else specs[0].shape
        if got != wanted:
            wrong.append(f"{name}: got shape {got}, wanted {wanted}")
    wrong += [f"{name}: unexpected" for name in names if name in params and name not in shapes]
    if wrong:
        raise ValueError("params: " + "; ".join(wrong))
