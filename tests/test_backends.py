"""Other libraries' models on our attention: the numbers of their own, and nothing that they ask is lost."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from blocks import part_by

import attn_torch
from attn_torch.backend import attention_forward

TINY = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,  # else a model of random numbers says what it hears
}
GROUPED = TINY | {"num_key_value_heads": 2, "head_dim": 4}
SLIDING = GROUPED | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
# Model -> its class, its configuration's class and keywords. A window of 4 is shorter than the 9 tokens.
MODELS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "mistral": ("MistralForCausalLM", "MistralConfig", GROUPED | {"sliding_window": 4}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", TINY | {"scale_attn_by_inverse_layer_idx": True}),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        SLIDING | {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 5},
    ),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", SLIDING),
    "gpt-oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        SLIDING | {"num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "bert": ("BertModel", "BertConfig", TINY),
    "modernbert": (
        "ModernBertModel",
        "ModernBertConfig",
        TINY | {"local_attention": 4, "global_attn_every_n_layers": 2},
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": 64, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4},
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            "vocab_size": 64,
            "d_model": 16,
            "num_mel_bins": 8,
            "max_source_positions": 10,
            "max_target_positions": 32,
        }
        | dict.fromkeys(("encoder_layers", "decoder_layers"), 2)
        | dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4)
        | dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24)
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    ),
    "vit": ("ViTModel", "ViTConfig", TINY | {"image_size": 12, "patch_size": 4}),
}
DECODERS = ["llama", "mistral", "gpt2", "gemma2", "gemma3", "gpt-oss"]
T = 9


@pytest.fixture(autouse=True)
def float64_softmax(monkeypatch):
    """Some models' own attention takes a float32 softmax, whatever their dtype; here none does."""
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim=None, dtype=None: softmax(x, dim))


def model(name, attn_implementation, **changes):
    """The model in float64 with parameters far from zero, the same for each implementation."""
    import transformers

    attn_torch.register()
    model_class, config_class, options = MODELS[name]
    config = getattr(transformers, config_class)(**options | changes)
    torch.manual_seed(0)
    made = getattr(transformers, model_class)._from_config(config, attn_implementation=attn_implementation)
    if name == "gpt-oss":
        made.set_experts_implementation("eager")  # the other multiplies no float64
    with torch.no_grad():
        for p in made.parameters():
            p.copy_(0.4 * torch.randn(p.shape) if p.ndim > 1 else p + 0.1 * torch.randn(p.shape))
    return made.double().eval()


def tokens(n=T, seed=1):
    return torch.randint(3, 64, (2, n), generator=torch.Generator().manual_seed(seed))


def real_tokens(name):
    """Three tokens are padding: at the left of a decoder's batch, at the right of the others'."""
    mask = torch.ones(2, T, dtype=torch.long)
    mask[0, slice(3) if name in DECODERS else slice(-3, None)] = 0
    return mask


def call_of(name):
    rng = np.random.default_rng(0)
    if name == "vit":
        return {"pixel_values": torch.from_numpy(rng.standard_normal((2, 3, 12, 12)))}
    if name == "whisper":
        mel = torch.from_numpy(rng.standard_normal((2, 8, 20)))
        return {
            "input_features": mel,
            "decoder_input_ids": tokens(),
            "decoder_attention_mask": real_tokens(name),
        }
    call = {"input_ids": tokens(), "attention_mask": real_tokens(name)}
    return call | ({"decoder_input_ids": tokens(6)} if name == "t5" else {})


