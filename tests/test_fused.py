"""The frameworks' own kernels, mended: exactly the contract where they can, and a reason where not."""

import numpy as np
import pytest
from frameworks import both_frameworks, native_options, package, to_native

from parity import bounds, cases, inputs, oracle, subjects, verdict, worker

CLAIMS = {"torch": "float32", "jax": "float32-direct"}


def call(framework, case, dtype="float32", **options):
    made = inputs.make(case, dtype)
    q, k, v = (to_native(framework, x, dtype) for x in (made.q, made.k, made.v))
    return (q, k, v), native_options(framework, made.options, dtype) | options


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@both_frameworks
def test_every_case_that_it_takes_is_within_the_bound_and_every_other_is_refused(framework):
    run = {"torch": worker.run_torch, "jax": worker.run_jax}[framework]

    def load():
        def attend(q, k, v, **options):
            return package(framework).scaled_dot_product_attention(q, k, v, implementation="fused", **options)

        return attend

    subject = subjects.Subject(f"fused[{framework}]", framework, load, {"float32": CLAIMS[framework]})
    taken = 0
    for case in cases.select("default"):
        arrays, options = call(framework, case)
        reason = package(framework).explain(*arrays, **options).split("fused: ")[1].splitlines()[0]
        backward = case.softcap is None  # flex_attention has none on a CPU
        task = worker.Task(subject.name, case, "float32", "cpu", 0, backward)
        answer = worker.answer(run, task, lambda name: subject)
        if reason != "slower here":
            assert f"implementation: got 'fused', which {reason}" in answer.error
            continue
        assert not answer.error, (case.name, answer.error)
        made = inputs.make(case, "float32")
        truth = oracle.attention(made.q, made.k, made.v, made.dout, **made.options)
        limits = bounds.attention(truth, bounds.CLAIMS[CLAIMS[framework]])
        found = verdict.judge_all(answer.tensors, truth, limits, bounds.sizes(truth))
        assert found.status == verdict.PASSED, (case.name, found.worst)
        taken += 1
    assert taken > 40


@both_frameworks
def test_explain_names_the_choice_and_says_why_not_the_others(framework):
    q = to_native(framework, np.ones((1, 2, 3, 4), np.float32))
    lines = package(framework).explain(q, q, q, causal=True, return_weights=True).splitlines()
    assert lines == ["reference: chosen", "blockwise: never holds the weights", "fused: gives no weights"]
    sinks = to_native(framework, np.ones(2, np.float32))
    assert "fused: has no sinks" in package(framework).explain(q, q, q, sinks=sinks)
    with pytest.raises(
        ValueError, match=r"^implementation: got 'fused', which has no sinks, wanted auto or reference"
    ):
        package(framework).scaled_dot_product_attention(q, q, q, sinks=sinks, implementation="fused")
    with pytest.raises(TypeError, match="is_causal"):
        package(framework).explain(q, q, q, is_causal=True)
