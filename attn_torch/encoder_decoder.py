"""Two transformers: an encoder, and a decoder each of whose blocks reads what the encoder gives.

Axes: V entries of the vocabulary, T positions of the decoder, Tk of the encoder, C channels (n_embd).
"""

from functools import partial

from torch import nn

from . import dialects, model_dialects
from .arithmetic import describe
from .dropout import spread
from .multihead import split
from .transformer import Transformer, functions, initial, through


def init_encoder_decoder(key, *, encoder, decoder, share_embedding=False):
    """Parameters of an encoder and a decoder: {"encoder": init_transformer's, "decoder": init_transformer's}.

    The keywords are EncoderDecoder's. With share_embedding the decoder has no wte: it reads the encoder's.
    key: as in init_transformer.
    """
    given = model_dialects.encoder_decoder(encoder, decoder, share_embedding)
    heads = (encoder["n_head"], decoder["n_head"])
    keys = split(key, 2)
    names = ("encoder", "decoder")
    return {name: initial(*one) for name, *one in zip(names, keys, given, heads, strict=True)}


def encoder_decoder(
    params,
    inputs,
    tokens,
    *,
    encoder,
    decoder,
    share_embedding=False,
    mask=None,
    decoder_mask=None,
    dropout_seed=None,
    return_hidden=False,
):
    """Logits of the tokens, by a decoder that reads what an encoder makes of the inputs.

    params: as init_encoder_decoder's with the same keywords. inputs: what the encoder reads, (..., Tk) tokens
      or, with a stem, frames. tokens: (..., T) integers, what the decoder reads.
    mask: (..., Tk) bool, True = a real one of the encoder's positions; decoder_mask: (..., T) of the tokens.
    dropout_seed, return_hidden: as in transformer.
    Returns logits (..., T, V); with return_hidden also the decoder's hidden states, and the encoder's.
    Raises ValueError if keywords, shapes and parameters do not agree, TypeError if one has another dtype.
    Source: Vaswani et al. 2017, section 3.1.
    """
    given = model_dialects.encoder_decoder(encoder, decoder, share_embedding)
    dialects.agree(params, {}, (), describe, ("encoder", "decoder"))
    first = functions(params["encoder"], given[0], encoder["n_head"])
    second = functions(params["decoder"], given[1], decoder["n_head"])
    if share_embedding:
        second[0]["wte"] = first[0]["wte"]

    encode, decode = partial(through, inputs, *first), partial(through, tokens, *second)
    return both(encode, decode, tokens, mask, decoder_mask, dropout_seed, return_hidden)


def both(encode, decode, tokens, mask, decoder_mask, dropout_seed, return_hidden):
    """What encoder_decoder returns, by encode(**call) and decode(**call)."""
    seeds = spread(dropout_seed, 2, tokens)
    context, hidden = encode(mask=mask, dropout_seed=seeds[0], return_hidden=True)
    call = {"context": context, "context_mask": mask, "mask": decoder_mask, "dropout_seed": seeds[1]}
    out = decode(return_hidden=return_hidden, **call)
    return (*out, hidden) if return_hidden else out


class EncoderDecoder(nn.Module):
    """encoder_decoder as a module. inputs (..., Tk), tokens (..., T) -> logits (..., T, V).

    encoder, decoder: Transformer's arguments, each in a dict, n_vocab, n_embd, n_head and n_layer among them.
      By default the encoder has causal=False and head="none", the decoder cross=True.
    share_embedding: the decoder's wte is the encoder's.
    """

    def __init__(self, *, encoder, decoder, share_embedding=False):
        super().__init__()
        given = {"encoder": encoder, "decoder": decoder, "share_embedding": share_embedding}
        model_dialects.encoder_decoder(**given)
        self.held, self.share_embedding = dialects.held(given), share_embedding
        encoder, decoder = model_dialects.completed(encoder, decoder)
        self.encoder, self.decoder = Transformer(**encoder), Transformer(**decoder)
        self._share()
        self.register_load_state_dict_post_hook(EncoderDecoder._share)

    def _share(self, *_):
        """One embedding for both: to_empty, and loading with assign=True, give each its own."""
        if self.share_embedding:
            self.decoder.wte = self.encoder.wte

    def _apply(self, *args, **options):
        super()._apply(*args, **options)
        self._share()
        return self

    @property
    def keywords(self):
        """The constructor's arguments, in a dict."""
        return dialects.given(self.held)

    def forward(
        self, inputs, tokens, *, mask=None, decoder_mask=None, dropout_seed=None, return_hidden=False
    ):
        def encode(**call):
            return self.encoder(inputs, **call)

        def decode(**call):
            return self.decoder(tokens, **call)

        return both(encode, decode, tokens, mask, decoder_mask, dropout_seed, return_hidden)