def numbers(name, output):
    """Logits, or the last hidden state, of the tokens that are none of padding."""
    y = output.logits if "logits" in output else output.last_hidden_state
    return (y if name in ("vit", "t5") else y[real_tokens(name).bool()]).detach().numpy()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_the_numbers_of_its_own_attention(name):
    ours, theirs = (model(name, implementation) for implementation in ("attn_torch", "eager"))
    call = call_of(name)
    with torch.no_grad():
        got, want = ours(**call, output_attentions=True), theirs(**call, output_attentions=True)
        unasked = ours(**call)
    assert part_by(numbers(name, got), numbers(name, want)) < 1e-14
    assert part_by(numbers(name, unasked), numbers(name, want)) < 1e-14
    kinds = [key for key in want if key.endswith("attentions")]
    assert kinds
    for kind in kinds:
        assert len(got[kind]) == len(want[kind])
        for w, v in zip(got[kind], want[kind], strict=True):
            seen = (
                w.sum(-1, keepdim=True) > 0
            )  # a query that sees nothing has no weights here, there equal ones
            assert part_by((w * seen).numpy(), (v * seen).numpy()) < 1e-14


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_left_padded_batch_generates_the_same_tokens(name, cache):
    ours, theirs = (model(name, implementation) for implementation in ("attn_torch", "eager"))
    call = {
        "input_ids": tokens(),
        "attention_mask": real_tokens(name),
        "max_new_tokens": 10,
        "do_sample": False,
    }
    call |= {"pad_token_id": 0, "eos_token_id": None} | (
        {"cache_implementation": cache} if cache == "static" else {}
    )
    got, want = ours.generate(**call), theirs.generate(**call)
    assert got.shape == (2, T + 10)
    assert torch.equal(got, want)
    assert len(set(got[:, T:].flatten().tolist())) > 3  # no constant would do


def test_gradients_are_those_of_the_models_own_attention():
    grads = []
    call = call_of("gpt2")
    follows = call["attention_mask"].cumsum(-1) > 1  # a real token, which padding does not predict
    call["labels"] = torch.where(follows, call["input_ids"], -100)
    for implementation in ("attn_torch", "eager"):
        made = model("gpt2", implementation)
        made(**call).loss.backward()
        grads.append({key: p.grad.numpy() for key, p in made.named_parameters()})
    assert {key for key, g in grads[0].items() if part_by(g, grads[1][key]) > 1e-12} == set()


def module(**attributes):
    return SimpleNamespace(num_key_value_groups=2, head_dim=4, training=False, **attributes)


def arrays(*shapes):
    rng = np.random.default_rng(2)
    return [torch.from_numpy(rng.standard_normal(shape)).requires_grad_() for shape in shapes]


