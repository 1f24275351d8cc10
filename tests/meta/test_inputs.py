"""Inputs: made once, the same everywhere, exactly representable, and laid out as they say."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from attn_torch.block import init_block
from parity import oracle
from parity.cases import CATALOGUE
from parity.inputs import (
    ACTIVATIONS,
    LAYOUTS,
    NORMS,
    lay_out,
    make,
    make_activation,
    make_block,
    make_norm,
    round_to,
)

DTYPES = ("float16", "bfloat16", "float32", "float64")
DIGEST = """
import hashlib
from parity.cases import CATALOGUE
from parity.inputs import make
made = make(CATALOGUE["everything"], "bfloat16", seed=3)
print(hashlib.sha256(b"".join(x.tobytes() for x in (made.q, made.k, made.v, made.dout))).hexdigest())
"""


def arrays(made):
    return {name: getattr(made, name) for name in ("q", "k", "v", "dout")}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_rounding_is_the_frameworks(dtype):
    rng = np.random.default_rng(0)
    magnitudes = 2.0 ** rng.integers(-149, 124, 20_000)
    edges = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        65504.0,
        65519.9,
        65520.0,
        3.3895e38,
        3.4e38,
        2.0**-134,
        6e-8,
    ]
    x = np.concatenate([rng.standard_normal(20_000) * magnitudes, edges]).astype(np.float32)
    wanted = torch.from_numpy(x).to(getattr(torch, dtype)).to(torch.float64).numpy()
    got, numbers = round_to(x, dtype), ~np.isnan(wanted)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(wanted[numbers]))


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("bfloat16", 8), ("float32", 24)])
def test_ties_go_to_even_and_all_else_to_the_nearest(dtype, bits):
    even, spacing = 1.0, 2.0 ** (1 - bits)
    tie = even + spacing / 2
    assert round_to(tie, dtype) == even
    assert round_to(tie + spacing, dtype) == even + 2 * spacing
    assert round_to(np.nextafter(tie, 2.0), dtype) == even + spacing  # not twice, by way of float32


def test_a_case_is_made_again_alone_and_in_another_process():
    digests = {
        subprocess.run([sys.executable, "-c", DIGEST], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(digests) == 1


def test_seeds_and_names_make_other_values():
    case = CATALOGUE["normal"]
    first = make(case, "float64").q
    assert not np.array_equal(first, make(case, "float64", seed=1).q)
    assert not np.array_equal(first, make(replace(case, name="another"), "float64").q)


def test_a_further_tensor_changes_no_other():
    case = CATALOGUE["normal"]
    more = replace(case, bias=("normal", "bhqk"), mask=("random", "b1qk"), dropout_p=0.5, dropout_seed=1)
    plain, options = arrays(make(case, "float64")), arrays(make(more, "float64"))
    for name, x in plain.items():
        np.testing.assert_array_equal(options[name], x)


@pytest.mark.parametrize("name", ["normal", "everything", "mixed-scales", "values-near-16", "raw-overflow"])
def test_values_depend_on_the_dtype_by_rounding_alone(name):
    exact = arrays(make(CATALOGUE[name], "float64"))
    for dtype in DTYPES:
        for tensor, x in arrays(make(CATALOGUE[name], dtype)).items():
            np.testing.assert_array_equal(x, round_to(exact[tensor], dtype))


def test_a_finite_bias_stays_finite_in_every_dtype():
    for dtype in DTYPES:
        assert np.isfinite(make(CATALOGUE["bias-finite-row"], dtype).options["bias"]).all()


@pytest.mark.parametrize("name", [name for name, case in CATALOGUE.items() if case.poison])
def test_poison_has_no_effect(name):
    poisoned = make(CATALOGUE[name], "float64")
    clean = make(replace(CATALOGUE[name], poison=""), "float64")
    got, wanted = (oracle.attention(*arrays(made).values(), **made.options) for made in (poisoned, clean))
    assert name.startswith("decode-step") or any(np.isnan(x).any() for x in arrays(poisoned).values())
    for tensor in ("out", "lse", "dq", "dk", "dv"):
        np.testing.assert_array_equal(getattr(got, tensor), getattr(wanted, tensor))


# layout -> strides, in elements, of an array of shape (2, 3, 5, 4)
STRIDES = {
    "contiguous": (60, 20, 4, 1),
    "bthd": (60, 4, 12, 1),
    "offset": (96, 32, 4, 1),
    "every second": (120, 40, 8, 1),
    "expanded": (20, 0, 4, 1),
    "column": (60, 20, 1, 5),
    "dout expanded": (4, 0, 0, 1),
    "dout bthd": (60, 4, 12, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_strides(layout):
    x = np.arange(120.0).reshape(2, 3, 5, 4)
    if "expanded" in layout:
        x = np.broadcast_to(x[:, :1] if layout == "expanded" else x[:, :1, :1], x.shape)
    view = lay_out(x, layout)
    np.testing.assert_array_equal(view, x)
    assert tuple(stride // x.itemsize for stride in view.strides) == STRIDES[layout]


@pytest.mark.parametrize("name", [name for name, case in CATALOGUE.items() if "expanded" in case.layout])
def test_expanded_inputs_are_equal_along_the_expanded_axes(name):
    made = make(CATALOGUE[name], "float32")
    for tensor in LAYOUTS[made.layout][0].split():
        x = getattr(made, tensor)
        np.testing.assert_array_equal(lay_out(x, made.layout), x)


def shapes(tree):
    if isinstance(tree, dict):
        return {name: shapes(part) for name, part in tree.items()}
    return [shapes(part) for part in tree] if isinstance(tree, tuple) else tuple(tree.shape)


def test_block_parameters_have_the_functional_blocks_tree():
    params, x, dout = make_block(24, 3, 2, 5, "float32")
    assert shapes(params) == shapes(init_block(0, 24))
    assert x.shape == dout.shape == (2, 5, 24)
    assert not np.any(params["ln1"][0] == 1.0)


def test_a_block_whose_heads_do_not_divide_is_refused():
    with pytest.raises(ValueError, match="n_head must divide n_embd, got n_embd=24, n_head=5"):
        make_block(24, 5, 2, 5, "float32")


def test_norm_inputs_are_where_norms_go_wrong():
    made = {name: make_norm(name, "float64")["x"] for name in NORMS}
    assert made["norm-tiny"].std() < 3e-3
    assert not made["norm-constant"].std(-1).any()
    assert made["norm-mean-1000-wide"].shape[-1] == 768
    assert abs(made["norm-mean-1000"].mean() - 1000) < 1
    assert made["norm-16"].shape[-1] == 16
    assert made["norm-ramp"].min() == 1e4


def test_activation_inputs_reach_where_gelus_part():
    x = {name: make_activation(name, "float64")["x"] for name in ACTIVATIONS}
    assert (x["gelu-range"].min(), x["gelu-range"].max()) == (-9, 9)
    assert (x["gelu-tail"].min(), x["gelu-tail"].max()) == (-4, -3)
