"""The tokens that end an answer, by their texts: GGUF files name only some of them by id."""

from collections.abc import Iterable

from gguf import TokenType

from services.worker.text.end_tokens import ends_messages_only

# texts that stand for nothing else, whatever the file says of their type
_MARKS = frozenset(
    {
        "<|eot_id|>",  # Llama 3
        "<|eom_id|>",
        "<|im_end|>",  # ChatML: Qwen, SmolLM, and others
        "<|end|>",  # Phi
        "<|return|>",  # gpt-oss
        "<|call|>",
        "<|flush|>",  # Solar
        "<|calls|>",
        "<end_of_turn>",  # Gemma
        "<|endoftext|>",  # GPT-2, Qwen
        "<|end_of_text|>",  # Llama 3, Granite
        "<end_of_utterance>",  # SmolVLM
        "<\uff5cend\u2581of\u2581sentence\uff5c>",  # DeepSeek
        "<|fim_pad|>",  # in code models: padding, and what begins another file
        "<|fim_repo|>",
        "<|repo_name|>",
        "<|file_sep|>",
    }
)
# texts that are ordinary ones in some vocabularies, such as the HTML tag `</s>` in that of Gemma
_ONLY_AS_CONTROL_TOKENS = frozenset(
    {
        "</s>",  # Llama 2, Mistral
        "<eos>",  # Gemma
        "<turn|>",
        "<|tool_response>",
        "<EOT>",  # CodeLlama
        "_<EOT>",
        "[EOT]",  # Kimi
        "[EOS]",
        "[e~[",  # MiniMax
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
    }
)


def ending_tokens(tokens: list[str], types: Iterable[int]) -> set[int]:
    """Return the ids of the tokens whose text says that they end an answer.

    Args:
        types: The `gguf.TokenType` of each token.
    """
    ends = {
        token_id
        for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if token in _MARKS or (kind == TokenType.CONTROL and token in _ONLY_AS_CONTROL_TOKENS)
    }
    texts = frozenset(tokens[token_id] for token_id in ends)
    return {token_id for token_id in ends if not ends_messages_only(tokens[token_id], texts)}
