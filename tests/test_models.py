"""Every family of parity.weights against transformers' own model, and as files read and written."""

import functools

import numpy as np
import pytest
from frameworks import both_frameworks

import attn_jax
import attn_torch
from parity.weights import read, write
from parity.weights.folder import flattened
from tools.models import (
    DECODERS,
    DROP,
    MODELS,
    NEAR,
    bound,
    difference,
    greedy,
    greedy_ours,
    ours,
    saved,
    theirs,
    wide,
)

every_family = pytest.mark.parametrize("name", MODELS)
QUICK = ("gpt2", "llama", "bert")  # the others' programs take JAX a second or two each


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """name -> (folder, transformers' model, the same in float64, what that gives)."""

    @functools.cache
    def get(name):
        folder = tmp_path_factory.mktemp(name)
        narrow, exact = saved(name, folder)
        with wide():
            return folder, narrow, exact, theirs(exact, name)

    return get


def agrees(model, framework, name, dtypes=("float64", "float32")):
    folder, _, exact, want = model(name)
    for dtype in dtypes:
        limit = NEAR if dtype == "float64" else bound(exact, name, want)
        assert difference(name, ours(framework, folder, name, dtype), want) < limit


@every_family
def test_torch_gives_the_numbers_of_transformers(model, name):
    agrees(model, "torch", name)


@pytest.mark.parametrize("name", QUICK)
def test_jax_gives_the_numbers_of_transformers(model, name):
    agrees(model, "jax", name, ["float64"])


@pytest.mark.slow
@every_family
def test_jax_gives_the_numbers_of_every_family(model, name):
    agrees(model, "jax", name)


@pytest.mark.parametrize("name", DECODERS)
def test_torch_takes_the_tokens_that_transformers_takes(model, name):
    folder, narrow, *_ = model(name)
    np.testing.assert_array_equal(greedy_ours("torch", folder, name, 64), greedy(narrow, name, 64))


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_jax_takes_the_tokens_that_transformers_takes(model, name):
    folder, narrow, *_ = model(name)
    np.testing.assert_array_equal(greedy_ours("jax", folder, name, 64), greedy(narrow, name, 64))


@every_family
def test_a_file_read_and_written_is_the_same_file_and_the_same_model(model, name, tmp_path):
    folder, narrow, *_ = model(name)
    kind, keywords, tree = read(folder, drop=DROP.get(name, ()))
    said = {n: x for n, x in narrow.config.to_dict().items() if n.endswith("token_id")}
    write(tmp_path, name, kind, keywords, tree, **said)
    assert read(tmp_path)[:2] == (kind, keywords)
    if name in DROP:
        return
    written, was = (path / "model.safetensors" for path in (tmp_path, folder))
    assert written.read_bytes() == was.read_bytes()
    again = type(narrow).from_pretrained(tmp_path, attn_implementation="eager")
    for key, x in theirs(narrow, name).items():
        np.testing.assert_array_equal(theirs(again, name)[key], x)


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
VARIANTS = {
    "llama with biases and YaRN": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "rope_parameters": YARN},
    ),
    "gpt_neox in series": ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False}),
    "qwen3 with biases": ("qwen3", {"attention_bias": True, "num_key_value_heads": 1}),
    "gemma3 of local layers": ("gemma3_text", {"layer_types": ["sliding_attention"] * 3}),
    "mistral without a window": ("mistral", {"sliding_window": None}),
    "vit without biases of q, k and v": ("vit", {"qkv_bias": False}),
    "t5 1.1": ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
}


@pytest.mark.parametrize("name, config", VARIANTS.values(), ids=VARIANTS)
def test_variants_of_a_family(name, config, tmp_path):
    folder, again = tmp_path / "given", tmp_path / "written"
    _, exact = saved(name, folder, **config)
    with wide():
        want = theirs(exact, name)
    assert difference(name, ours("torch", folder, name, "float64"), want) < NEAR
    kind, keywords, tree = read(folder)
    write(again, name, kind, keywords, tree)
    assert read(again)[:2] == (kind, keywords)
    written, was = (path / "model.safetensors" for path in (again, folder))
    assert written.read_bytes() == was.read_bytes()


@both_frameworks
@pytest.mark.parametrize("name", ["bert", "qwen3", "t5"])
def test_a_model_saved_is_the_model_loaded(model, framework, name, tmp_path):
    """As one of its family, and as this project's own, which takes every model."""
    package = {"torch": attn_torch, "jax": attn_jax}[framework]
    loaded = package.load(model(name)[0], drop=DROP.get(name, ()))
    for family in (name, "attn_parity"):
        package.save(loaded, tmp_path / family, family)
        again = package.load(tmp_path / family)
        trees = (flattened(package.to_tree(m)) for m in (loaded, again))
        for (path, x), (other, y) in zip(*trees, strict=True):
            assert path == other
            np.testing.assert_array_equal(x, y)


LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0], "long_factor": [1.0]}
UNSUPPORTED = [
    (
        "phi3",
        {"rope_parameters": LONGROPE},
        "got rope_type 'longrope', wanted default, linear, llama3 or yarn",
    ),
    ("gemma3_text", {"model_type": "gemma3"}, "got model_type 'gemma3', wanted one of bert, "),
    ("whisper", {"scale_embedding": True}, "scale_embedding: got True, wanted False"),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "got rope_type 'dynamic'"),
]


@pytest.mark.parametrize("name, config, text", UNSUPPORTED)
def test_what_is_not_supported_is_named(model, name, config, text):
    with pytest.raises(ValueError, match=f"^config.json: {text}"):
        read(model(name)[0], **config)


@both_frameworks
def test_what_is_no_model_and_no_dtype_is_refused(model, framework, tmp_path):
    package = {"torch": attn_torch, "jax": attn_jax}[framework]
    with pytest.raises(TypeError, match=r"^model: got dict, wanted Transformer or EncoderDecoder$"):
        package.save({}, tmp_path)
    for dtype in ("int32", "single", 3):
        text = f"^dtype: got '{dtype}', wanted one of float16, bfloat16, float32, float64$"
        with pytest.raises(ValueError, match=text):
            package.load(model("gpt2")[0], dtype=dtype)
