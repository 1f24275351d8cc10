"""What the arrays of a case hold: fills for q, k, v and dout, recipes for masks and biases, by name.

A fill changes standard normal arrays {"q": (*batch, H, Tq, D), "k", "v", "dout"} in place; `stream(name)` is
a further generator. A recipe takes a generator and the shape to fill; its last two axes are (Tq, Tk), either
of which may be 1 or missing.
"""

import numpy as np

FILLS = {}
RECIPES = {}


def fill(name):
    return lambda f: FILLS.setdefault(name, f)


def recipe(name):
    return lambda f: RECIPES.setdefault(name, f)


# ---- fills


@fill("normal")
def _(x, stream):
    pass


@fill("big")
def _(x, stream):
    x["q"] *= 8


@fill("huge")
def _(x, stream):
    x["q"] *= 60


@fill("tiny logits")
def _(x, stream):
    x["q"] *= 1e-3


@fill("tiny v")
def _(x, stream):
    x["v"] *= 1e-6
    x["dout"] *= 1e-5


@fill("one-hot")
def _(x, stream):
    k = np.repeat(x["k"], x["q"].shape[-3] // x["k"].shape[-3], -3)
    Tq, Tk = x["q"].shape[-2], k.shape[-2]
    x["q"] = 6 * k[..., stream("order").permutation(Tk)[np.arange(Tq) % Tk], :]


@fill("flat")
def _(x, stream):
    x["q"] *= 0


@fill("equal")
def _(x, stream):
    x.update({name: np.full_like(array, 0.75) for name, array in x.items()})


@fill("uniform")
def _(x, stream):
    x["q"] *= 0
    x["v"] = np.abs(x["v"]) + 0.5


@fill("cancelling")
def _(x, stream):
    pairs = x["k"].shape[-2] // 2
    k, v = x["k"], x["v"]
    k[..., 1 : 2 * pairs : 2, :] = k[..., 0 : 2 * pairs : 2, :]
    v[..., 1 : 2 * pairs : 2, :] *= 1e-2
    v[..., 1 : 2 * pairs : 2, :] -= v[..., 0 : 2 * pairs : 2, :]


@fill("ascending")
def _(x, stream):
    x["q"] = 8 * np.abs(x["q"])
    x["k"] = 0.3 * x["k"] + np.linspace(0, 60, x["k"].shape[-2])[:, None]


@fill("descending")
def _(x, stream):
    x["q"] = 8 * np.abs(x["q"])
    x["k"] = 0.3 * x["k"] + np.linspace(60, 0, x["k"].shape[-2])[:, None]


@fill("clusters")
def _(x, stream):
    member = stream("clusters").integers(0, 3, x["k"].shape[-2])
    x["k"], x["v"] = x["k"][..., member, :], x["v"][..., member, :]


@fill("alternating")
def _(x, stream):
    sign = (-1.0) ** np.arange(x["k"].shape[-2])[:, None]
    x["q"] = np.abs(x["q"])
    x["k"] = 4 * np.abs(x["k"]) * sign
    x["v"] = np.abs(x["v"]) * sign


@fill("low rank")
def _(x, stream):
    x["q"] = x["q"][..., :1, :] * (1 + 0.01 * stream("q").standard_normal((*x["q"].shape[:-1], 1)))
    x["k"] = x["k"][..., :1, :] * (1 + 0.3 * stream("k").standard_normal((*x["k"].shape[:-1], 1)))
    x["v"] = np.abs(x["v"])


@fill("mixed scales")
def _(x, stream):
    for name, spread in (("q", 1.5), ("v", 2.0), ("dout", 1.0)):
        x[name] *= np.exp(spread * stream(name).standard_normal(x[name].shape))


@fill("sparse")
def _(x, stream):
    for name in "qk":
        x[name] *= stream(name).random(x[name].shape) < 0.2


@fill("offset keys")
def _(x, stream):
    x["k"] += 8 * np.sign(stream("offset").standard_normal((*x["k"].shape[:-2], 1, x["k"].shape[-1])))


@fill("values near 16")
def _(x, stream):
    x["v"] += 16


@fill("raw overflow")
def _(x, stream):
    x["q"] = np.full_like(x["q"], 100.0)  # 8 * 100 * 100 > 65504, the largest float16
    x["k"] = 100 + 4 * x["k"]


@fill("negative live")
def _(x, stream):
    x["q"] = 8 * np.abs(x["q"]) + 64
    x["k"] = -2 * np.abs(x["k"]) - 64  # scores near -64 * 64 * sqrt(8) = -11585


@fill("constant dout")
def _(x, stream):
    x["dout"] = np.ones_like(x["dout"])  # what out.sum() sends back


@fill("worked example")
def _(x, stream):
    x["q"] = np.array([[1.0, 1.0]])
    x["k"] = np.array([[1.0, 1.0], [1.0, -1.0]])
    x["v"] = np.eye(2)


# ---- recipes for masks (True = attend) and keep-masks of dropout


@recipe("random")
def _(rng, shape):
    seen = rng.random(shape) < 0.6
    seen[..., 0] |= ~seen.any(-1)  # no row is empty
    return seen


@recipe("dead rows")
def _(rng, shape):
    seen = rng.random(shape) < 0.6
    seen[..., ::4, :] = False
    return seen


@recipe("block")
def _(rng, shape):
    i, j = _positions(shape)
    return np.broadcast_to((i < shape[-2] // 2) & (j < shape[-1] // 2), shape).copy()


@recipe("all but key 1")
def _(rng, shape):
    return np.broadcast_to(np.arange(shape[-1]) != 1, shape).copy()


@recipe("all but head 1")
def _(rng, shape):
    return np.broadcast_to((np.arange(shape[-3]) != 1)[:, None, None], shape).copy()


@recipe("first batch row")
def _(rng, shape):
    seen = rng.random(shape) < 0.5
    seen[..., 0] = True
    seen[1:] = True
    return seen


@recipe("nothing")
def _(rng, shape):
    return np.zeros(shape, bool)


# ---- recipes for biases


@recipe("normal")
def _(rng, shape):
    return rng.standard_normal(shape)


@recipe("big")
def _(rng, shape):
    return 20 * rng.standard_normal(shape)


@recipe("alibi")
def _(rng, shape):
    i, j = _positions(shape)
    slopes = 2.0 ** -np.arange(1, shape[-3] + 1)[:, None, None]  # (H, 1, 1)
    return np.broadcast_to(-slopes * np.abs(i - j), shape).copy()


@recipe("some -inf")
def _(rng, shape):
    bias = np.where(rng.random(shape) < 0.3, -np.inf, rng.standard_normal(shape))
    bias[..., 1] = -np.inf  # a key that no query reads
    return bias


@recipe("row -inf")
def _(rng, shape):
    return _one_row(rng, shape, -np.inf)


@recipe("row -1e9")
def _(rng, shape):
    return _one_row(rng, shape, -1e9)


@recipe("row -1e4")
def _(rng, shape):
    return _one_row(rng, shape, -1e4)


def _one_row(rng, shape, value):
    bias = rng.standard_normal(shape)
    bias[..., 2, :] = value
    return bias


def _positions(shape):
    """Query and key indices, (Tq, 1) and (1, Tk)."""
    return np.ogrid[: shape[-2], : shape[-1]]
