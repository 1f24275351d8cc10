"""parity.weights: the format, the patterns, what is refused. Families are in test_models."""

import inspect
import json

import ml_dtypes
import numpy as np
import pytest
from blocks import part
from safetensors.numpy import load_file, save_file

from parity.weights import dtype_of, read, write
from parity.weights.entries import Leaf, gated, leaves, linear, tensors
from parity.weights.folder import flattened
from parity.weights.keywords import BLOCK, FRAME, UNWRITTEN
from parity.weights.pattern import arranged, arranged_shape, inverse
from parity.weights.stored import Stored, of_file

GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 5,
    "n_embd": 4,
    "n_head": 2,
    "n_layer": 2,
    "n_positions": 3,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
}
SHAPES = {"wte.weight": (5, 4), "wpe.weight": (3, 4), "ln_f.weight": (4,), "ln_f.bias": (4,)}
SHAPES |= {
    f"h.{i}.{name}": shape
    for i in range(2)
    for name, shape in {
        "ln_1.weight": (4,),
        "ln_1.bias": (4,),
        "attn.c_attn.weight": (4, 12),
        "attn.c_attn.bias": (12,),
        "attn.c_proj.weight": (4, 4),
        "attn.c_proj.bias": (4,),
        "ln_2.weight": (4,),
        "ln_2.bias": (4,),
        "mlp.c_fc.weight": (4, 16),
        "mlp.c_fc.bias": (16,),
        "mlp.c_proj.weight": (16, 4),
        "mlp.c_proj.bias": (4,),
    }.items()
}
RNG = np.random.default_rng(0)
BITS = {name: RNG.integers(0, 2**16, shape).astype(np.uint16) for name, shape in SHAPES.items()}
BF16 = {name: bits.view(ml_dtypes.bfloat16) for name, bits in BITS.items()}  # among them NaNs and infinities
F32 = {name: RNG.standard_normal(shape, np.float32) for name, shape in SHAPES.items()}


def folder(path, arrays, **config):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(GPT2 | config))
    save_file(arrays, path / "model.safetensors", {"format": "pt"})
    return path


