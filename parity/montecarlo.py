"""Limits for composites (MLP, block, model), output and all gradients, by Monte-Carlo arithmetic.

The oracle runs again and again with every rounding of the claim made at random, four times as large as it
is: a relative error uniform in (-4u, 4u) for an elementwise result, a normal one for a sum or an inner
product. From the deviations z of many runs,

    tolerance = 2 rms(z) + u_out |result| + underflow,        limit = 2 tolerance.

The tolerance is some eight standard deviations of what the claim's arithmetic does; a result beyond it is
worth a warning, one beyond the limit is wrong. A worst-case bound would exceed the spread of a block's
output in half precision many times over; this is a small part of it, but a measurement and no proof. Of a
claim, dp, query_block, online and one_pass play no part here.

A sum of n terms that is taken in random order wanders from 0 to its value s, and rounds n times on the way:
its standard deviation is u / sqrt(3) sqrt(n (s^2 + sum of squares of the terms) / 3 + s^2). It is computed
once, at the exact values: its own change is of second order. Where all roundings of a claim are one u,
deviations are proportional to u, and such claims share their runs.

Source: Parker 1997 (Monte-Carlo arithmetic); Higham & Mary 2019 (sums in random order).
"""

from collections.abc import Callable, Iterable

import numpy as np

from parity.claims import CLAIMS, Claim
from parity.oracle import Array
from parity.oracle_block import evaluate

AMPLITUDE = 4.0
TOLERANCE = 2.0  # in root mean squares of the enlarged deviations
LIMIT = 2.0  # in tolerances
WARN_ABOVE = 1.0 / LIMIT  # the share of the limit that is the tolerance
SHARED_U = 2.0**-20  # for claims of one u: far above the rounding of float64, and its square far below it


def limits(
    op: Callable, inputs: dict, dout, claims: Iterable[str], samples: int = 32, seed: int = 0, **options
) -> tuple[dict[str, Array], dict[str, dict[str, Array]]]:
    """The exact results, as parity.oracle_block.evaluate gives them, and by claim the limit of each element.

    Judge with parity.verdict.judge_all(results, exact, limits[claim], warn_above=WARN_ABOVE).
    """
    exact, found, shared = {}, {}, {}
    for name in claims:
        claim = CLAIMS[name]
        key = claim.function_units if single_u(claim) else name
        unit = SHARED_U / claim.u_out if single_u(claim) else 1.0
        if key not in shared:
            shared[key] = deviations(op, inputs, dout, claim, AMPLITUDE * unit, samples, seed, **options)
        exact, rms = shared[key]
        found[name] = {
            tensor: LIMIT * (TOLERANCE * x / unit + claim.u_out * np.abs(exact[tensor]) + claim.eta_out)
            for tensor, x in rms.items()
        }
    return exact, found


def single_u(claim: Claim) -> bool:
    """Whether everything a claim rounds, it rounds by the same u."""
    roundoffs = {claim.u_out, claim.u_store, claim.u_operand, claim.u_acc, claim.u_reduce}
    return len(roundoffs) == 1 and claim.u_input == 0.0


def deviations(
    op: Callable, inputs: dict, dout, claim: Claim, scale: float, samples: int, seed: int, **options
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The exact results, and the root mean square of the deviations of runs whose roundings are scale * u."""
    rounding = Rounding(claim, scale)
    exact = evaluate(op, inputs, dout, rounding, **options)
    squares = {name: samples * rounding.own.get(id(value), np.zeros(1)) ** 2 for name, value in exact.items()}
    for sample in range(samples):
        rounding.start(np.random.Generator(np.random.SFC64([seed, sample])))
        for name, value in evaluate(op, inputs, dout, rounding, **options).items():
            squares[name] = squares[name] + np.square(value - exact[name])
    return exact, {name: np.sqrt(total / samples) for name, total in squares.items()}


class Rounding:
    """The hooks of parity.oracle.Exact with random roundings of scale * u.

    The run before the first `start` is exact and measures the standard deviation of every sum; later runs,
    which make the same sums in the same order, draw from these. The gradient of a weight is large and read
    by nothing else: its own deviation is not drawn but added to the mean square.
    """

    def __init__(self, claim: Claim, scale: float):
        self.claim, self.scale = claim, scale
        self.deviations: list[Array] = []
        self.own: dict[int, Array] = {}  # id of a weight's gradient -> the deviation of its own sums
        self.random: np.random.Generator | None = None
        self.turn = 0

    def start(self, random: np.random.Generator) -> None:
        """Begin a perturbed run."""
        self.random, self.turn = random, 0

    def relative(self, x, u):
        """x with a relative error of at most scale * u."""
        if self.random is None or u == 0.0:
            return x
        return x * (1.0 + self.scale * u * (2.0 * self.random.random(np.shape(x)) - 1.0))

    def accumulated(self, total, squares: Callable, n, u):
        """A sum of n terms with the error of its accumulation; squares() is the sum of the terms' squares."""
        if self.random is None:
            self.deviations.append(self.deviation(total, squares(), n, u))
            return total
        self.turn += 1
        return total + self.deviations[self.turn - 1] * self.random.standard_normal(total.shape)

    def deviation(self, total, squares, n, u):
        return self.scale * u * np.sqrt((n * (total * total + squares) / 3.0 + total * total) / 3.0)

    def matmul(self, x, y):
        x, y = self.relative(x, self.claim.u_input), self.relative(y, self.claim.u_input)
        return self.accumulated(x @ y, lambda: (x * x) @ (y * y), x.shape[-1], self.claim.u_acc)

    def total(self, x, axis):
        return self.summed(x, axis, self.claim.u_acc)

    def reduced(self, x, axis):
        return self.summed(x, axis, self.claim.u_reduce)

    def summed(self, x, axis, u):
        total = x.sum(axis, keepdims=True)
        return self.accumulated(
            total, lambda: (x * x).sum(axis, keepdims=True), x.size / max(total.size, 1), u
        )

    def weight_gradient(self, x, dy):
        """Its rounding to the dtype of the outputs is left to the u |result| of the tolerance."""
        gradient = x.T @ dy
        if self.random is None:
            squares = (x * x).T @ (dy * dy)
            self.own[id(gradient)] = self.deviation(gradient, squares, len(x), self.claim.u_acc)
        return gradient

    def computed(self, x, roundings=1.0):
        return self.relative(x, roundings * self.claim.u_acc)

    def function(self, x):
        return self.relative(x, self.claim.u_function)

    def stored(self, x):
        return self.relative(x, self.claim.u_store)

    def operand(self, x):
        return self.relative(x, self.claim.u_operand)

    def output(self, x):
        return self.relative(x, self.claim.u_out)
