"""What arithmetic an implementation claims to do: a verdict is relative to its claim.

A claim names, for each place where attention rounds, the dtype it is rounded to. The strict claims (a
dtype's own name) are of float32 arithmetic that rounds to half only inputs, outputs, and what enters a
matrix product.
"""

from dataclasses import dataclass, replace

# u: the largest relative error of one rounding to nearest.
ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "tensorfloat32": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
}
# eta: what is lost at most where a result is too small. Subnormals may be flushed to zero; those of float16
# are needed and kept, so there it is half their spacing.
UNDERFLOW = {
    "float64": 2.0**-1022,
    "float32": 2.0**-126,
    "tensorfloat32": 2.0**-126,
    "bfloat16": 2.0**-126,
    "float16": 2.0**-25,
}
LARGEST = {
    "float64": float.fromhex("0x1.fffffffffffffp+1023"),
    "float32": float.fromhex("0x1.fffffep+127"),
    "tensorfloat32": float.fromhex("0x1.ffcp+127"),
    "bfloat16": float.fromhex("0x1.fep+127"),
    "float16": 65504.0,
}


@dataclass(frozen=True)
class Claim:
    """io: inputs and outputs. store: scores, weights and their gradients between two operations. operand:
    that to which they are rounded for a matrix product. accumulate: sums, exponentials, statistics.

    accumulator_units: error of one addition in roundoffs of accumulate; 2 for tensor cores that truncate.
    function_units: error of exp, tanh, erf in the same units. dp: the dtype of dout.v, if not store.
    reduce: the dtype in which the softmax VJP, dbias and dsinks are summed, if not accumulate.
    query_block: dk and dv are added up in io over blocks of so many queries; 0: they are not.
    squared_sum: the gradient of the softmax is made with L^-2 in store, L being the sum of exp(s - max).
    online: the softmax may be made of running maxima and of exp2, and the backward pass may make the weights
    again from the rounded lse; if not, a row has one maximum and its weights are kept.
    one_pass: the variance of a norm is E[x^2] - E[x]^2, and its gradient formed likewise.
    """

    io: str
    store: str
    operand: str
    accumulate: str
    accumulator_units: float = 1.0
    function_units: float = 4.0
    dp: str = ""
    reduce: str = ""
    query_block: int = 0
    squared_sum: bool = False
    online: bool = True
    one_pass: bool = False

    def u(self, dtype: str) -> float:
        """Roundoff of dtype; doubled where float64 is judged, for the oracle rounds as much."""
        return ROUNDOFF[dtype] * (2.0 if self.accumulate == "float64" else 1.0)

    @property
    def u_out(self) -> float:
        return self.u(self.io)

    @property
    def u_store(self) -> float:
        return self.u(self.store)

    @property
    def u_operand(self) -> float:
        """Of weights and their gradients on their way into a matrix product."""
        return self.u(self.operand)

    @property
    def u_input(self) -> float:
        """Of q, k, v, dout on the same way: they hold values of io already."""
        return self.u_operand if ROUNDOFF[self.operand] > ROUNDOFF[self.io] else 0.0

    @property
    def u_acc(self) -> float:
        return self.u(self.accumulate) * self.accumulator_units

    @property
    def u_function(self) -> float:
        return self.u_acc * self.function_units

    @property
    def u_dp(self) -> float:
        return self.u(self.dp or self.store)

    @property
    def u_reduce(self) -> float:
        return max(self.u(self.reduce or self.accumulate), self.u_acc)

    @property
    def eta(self) -> float:
        """Of an intermediate."""
        return max(UNDERFLOW[self.store], UNDERFLOW[self.operand], UNDERFLOW[self.accumulate])

    @property
    def eta_store(self) -> float:
        """Of one that is stored, and no more than that."""
        return UNDERFLOW[self.store]

    @property
    def eta_out(self) -> float:
        return UNDERFLOW[self.io]

    @property
    def coarsest(self) -> float:
        return max(self.u_store, self.u_operand, self.u_acc, self.u_dp, self.u_reduce)


def strict(io: str, operand: str = "", **differs) -> Claim:
    """float32 arithmetic, or float64 for float64, on values of io; operand: what matrix products round to."""
    wide = "float64" if io == "float64" else "float32"
    return Claim(io, wide, operand or io, wide, **differs)


def naive(io: str, **differs) -> Claim:
    """Every intermediate in the dtype of the inputs, sums in float32."""
    return Claim(io, io, io, "float32", online=False, **differs)


CLAIMS = {
    "float64": strict("float64"),
    "float32": strict("float32"),
    "bfloat16": strict("bfloat16"),
    "float16": strict("float16"),
    # the formula as it is written, softmax in one piece; half-precision inputs are float32 from end to end
    "float64-direct": strict("float64", online=False),
    "float32-direct": strict("float32", online=False),
    "bfloat16-direct": strict("bfloat16", operand="float32", online=False),
    "float16-direct": strict("float16", operand="float32", online=False),
    # float32 asked for less by name; a tensor core's accumulator truncates
    "tf32": strict("float32", operand="tensorfloat32", accumulator_units=2.0),
    "float32-in-bfloat16": strict("float32", operand="bfloat16", accumulator_units=2.0),
    # softmax in float32 whatever comes in: jax.nn.dot_product_attention
    "float64-as-float32": Claim("float64", "float32", "float32", "float32", online=False),
    # dout.v comes out of its product in the dtype of the inputs: jax.nn.dot_product_attention
    "bfloat16-jax": strict("bfloat16", dp="bfloat16", online=False),
    "float16-jax": strict("float16", dp="float16", online=False),
    # an exp of relative error 1e-4, dk and dv added up in the dtype of the inputs: torch's CPU flash kernel
    "bfloat16-cpuflash": strict("bfloat16", query_block=32, function_units=2048.0),
    "float16-cpuflash": strict("float16", query_block=32, function_units=2048.0),
    # attention written out without upcasting
    "bfloat16-naive": naive("bfloat16"),
    "float16-naive": naive("float16"),
    # the softmax VJP made and summed there too, with L^-2: flax on jax.nn.softmax, whose JVP is derived
    "bfloat16-flax": naive("bfloat16", reduce="bfloat16", squared_sum=True),
    "float16-flax": naive("float16", reduce="float16", squared_sum=True),
}
# normalisation by E[x^2] - E[x]^2
ONE_PASS = ("float64", "float32", "bfloat16", "float16")
CLAIMS |= {f"{name}-one-pass": replace(CLAIMS[name], one_pass=True) for name in ONE_PASS}