def sharded(path, arrays, n=3):
    folder(path, arrays)
    (path / "model.safetensors").unlink()
    index = {name: f"model-{i % n + 1:05}-of-{n:05}.safetensors" for i, name in enumerate(arrays)}
    for file in set(index.values()):
        save_file({name: x for name, x in arrays.items() if index[name] == file}, path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return path


def test_bfloat16_is_read_exactly(tmp_path):
    tree = read(folder(tmp_path, BF16))[2]
    assert dtype_of(tree) == "bfloat16"
    for path, name in {"wte": "wte.weight", "blocks/1/attn/w_qkv": "h.1.attn.c_attn.weight"}.items():
        leaf = dict(flattened(tree))[path]
        assert leaf.shape == SHAPES[name]
        np.testing.assert_array_equal(np.asarray(leaf).view(np.uint32), BITS[name].astype(np.uint32) << 16)


@pytest.mark.parametrize("arrays", [BF16, F32], ids=["bfloat16", "float32"])
def test_a_file_read_and_written_is_the_same_file(tmp_path, arrays):
    arrays = {f"transformer.{name}": x for name, x in arrays.items()}
    given, path = folder(tmp_path / "given", arrays), tmp_path / "written"
    kind, keywords, tree = read(given)
    write(path, "gpt2", kind, keywords, tree)
    files = [at / "model.safetensors" for at in (given, path)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_model_in_shards_is_the_model_in_one(tmp_path):
    one, many = (
        dict(flattened(read(path)[2])) for path in (folder(tmp_path / "1", F32), sharded(tmp_path / "3", F32))
    )
    assert one.keys() == many.keys()
    for path, leaf in one.items():
        np.testing.assert_array_equal(leaf, many[path])


def test_a_tree_of_another_dtype_is_written_in_the_one_asked_for_if_that_is_exact(tmp_path):
    kind, keywords, tree = read(folder(tmp_path / "given", F32))
    with pytest.raises(ValueError, match="got float32, wanted what bfloat16 holds exactly"):
        write(tmp_path / "written", "gpt2", kind, keywords, tree, dtype="bfloat16")
    assert list((tmp_path / "written").iterdir()) == []
    write(tmp_path / "written", "gpt2", kind, keywords, tree, dtype="float64")
    for name, x in load_file(tmp_path / "written" / "model.safetensors").items():
        np.testing.assert_array_equal(x, F32[name.removeprefix("transformer.")].astype(np.float64))


REFUSED = {
    "an unknown family": (
        {},
        {"model_type": "mamba"},
        "config.json: got model_type 'mamba', wanted one of bert, ",
    ),
    "a tensor missing": (
        {"h.1.attn.c_proj.bias": None, "wpe.weight": None},
        {},
        "tensors of a gpt2 model: missing: h.1.attn.c_proj.bias, wpe.weight",
    ),
    "a tensor left over": (
        {"score.weight": F32["wte.weight"]},
        {},
        "tensors of a gpt2 model: left over: score.weight",
    ),
    "one of another shape": (
        {"h.0.attn.c_attn.weight": F32["h.0.attn.c_attn.bias"]},
        {},
        "h.0.attn.c_attn.weight: got shape (12,), wanted 'i o' with {}",
    ),
    "a layer more than config.json says": (
        {},
        {"n_layer": 1},
        "tensors of a gpt2 model: left over: h.1.attn.c_attn",
    ),
    "an entry missing": ({}, {"n_positions": ...}, "config.json: n_positions: missing"),
    "a number that is none": (
        {},
        {"n_layer": "2"},
        "config.json: n_layer: got '2', wanted an integer above 0",
    ),
    "what no keyword means": (
        {},
        {"scale_attn_by_inverse_layer_idx": True},
        "config.json: scale_attn_by_inverse_layer_idx: got True, wanted False",
    ),
    "an unknown activation": (
        {},
        {"activation_function": "elu"},
        "config.json: got activation 'elu', wanted gelu, ",
    ),
    "integers": (
        {"wte.weight": np.zeros((5, 4), np.int32)},
        {},
        "wte.weight: got dtype I32, wanted float64, float32, bfloat16, float16",
    ),
}


@pytest.mark.parametrize("arrays, config, text", REFUSED.values(), ids=REFUSED)
def test_a_model_that_is_not_all_known_is_refused(tmp_path, arrays, config, text):
    arrays = {name: x for name, x in (F32 | arrays).items() if x is not None}
    folder(tmp_path, arrays)
    said = {name: x for name, x in (GPT2 | config).items() if x is not ...}
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(ValueError) as error:  # noqa: PT011
        read(tmp_path)
    assert text in str(error.value)


def test_what_is_to_be_left_out_is_named(tmp_path):
    folder(tmp_path, F32 | {"score.weight": F32["wte.weight"], "h.0.attn.bias": F32["wte.weight"]})
    assert read(tmp_path, drop=["score.*"])[1]["n_vocab"] == 5


def test_a_head_that_was_saved_beside_the_embedding_it_is_tied_to_must_be_the_same(tmp_path):
    read(folder(tmp_path, F32 | {"lm_head.weight": F32["wte.weight"]}))
    folder(tmp_path, F32 | {"lm_head.weight": 2 * F32["wte.weight"]})
    with pytest.raises(ValueError, match=r"left over: lm_head\.weight"):
        read(tmp_path)


def test_entries_of_config_json_can_be_replaced(tmp_path):
    folder(tmp_path, F32, n_head=None)
    assert read(tmp_path, n_head=2)[1]["n_head"] == 2


def test_a_file_cut_short_is_refused(tmp_path):
    file = folder(tmp_path, F32) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="cut short or damaged"):
        read(tmp_path)
    file.write_bytes(b"\x40\0\0\0\0\0\0\0nonsense")
    with pytest.raises(ValueError, match="wanted a safetensors file"):
        of_file(file)


DAMAGED = [
    {"wte.weight": 3},
    {"wte.weight": {"dtype": "F32", "shape": [5, 4]}},
    {"wte.weight": {"dtype": "F32", "shape": [-5, -4], "data_offsets": [0, 80]}},
    {"wte.weight": {"dtype": "F32", "shape": [5, 4], "data_offsets": [0, 80, 160]}},
    {"wte.weight": {"dtype": "F32", "shape": [5, 4], "data_offsets": [0.0, 80.0]}},
    {"wte.weight": {"dtype": "F32", "shape": [5, 4], "data_offsets": [4, 80]}},
]


@pytest.mark.parametrize("header", DAMAGED)
def test_a_header_that_places_nothing_is_refused(tmp_path, header):
    text = json.dumps(header).encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + bytes(160))
    with pytest.raises(ValueError, match=r"place of wte\.weight is not in the file"):
        of_file(tmp_path / "x")


