"""A wrong call gets an error that names the argument, and it is the same error in both packages."""

import re

import pytest
from bad_calls import BAD_CALLS, GOOD, Raw
from frameworks import both_frameworks, package, to_native


def call(framework, change):
    arguments = {
        name: x.x if isinstance(x, Raw) else to_native(framework, x) for name, x in (GOOD | change).items()
    }
    return package(framework).scaled_dot_product_attention(**arguments)


@both_frameworks
def test_the_call_that_the_table_changes_is_good(framework):
    assert call(framework, {}).shape == (2, 6, 5, 3)


@both_frameworks
@pytest.mark.parametrize("change, error, text", BAD_CALLS, ids=[text[:50] for *_, text in BAD_CALLS])
def test_a_wrong_call_is_refused(framework, change, error, text):
    with pytest.raises(error, match=f"^{re.escape(text)}"):
        call(framework, change)


@both_frameworks
def test_keywords_are_not_taken_by_position_nor_unknown_ones_swallowed(framework):
    with pytest.raises(TypeError, match="positional"):
        package(framework).scaled_dot_product_attention(
            *(to_native(framework, x) for x in GOOD.values()), True, None
        )
    with pytest.raises(TypeError, match="is_causal"):
        call(framework, {"is_causal": True})