# Model -> what its attention is asked for besides a mask.
ASKED = {
    "gpt_oss": lambda sinks, bias: {"s_aux": sinks, "scaling": 0.3},
    "gemma2": lambda sinks, bias: {"softcap": 1.5, "scaling": 0.3},
    "inkling": lambda sinks, bias: {"position_bias": bias, "scaling": 1.0},
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_what_a_model_asks_of_attention_it_gets(name, kind):
    eager = importlib.import_module(f"transformers.models.{name}.modeling_{name}").eager_attention_forward
    q, k, v, sinks, bias = arrays((2, 4, 5, 4), (2, 2, 7, 4), (2, 2, 7, 4), (4,), (1, 4, 5, 7))
    see = torch.ones(5, 7, dtype=torch.bool).tril(2).expand(2, 1, 5, 7)
    added = torch.linspace(0, 1, 7, dtype=torch.float64) * (kind == "float")
    added = added.expand(see.shape).masked_fill(~see, torch.finfo(torch.float64).min)
    results = []
    for f, given in ((attention_forward, see if kind == "bool" else added), (eager, added)):
        out, weights = f(
            module(sinks=sinks), q, k, v, given, **ASKED[name](sinks, bias), output_attentions=True
        )
        used = [x for x in (q, k, v, sinks, bias) if name == "gpt_oss" or x is not sinks]
        used = [x for x in used if name == "inkling" or x is not bias]
        results.append([out, weights, *torch.autograd.grad((out * out).sum(), used)])
    for got, want in zip(*results, strict=True):
        assert part_by(got.detach().numpy(), want.detach().numpy()) < 1e-13


def test_without_a_mask_a_window_is_as_wide_as_in_flash_attention():
    q, k, v = arrays((1, 4, 6, 4), (1, 2, 6, 4), (1, 2, 6, 4))
    at = torch.arange(6)
    for causal, near in ((True, at[:, None] >= at), (False, torch.ones(6, 6, dtype=torch.bool))):
        see = near & ((at[:, None] - at).abs() < 3)
        got, _ = attention_forward(module(is_causal=causal), q, k, v, None, sliding_window=3)
        want, _ = attention_forward(module(), q, k, v, see[None, None])
        assert torch.equal(got, want)


def test_the_last_queries_alone_give_what_all_of_them_give():
    q, k, v = arrays((1, 4, 6, 4), (1, 2, 6, 4), (1, 2, 6, 4))
    want, _ = attention_forward(module(is_causal=True), q, k, v, None)
    for n in (1, 2):
        got, _ = attention_forward(module(is_causal=True), q[:, :, -n:], k, v, None)
        assert part_by(got.detach().numpy(), want[:, -n:].detach().numpy()) < 1e-15


def weights_in_training(made, seed):
    torch.manual_seed(seed)
    return made.train()(input_ids=tokens(), output_attentions=True).attentions[0]


def test_dropout_in_training_drops_weights_by_torchs_generator():
    made = model("llama", "attn_torch", attention_dropout=0.25)
    kept = made(input_ids=tokens(), output_attentions=True).attentions[0]  # in evaluation
    dropped = weights_in_training(made, 0)
    gone = (dropped == 0) & (kept > 0)
    assert 0 < gone.sum() < (kept > 0).sum() / 2
    assert torch.equal(dropped, torch.where(gone, 0.0, kept / 0.75))
    assert torch.equal(weights_in_training(made, 0), dropped)
    assert not torch.equal(weights_in_training(made, 1), dropped)


def test_dropout_is_the_same_when_activations_are_computed_again():
    grads = []
    for again in (False, True):
        made = model("llama", "attn_torch", attention_dropout=0.25).train()
        if again:
            made.activation_checkpointing_enable()
        torch.manual_seed(3)
        made(input_ids=tokens(), labels=tokens()).loss.backward()
        grads.append(made.model.layers[0].self_attn.q_proj.weight.grad)
    assert torch.equal(*grads)


REFUSED = [
    ({"indices": torch.ones(1)}, None, TypeError, "indices: got Tensor, wanted None"),
    ({"cu_seq_lens_q": torch.ones(1)}, None, TypeError, "cu_seq_lens_q: got Tensor, wanted None"),
    (
        {},
        torch.ones(6, 6, dtype=torch.bool),
        ValueError,
        r"attention_mask: got shape \(6, 6\), wanted \(B, H, Tq, Tk\)",
    ),
    (
        {},
        torch.ones(1, 1, 6, 6, dtype=torch.long),
        TypeError,
        "attention_mask: got torch.int64, wanted bool or",
    ),
    ({"softcap": -1.0}, None, ValueError, "softcap: got -1.0"),
]


@pytest.mark.parametrize("asked, mask, error, text", REFUSED)
def test_what_we_cannot_is_refused(asked, mask, error, text):
    q, k, v = arrays((1, 4, 6, 4), (1, 2, 6, 4), (1, 2, 6, 4))
    with pytest.raises(error, match=f"^{text}"):
        attention_forward(module(), q, k, v, mask, **asked)


def test_a_model_that_keeps_its_own_attention_is_refused():
    import transformers

    attn_torch.register()
    config = transformers.BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=4)
    made = transformers.BloomModel._from_config(config, attn_implementation="attn_torch")
    with pytest.raises(
        ValueError, match="got attn_torch for a model of BloomConfig, which keeps its own attention"
    ):
        made(input_ids=tokens())


def test_registering_again_changes_nothing():
    from transformers import AttentionInterface, AttentionMaskInterface

    attn_torch.register()
    before = dict(AttentionInterface._global_mapping), dict(AttentionMaskInterface._global_mapping)
    attn_torch.register()
    assert before == (AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping)


def test_a_model_compiles_whole():
    made, call = model("llama", "attn_torch"), call_of("llama")
    with torch.no_grad():
        want = made(**call, output_attentions=True)  # transformers' own hooks for it cannot be traced
        got = torch.compile(made, fullgraph=True, backend="eager")(**call, output_attentions=True)
    torch.compiler.reset()
    assert torch.equal(got.logits, want.logits)
    assert all(map(torch.equal, got.attentions, want.attentions))
