"""Reads and checks the vocabulary of a GGUF file: tokens, their kinds, and the ids with a special role."""

from dataclasses import dataclass

from gguf import TokenType

from services.worker.text.from_gguf.end_texts import ending_tokens
from services.worker.text.from_gguf.tokenizer_keys import TokenizerKeys

MAX_TOKENS = 2**19  # twice the largest vocabulary known (Gemma, 262,144)
MAX_TOKEN_CHARS = 2**24  # in all tokens together; Gemma's have 1.7 million


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Tokens with a role; None if the model has none."""

    bos: int | None
    eos: int | None
    eot: int | None
    eom: int | None
    unknown: int | None
    padding: int | None
    ends: frozenset[int]  # of a turn or message, in addition to `eos`; `eot` and `eom` are among them


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """A checked vocabulary.

    Attributes:
        tokens: By id; all different, none empty.
        types: The `gguf.TokenType` of each.
        roles: Tokens with a role.
        control_ids: Tokens that are not text: control tokens, the unknown one, and those that end an answer.
        user_ids: Tokens that are text, and are found in a text before all others.
    """

    tokens: list[str]
    types: list[int]
    roles: SpecialIds
    control_ids: frozenset[int]
    user_ids: frozenset[int]

    @property
    def control_texts(self) -> dict[str, int]:
        """The ids of `control_ids` by their texts."""
        return {self.tokens[token_id]: token_id for token_id in self.control_ids}

    def text(self, token_id: int | None) -> str:
        """Return the text of a token with a role; empty if there is none."""
        return "" if token_id is None else self.tokens[token_id]


def read_vocabulary(keys: TokenizerKeys) -> GgufVocabulary:
    """Read the vocabulary.

    Raises:
        BadGguf: It is missing, contradicts itself, or is beyond the limits.
    """
    tokens = _tokens(keys)
    types = keys.integers("ggml.token_type", len(tokens)) or [TokenType.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise keys.error("ggml.token_type", f"must have one entry for each of the {len(tokens)} tokens")
    roles = _roles(keys, tokens, types)
    not_text = {TokenType.CONTROL, TokenType.UNKNOWN}
    control = {token_id for token_id, kind in enumerate(types) if kind in not_text}
    control.update(token_id for token_id in (roles.bos, roles.eos, *roles.ends) if token_id is not None)
    user = {token_id for token_id, kind in enumerate(types) if kind == TokenType.USER_DEFINED}
    return GgufVocabulary(tokens, types, roles, frozenset(control), frozenset(user - control))


def _tokens(keys: TokenizerKeys) -> list[str]:
    tokens = keys.texts("ggml.tokens", MAX_TOKENS)
    if not tokens:
        raise keys.refusal("it holds no vocabulary (`tokenizer.ggml.tokens`); use a file with its tokenizer")
    # converters write an empty token where a vocabulary has a gap
    tokens = [token or f"[EMPTY_{token_id}]" for token_id, token in enumerate(tokens)]
    if sum(map(len, tokens)) > MAX_TOKEN_CHARS:
        raise keys.refusal(
            f"its tokens have more than {MAX_TOKEN_CHARS} characters together; use a model with a smaller "
            "vocabulary"
        )
    if len(set(tokens)) != len(tokens):
        seen: set[str] = set()
        twice = next(token for token in tokens if token in seen or seen.add(token))  # type: ignore[func-returns-value]
        raise keys.refusal(f"its vocabulary holds the token {twice[:80]!r} twice; convert the model again")
    return tokens


def _roles(keys: TokenizerKeys, tokens: list[str], types: list[int]) -> SpecialIds:
    """Return the tokens with a role, with the defaults of llama.cpp for SentencePiece vocabularies.

    An id that nothing here reads may be any: files give numbers beyond the vocabulary for tokens that a model
    does not have.
    """
    kind = keys.text("ggml.model")
    given = {
        role: keys.token_id(f"ggml.{role}_token_id", len(tokens), needed=_is_read(role, keys, kind))
        for role in ("bos", "eos", "eot", "eom", "unknown", "padding")
    }
    defaults = {"llama": {"bos": 1, "eos": 2, "unknown": 0}, "t5": {"eos": 1, "unknown": 2, "padding": 0}}
    for role, token_id in defaults.get(kind, {}).items():
        if given[role] is None and token_id < len(tokens):
            given[role] = token_id
    ends = ending_tokens(tokens, types)
    ends.update(token_id for token_id in (given["eot"], given["eom"]) if token_id is not None)
    return SpecialIds(**given, ends=frozenset(ends))


def _is_read(role: str, keys: TokenizerKeys, kind: str) -> bool:
    """Return whether serving depends on the token of a role."""
    if role == "padding":
        return False
    if role == "unknown":
        return kind != "gpt2"
    written = "bos_token" in keys.text("chat_template") or keys.flag("ggml.add_bos_token", default=True)
    return role != "bos" or written
