"""Builds the tokenizer that a GGUF file describes, with the library of Hugging Face.

`byte_level.py`, `sentence_piece.py` and `unigram.py` build one kind of vocabulary each. This file adds the
tokens that are found in a text before all others, and those that are put around a text.
"""

from collections.abc import Callable

from tokenizers import AddedToken, Tokenizer, processors

from services.worker.text.from_gguf.byte_level import byte_level_tokenizer, pre_tokenizer
from services.worker.text.from_gguf.sentence_piece import piece_bpe_tokenizer
from services.worker.text.from_gguf.tokenizer_keys import TokenizerKeys
from services.worker.text.from_gguf.unigram import unigram_tokenizer
from services.worker.text.from_gguf.vocabulary import GgufVocabulary

_MODELS: dict[str, Callable[[TokenizerKeys, GgufVocabulary], Tokenizer]] = {
    "gpt2": byte_level_tokenizer,
    "llama": piece_bpe_tokenizer,
    "t5": unigram_tokenizer,
}


def gguf_tokenizer(keys: TokenizerKeys, vocabulary: GgufVocabulary) -> Tokenizer:
    """Build the tokenizer of a GGUF file.

    Raises:
        BadGguf: Its kind is unknown, a part is missing or contradicts another, or a limit is exceeded.
    """
    kind = keys.text("ggml.model")
    build = _MODELS.get(kind)
    if build is None:
        raise keys.error("ggml.model", f"must be one of {', '.join(_MODELS)}")
    try:
        tokenizer = build(keys, vocabulary)
    except ValueError as error:  # of the library
        raise keys.refusal(f"its tokenizer cannot be built: {error}; convert the model again") from error
    for special, ids in ((True, vocabulary.control_ids), (False, vocabulary.user_ids)):
        tokenizer.add_tokens(
            [AddedToken(vocabulary.tokens[each], special=special, normalized=False) for each in sorted(ids)]
        )
    _surround(tokenizer, keys, vocabulary)
    return tokenizer


def _surround(tokenizer: Tokenizer, keys: TokenizerKeys, vocabulary: GgufVocabulary) -> None:
    """Put the tokens around a text that is no prompt of a template; the defaults are those of llama.cpp."""
    kind = keys.text("ggml.model")
    begins = kind == "llama" or (kind == "gpt2" and pre_tokenizer(keys).begins)
    before = vocabulary.roles.bos if keys.flag("ggml.add_bos_token", default=begins) else None
    after = vocabulary.roles.eos if keys.flag("ggml.add_eos_token", default=kind == "t5") else None
    around = [
        {"id": special, "ids": [token_id], "tokens": [vocabulary.tokens[token_id]]}
        for special, token_id in (("before", before), ("after", after))
        if token_id is not None
    ]
    single = [*(["before"] if before is not None else []), "$A", *(["after"] if after is not None else [])]
    if around:
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=around)
