"""Models that are kept otherwise: nanoGPT's checkpoints, both of CLIP's encoders in one folder."""

import numpy as np
import pytest
import torch
from frameworks import both_frameworks, package, to_native, to_numpy

from parity.weights import read
from parity.weights.folder import flattened
from parity.weights.pickled import load
from tools.models import END, IMAGES, NEAR, TABLE, given, made, run

SAID = {
    "n_layer": 3,
    "n_head": 4,
    "n_embd": 24,
    "block_size": 79,
    "bias": True,
    "vocab_size": 37,
    "dropout": 0.1,
}
MAPS = (
    "c_attn.weight",
    "c_fc.weight",
    "c_proj.weight",
)  # of GPT-2's own layout (in, out), of nanoGPT's (out, in)


@pytest.fixture(scope="module")
def gpt():
    """transformers' GPT-2 with an exact GELU, and the same as nanoGPT keeps it."""
    model = made("gpt2", activation_function="gelu", n_inner=None)
    state = {name: x.T.contiguous() if name.endswith(MAPS) else x for name, x in model.state_dict().items()}
    return model, state


CHECKPOINTS = {
    "wrapped": lambda state: {"model": state, "model_args": SAID, "iter_num": 7, "best": torch.tensor(3.0)},
    "compiled": lambda state: {"model": {f"_orig_mod.{n}": x for n, x in state.items()}, "model_args": SAID},
    "bare": lambda state: state,
}


@both_frameworks
@pytest.mark.parametrize("how", CHECKPOINTS)
def test_a_checkpoint_of_nanogpt(gpt, framework, how, tmp_path):
    model, state = gpt
    torch.save(CHECKPOINTS[how](state), tmp_path / "ckpt.pt")
    more = {"n_head": 4} if how == "bare" else {}
    loaded = package(framework).load(tmp_path / "ckpt.pt", **more)
    wide = package(framework).load(tmp_path / "ckpt.pt", dtype="float64", **more)
    assert loaded.keywords == wide.keywords
    assert loaded.keywords["activation"] == "gelu"
    if how == "wrapped":  # the others have the same keywords, and below the same parameters
        tokens = given("gpt2")["tokens"]
        want = to_numpy(model.double()(input_ids=torch.from_numpy(tokens)).logits)
        logits, _ = run(framework, wide, {"tokens": to_native(framework, tokens)})
        assert np.abs(to_numpy(logits) - want).max() < NEAR * np.abs(want).max()
    w_fc = package(framework).to_tree(loaded)["blocks"][2]["w_fc"]
    np.testing.assert_array_equal(w_fc, state["transformer.h.2.mlp.c_fc.weight"].numpy().T)


def test_a_checkpoint_without_arguments_has_no_number_of_heads(gpt, tmp_path):
    torch.save(gpt[1], tmp_path / "ckpt.pt")
    with pytest.raises(ValueError, match=r"n_head: got no model_args in the checkpoint, wanted n_head="):
        read(tmp_path / "ckpt.pt")


def test_tensors_of_a_checkpoint_are_those_that_were_saved(tmp_path):
    saved = {
        "half": torch.randn(3, 5).half(),
        "bfloat16": torch.randn(4).bfloat16(),
        "part": torch.randn(9)[2:5],
    }
    torch.save(saved, tmp_path / "ckpt.pt")
    for name, x in load(tmp_path / "ckpt.pt").items():
        assert x.dtype == str(saved[name].dtype).removeprefix("torch.")
        want = (
            saved[name].view(torch.int16).numpy().view(np.uint16)
            if name == "bfloat16"
            else saved[name].numpy()
        )
        np.testing.assert_array_equal(x.bits(), want)


def test_a_checkpoint_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return print, ("hello",)

    torch.save({"model": Evil()}, tmp_path / "ckpt.pt")
    with pytest.raises(ValueError, match=r"__builtin__\.print, wanted tensors and plain containers"):
        load(tmp_path / "ckpt.pt")


@pytest.mark.parametrize(
    "saved, text",
    [
        ({"x": torch.ones(2, 3).T}, "wanted a contiguous one"),
        ({"weight": torch.ones(2)}, r"got weight, wanted nanoGPT's"),
    ],
)
def test_another_checkpoint_is_refused(saved, text, tmp_path):
    torch.save(saved, tmp_path / "ckpt.pt")
    with pytest.raises(ValueError, match=text):
        read(tmp_path / "ckpt.pt")


def test_a_file_of_no_torch_is_refused(tmp_path):
    (tmp_path / "ckpt.pt").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"ckpt\.pt: wanted a file of torch\.save"):
        read(tmp_path / "ckpt.pt")


def test_both_parts_of_clip_in_one_folder(tmp_path):
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    text, vision = TABLE | {"eos_token_id": END}, IMAGES
    both = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=9)).eval()
    both.save_pretrained(tmp_path)
    both.double()
    with pytest.raises(ValueError, match="part: got None of a clip model, wanted 'text' or 'vision'"):
        read(tmp_path)
    for part, name in {"text": "clip_text_model", "vision": "clip_vision_model"}.items():
        call = {n: torch.from_numpy(x) for n, x in given(name).items()}
        call = {n: x.double() if x.is_floating_point() else x for n, x in call.items()}
        _, vector = package("torch").load(tmp_path, part=part, dtype=torch.float64)(**call)
        if part == "text":
            want = both.get_text_features(call["tokens"], call["mask"].long())
        else:
            want = both.get_image_features(call["tokens"].permute(0, 3, 1, 2))
        want = getattr(want, "pooler_output", want)
        assert (vector - want).abs().max() < NEAR * want.abs().max()


def test_names_of_the_first_years(tmp_path):
    from safetensors.torch import load_file, save_file

    made("bert").save_pretrained(tmp_path / "now")
    tensors = load_file(tmp_path / "now" / "model.safetensors")
    renamed = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, old in renamed.items():
        tensors = {name.replace(new, old): x for name, x in tensors.items()}
    (tmp_path / "then").mkdir()
    save_file(tensors, tmp_path / "then" / "model.safetensors")
    (tmp_path / "then" / "config.json").write_text((tmp_path / "now" / "config.json").read_text())
    now, then = (dict(flattened(read(tmp_path / x, drop=["cls.seq*"])[2])) for x in ("now", "then"))
    assert now.keys() == then.keys()
    for path, leaf in now.items():
        np.testing.assert_array_equal(leaf, then[path])


def test_a_part_is_of_clip_alone(tmp_path, gpt):
    gpt[0].save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="part: got 'text' of a gpt2 model, wanted None"):
        read(tmp_path, part="text")
