"""Attention for the models of the transformers library, which is imported only once `register` is called."""

import sys

import torch

from .arithmetic import accumulator
from .attention import scaled_dot_product_attention

# What models hand on to attention though it says nothing about it, or nothing that their mask does not say.
ELSEWHERE = (
    "cache_position",
    "deterministic",
    "num_items_in_batch",
    "output_hidden_states",
    "output_router_logits",
    "position_ids",
    "use_cache",
)


def register():
    """Let models of transformers compute attention here: `model.set_attn_implementation("attn_torch")`.

    Or from_pretrained(..., attn_implementation="attn_torch"), after this call, which may be made again. It
    registers the attention and also its masks: with the attention alone a model would read its padding.
    Scaling, softcap, sinks (s_aux), position_bias, windows, masks, grouped heads and is_causal are honoured,
    dropout in training too, by a seed from torch's generator; output_attentions gives the weights. Whatever
    else a model asks of attention is a TypeError that names it.
    A query that sees nothing, as in left padding, attends to nothing, where others average all values.
    A model that computes attention by itself, whatever it is told, is a ValueError if it asks for a mask.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    torch.compiler.assume_constant_result(exchangeable)  # which dynamo cannot trace
    AttentionInterface.register("attn_torch", attention_forward)
    AttentionMaskInterface.register("attn_torch", attention_mask)


def attention_forward(
    module,
    query,
    key,
    value,
    attention_mask,
    dropout=0.0,
    scaling=None,
    is_causal=None,
    sliding_window=None,
    softcap=None,
    s_aux=None,
    position_bias=None,
    output_attentions=False,
    **others,
):
    """scaled_dot_product_attention as transformers calls it.

    query (B, H, Tq, D), key (B, Hkv, Tk, D), value (B, Hkv, Tk, Dv).
    attention_mask: (B, H, Tq, Tk), where B, H may be 1: bool, True = attend, or a float, which is added. It
      says what is causal and in the window. Without one, the last query stands at the last key; causal if
      is_causal, by default module.is_causal; sliding_window: keys on a side of a query, its own counted.
    scaling, softcap, s_aux, position_bias: scale, softcap, sinks, bias. dropout: if module.training.
    Returns out (B, Tq, H, Dv), and the weights (B, H, Tq, Tk) where they are wanted, or None.
    Raises TypeError for keywords in others that are not ELSEWHERE, None or False, and for other masks.
    """
    for name, x in others.items():
        if x is not None and x is not False and name not in ELSEWHERE:
            raise TypeError(f"{name}: got {type(x).__name__}, wanted None: attn_torch has no such attention")
    exact = accumulator(query.dtype)
    options, biases = {"scale": scaling, "softcap": softcap}, [position_bias]
    if s_aux is not None:
        options["sinks"] = s_aux.to(exact)
    if attention_mask is None:
        options["causal"] = getattr(module, "is_causal", True) if is_causal is None else is_causal
        options["window"] = None if sliding_window is None else sliding_window - 1
        options["q_offset"] = "bottom_right"
    elif attention_mask.ndim != 4:
        raise ValueError(f"attention_mask: got shape {tuple(attention_mask.shape)}, wanted (B, H, Tq, Tk)")
    elif attention_mask.dtype == torch.bool:
        options["mask"] = attention_mask
    elif attention_mask.is_floating_point():
        biases.append(attention_mask)
    else:
        raise TypeError(f"attention_mask: got {attention_mask.dtype}, wanted bool or a floating type")
    if biases := [x.to(exact) for x in biases if x is not None]:
        options["bias"] = sum(biases[1:], biases[0])
    if dropout and module.training:
        options |= {"dropout_p": dropout, "dropout_seed": torch.randint(2**32, (), device=query.device)}
    if output_attentions or collecting():
        out, weights = scaled_dot_product_attention(query, key, value, return_weights=True, **options)
    else:
        out, weights = scaled_dot_product_attention(query, key, value, **options), None
    return out.transpose(1, 2).contiguous(), weights


def attention_mask(*, q_length, kv_length, config=None, allow_is_causal_skip=True, **call):
    """The bool mask (B, 1, Tq, Tk) that transformers makes, or None where attention_forward needs none.

    Raises ValueError for a model that computes attention by itself: it would not know what our mask means.
    """
    from transformers.masking_utils import sdpa_mask

    if config is not None and not exchangeable(type(config)):
        got = f"attn_torch for a model of {type(config).__name__}, which keeps its own attention"
        raise ValueError(f"attn_implementation: got {got}, wanted eager")
    unfilled = q_length not in (1, kv_length)  # a cache's empty places, perhaps
    skip = allow_is_causal_skip and not unfilled
    return sdpa_mask(q_length=q_length, kv_length=kv_length, allow_is_causal_skip=skip, **call)


def exchangeable(config_class):
    """Whether models of this configuration class ask for their attention by name, as far as is known."""
    from transformers import PreTrainedModel

    modeling = config_class.__module__.replace(".configuration_", ".modeling_")
    classes = [x for x in vars(sys.modules.get(modeling, object)).values() if isinstance(x, type)]
    models = [x for x in classes if issubclass(x, PreTrainedModel) and x.__module__ == modeling]
    return not models or any(model._can_set_attn_implementation() for model in models)


def collecting():
    """Whether this forward pass collects weights, which not every model says in a keyword."""
    from transformers.utils.output_capturing import _active_collector as collector

    found = collector.global_var if torch.compiler.is_compiling() else collector.get()
    return any("attentions" in name for name in found or ())
