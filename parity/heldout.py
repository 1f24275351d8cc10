"""Cases that nobody looked at while the bounds were made: fills, masks and shapes of their own.

A bound that was adjusted until its alarms fell silent is only as good as its last test. These are for `parity
calibrate` alone, which reports them apart. Once a bound has been changed on their account, they belong to the
catalogue and others have to take their place.
"""

from functools import partial

import numpy as np

from parity.cases import Case
from parity.fills import fill, recipe

wide = partial(Case, q=(1, 5, 19, 33), kv=(1, 5, 23, 33), v_dim=33)
small = partial(Case, q=(3, 2, 6, 5), kv=(3, 2, 4, 5), v_dim=5)
groups = partial(Case, q=(1, 8, 10, 24), kv=(1, 2, 37, 24), v_dim=24)
row = partial(Case, q=(2, 2, 1, 64), kv=(2, 2, 601, 64), v_dim=64)


@fill("heavy tails")
def _(x, stream):
    for name in ("q", "k", "v", "dout"):
        x[name] = np.clip(stream(name).standard_t(2.5, x[name].shape), -40, 40)


@fill("signs")
def _(x, stream):
    x.update({name: np.sign(array) for name, array in x.items()})


@fill("few integers")
def _(x, stream):
    x.update({name: np.round(2 * array) for name, array in x.items()})


@fill("near ties")
def _(x, stream):
    x["k"] = x["k"][..., :1, :] + 1e-3 * x["k"]


@fill("one loud key")
def _(x, stream):
    x["k"][..., 2, :] *= 30


@fill("one loud channel")
def _(x, stream):
    for name in ("q", "k"):
        x[name][..., 0] *= 20


@fill("waves")
def _(x, stream):
    for name, period in (("q", 5.0), ("k", 7.0), ("v", 11.0)):
        t, d = np.ogrid[: x[name].shape[-2], : x[name].shape[-1]]
        x[name] = np.broadcast_to(3 * np.sin(t / period + d), x[name].shape).copy()


@fill("positive")
def _(x, stream):
    x.update({name: np.abs(array) for name, array in x.items()})


@fill("large mean")
def _(x, stream):
    x["v"] = 300 + x["v"]
    x["dout"] = 1 + 0.01 * x["dout"]


@fill("small everything")
def _(x, stream):
    x.update({name: 1e-2 * array for name, array in x.items()})


@fill("queries alike")
def _(x, stream):
    x["q"] = np.repeat(x["q"][..., :1, :], x["q"].shape[-2], -2)


@fill("log-normal")
def _(x, stream):
    for name in ("q", "k", "v"):
        x[name] = np.sign(x[name]) * np.exp(stream(name).standard_normal(x[name].shape))


@recipe("sparse")
def _(rng, shape):
    seen = rng.random(shape) < 0.15
    seen[..., -1] |= ~seen.any(-1)
    return seen


@recipe("ramp")
def _(rng, shape):
    i, j = np.ogrid[: shape[-2], : shape[-1]]
    return np.broadcast_to(0.37 * (j - i), shape).copy()


FILLS = (
    *("heavy tails", "signs", "few integers", "near ties", "one loud key", "one loud channel"),
    *("waves", "positive", "large mean", "small everything", "queries alike", "log-normal"),
)
CATCHES = "an alarm on a correct implementation"
SHAPES = {"wide": wide, "small": small, "groups": groups, "row": row}
HELD_OUT = (
    *(
        of_shape(f"held-out-{shape}-{name.replace(' ', '-')}", CATCHES, fill=name)
        for shape, of_shape in SHAPES.items()
        for name in FILLS
    ),
    wide("held-out-causal", CATCHES, fill="log-normal", causal=True),
    groups("held-out-bottom-right", CATCHES, fill="heavy tails", causal=True, q_offset="bottom_right"),
    wide("held-out-window", CATCHES, fill="waves", window=(5, 4)),
    wide("held-out-sparse", CATCHES, fill="one loud key", mask=("sparse", "b1qk")),
    groups("held-out-ramp", CATCHES, fill="few integers", bias=("ramp", "1hqk")),
    small("held-out-lengths", CATCHES, fill="heavy tails", kv_lengths=(4, 1, 2)),
    wide("held-out-softcap", CATCHES, fill="log-normal", softcap=4.0),
    groups("held-out-sinks", CATCHES, fill="near ties", sinks=(1.0, -2.0, 0.0, 3.0, 0.5, 9.0, -9.0, 0.1)),
    wide("held-out-dropout", CATCHES, fill="positive", dropout_p=0.35, dropout_seed=20),
    wide("held-out-scale", CATCHES, fill="queries alike", scale=-1.3, causal=True),
)