@pytest.mark.parametrize(
    "file, text, error, message",
    [
        ("model-00002-of-00003.safetensors", None, FileNotFoundError, "wanted this file, which model"),
        ("model.safetensors.index.json", "{", ValueError, "index.json: wanted JSON"),
        ("model.safetensors.index.json", "[]", ValueError, "index.json: got list, wanted names"),
        ("model.safetensors.index.json", "{}", ValueError, "index.json: wanted weight_map"),
        ("config.json", "", ValueError, "config.json: wanted JSON"),
        ("config.json", "null", ValueError, "config.json: got NoneType, wanted names"),
    ],
)
def test_a_folder_that_is_damaged_is_refused(tmp_path, file, text, error, message):
    path = sharded(tmp_path, F32) / file
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(error, match=message):
        read(tmp_path)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"wanted config\.json in it"):
        read(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    with pytest.raises(FileNotFoundError, match=r"wanted model\.safetensors or"):
        read(tmp_path)


def test_an_array_is_mapped_and_not_copied(tmp_path):
    leaf = read(folder(tmp_path, F32))[2]["wte"]
    assert isinstance(leaf, Leaf)
    assert isinstance(leaf.bits().base, np.memmap)


def test_keywords_that_a_family_has_not_are_refused(tmp_path):
    kind, keywords, tree = read(folder(tmp_path / "given", F32))
    with pytest.raises(
        ValueError, match=r"keywords of a gpt2 model: norm_placement: got 'post', wanted 'pre'"
    ):
        write(tmp_path / "written", "gpt2", kind, keywords | {"norm_placement": "post"}, tree)
    with pytest.raises(ValueError, match=r"parameters of a gpt2 model: missing: wpe; left over: wpos"):
        write(tmp_path / "written", "gpt2", kind, keywords, {**tree, "wpos": tree["wpe"], "wpe": {}})
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize(
    "shape, pattern, sizes",
    [
        ((5, 3), "o i -> i o", {}),
        ((12, 5), "(h t d) i -> i (t h d)", {"h": 2, "t": 3}),
        ((7, 3, 2, 2), "c k y x -> (y x k) c", {"k": 3, "y": 2, "x": 2}),
        ((1, 1, 4), "1 1 c -> c", {}),
    ],
)
def test_a_pattern_turned_round_is_the_way_back(shape, pattern, sizes):
    x = np.arange(np.prod(shape)).reshape(shape)
    y = arranged(x, pattern, sizes)
    assert y.shape == arranged_shape(shape, pattern, sizes)
    np.testing.assert_array_equal(arranged(y, inverse(pattern), sizes), x)


def test_heads_are_told_from_q_k_and_v():
    """Rows are head 0's q, k, v, then head 1's; columns shall be q of both, then k, then v."""
    rows = np.array(["q0", "k0", "v0", "q1", "k1", "v1"])
    columns = arranged(rows, "(h t d) -> (t h d)", {"h": 2, "t": 3})
    assert columns.tolist() == ["q0", "q1", "k0", "k1", "v0", "v1"]


def of(arrays):
    """Arrays as the tensors of a file."""

    class InMemory(Stored):
        def bits(self):
            return arrays[self.path]

    return {name: InMemory(name, 0, x.shape, x.dtype.name) for name, x in arrays.items()}


def test_one_tensor_of_two_parameters():
    x = F32["h.0.mlp.c_fc.weight"].T  # (16, 4)
    (entry,) = gated("up")
    found = dict(leaves(entry, of({"up.weight": x})))
    np.testing.assert_array_equal(found["w_gate"], x[:8].T)
    np.testing.assert_array_equal(found["w_fc"], x[8:].T)
    ((name, (dtype, shape, bits)),) = tensors(entry, found, None)
    assert (name, dtype, shape) == ("up.weight", "float32", (16, 4))
    np.testing.assert_array_equal(bits(), x)


def test_a_bias_that_a_family_has_not_is_zero_and_must_stay_so():
    _, entry = linear("qkv", "q", "k", "v", bias=(True, False, True), widths=(4, 2, 2))
    given = {"q.bias": np.float32([1, 2, 3, 4]), "v.bias": np.float32([5, 6])}
    found = dict(leaves(entry, of(given)))
    np.testing.assert_array_equal(found["b_qkv"], [1, 2, 3, 4, 0, 0, 5, 6])
    back = {name: bits() for name, (_, _, bits) in tensors(entry, found, None)}
    assert {name: x.tolist() for name, x in back.items()} == {name: x.tolist() for name, x in given.items()}
    with pytest.raises(ValueError, match="b_qkv: got numbers from column 4 on, wanted zeros"):
        dict(tensors(entry, {"b_qkv": np.float32(range(8))}, None))


def test_the_families_know_every_keyword_and_its_default():
    """Otherwise two models could be taken for one, or a keyword be refused that there is."""
    dialects, frame = (part("torch", name) for name in ("dialects", "model_dialects"))
    takers = (dialects.attention_options, dialects.attention, dialects.block, frame.transformer)
    given = {
        name: p.default
        for taker in takers
        for name, p in inspect.signature(taker).parameters.items()
        if p.kind is p.KEYWORD_ONLY
    }
    known = BLOCK | FRAME
    assert {name: x for name, x in given.items() if name in known} == known
    assert given.keys() - known.keys() == {*UNWRITTEN, "layers"}
