"""Any call that the contract allows gives what the oracle gives, within the derived bound; gradients too."""

import numpy as np
import pytest
from frameworks import attend, both_frameworks, gradients
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parity import bounds, oracle, verdict

SIZES = st.tuples(  # batch, H, G, Tq, Tk, D, Dv
    st.sampled_from([(), (1,), (2,), (2, 3)]),
    *(
        st.integers(1, 3),
        st.integers(1, 3),
        st.integers(0, 6),
        st.integers(0, 6),
        st.integers(1, 4),
        st.integers(1, 3),
    ),
)


@st.composite
def calls(draw, sizes=SIZES):
    """(q, k, v, dout, options): small integers and halves, so that ties and exact zeros occur."""
    batch, H, G, Tq, Tk, D, Dv = draw(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    scores = (*batch, H * G, Tq, Tk)

    def values(*shape):
        return rng.integers(-4, 5, shape) / 2

    def broadcast():
        return tuple(n if draw(st.booleans()) else 1 for n in scores)[draw(st.integers(0, len(scores))) :]

    def per_row(low, high):
        return (
            draw(st.one_of(st.integers(low, high), st.just(rng.integers(low, high + 1, batch))))
            if batch
            else low
        )

    options = {
        "causal": draw(st.booleans()),
        "window": draw(st.none() | st.integers(0, 4) | st.tuples(*[st.none() | st.integers(0, 4)] * 2)),
        "q_offset": draw(st.just("bottom_right") | st.just(per_row(-3, 3))),
        "softcap": draw(st.none() | st.sampled_from([0.5, 3.0])),
        "scale": draw(st.none() | st.sampled_from([0.0, -0.5, 1.0])),
    }
    maybe = {
        "mask": lambda: rng.random(broadcast()) < 0.7,
        "bias": lambda: np.where(rng.random(shape := broadcast()) < 0.2, -np.inf, values(*shape)),
        "q_lengths": lambda: per_row(0, Tq),
        "kv_lengths": lambda: per_row(0, Tk),
        "sinks": lambda: values(H * G),
    }
    options |= {name: make() for name, make in maybe.items() if draw(st.booleans())}
    if draw(st.booleans()):
        options |= {
            "q_segment_ids": rng.integers(0, 3, (*batch, Tq)),
            "kv_segment_ids": rng.integers(0, 3, (*batch, Tk)),
        }
    if draw(st.booleans()):
        options |= {"dropout_p": 0.25, "dropout_seed": draw(st.integers(0, 2**32 - 1))}
    shapes = ((*batch, H * G, Tq, D), (*batch, H, Tk, D), (*batch, H, Tk, Dv), (*batch, H * G, Tq, Dv))
    return *(values(*shape) for shape in shapes), options


def judged(framework, q, k, v, dout, options, claim="float64-direct"):
    truth = oracle.attention(q, k, v, dout, **options)
    out, lse, weights = attend(framework)(q, k, v, return_lse=True, return_weights=True, **options)
    np.testing.assert_array_equal(weights == 0, truth.weights == 0)
    found = {"out": out, "lse": lse, **gradients(framework)(q, k, v, dout, **options)}
    return verdict.judge_all(found, truth, bounds.attention(truth, bounds.CLAIMS[claim]), bounds.sizes(truth))


def check(framework, sizes, examples):
    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(calls(sizes))
    def run(call):
        found = judged(framework, *call)
        assert found.status != verdict.FAILED, found

    run()


@pytest.mark.parametrize("framework", ["torch", pytest.param("jax", marks=pytest.mark.slow)])
def test_any_call_is_within_the_bound(framework):
    check(
        framework, SIZES, examples={"torch": 500, "jax": 20}[framework]
    )  # a shape costs JAX seconds to compile


@both_frameworks
def test_any_options_at_one_shape_are_within_the_bound(framework):
    check(framework, st.just(((2,), 1, 2, 5, 4, 3, 2)), examples={"torch": 500, "jax": 40}[framework])
