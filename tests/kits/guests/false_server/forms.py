"""Answers of the false server that have a form: llguidance follows it, as vLLM has it; or an own notation."""

import json
from typing import Any

from llguidance import LLMatcher, grammar_from

from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from services.worker.text.tokenizer import Tokenizer

_SPACES = (b"\n", b" ")
_PREFERRED = (b"}", b"]", b'"')  # the answer is to end some time


def form_of(style: str, body: dict[str, Any]) -> str:
    """The form that a request asks for, in llguidance's own notation; empty: none.

    Raises:
        ValueError: It cannot be read.
    """
    if style == "vllm":
        given = (body.get("structured_outputs") or {}).get("grammar", "")
        return grammar_from("grammar", given) if given else ""
    if style != "llama.cpp":
        return ""
    if body.get("json_schema"):
        return grammar_from("json_schema", json.dumps(_required_first(body["json_schema"])))
    given = body.get("grammar", "")
    if given.startswith("%llguidance"):
        raise ValueError("failed to parse grammar")
    return grammar_from("gbnf", given) if given else ""


def _required_first(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with the order in which llama.cpp's server writes the properties of an object."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    first = {name: properties[name] for name in properties if name in required}
    return {**schema, "properties": first | properties} if properties else schema


def formed_answer(form: str, tokenizer: Tokenizer, end_id: int, most: int, *, spaced: bool) -> list[int]:
    """Tokens of an answer, its end the last one unless there are too many.

    Args:
        spaced: White space comes wherever it may.
    """
    vocabulary = TokenVocabulary(tokenizer, frozenset([end_id]), tokenizer.vocab_size)
    matcher = LLMatcher(vocabulary.library, form, log_level=0)
    if matcher.is_error():
        raise ValueError(matcher.get_error())
    ids = list[int]()
    while len(ids) < most and end_id not in ids:
        mask = matcher.compute_bitmask()
        allowed = [one for one in range(tokenizer.vocab_size) if mask[one // 8] >> one % 8 & 1]
        ids.append(_chosen(allowed, tokenizer, end_id, spaced=spaced and not _ends_in_space(ids, tokenizer)))
        if ids[-1] != end_id:
            matcher.consume_token(ids[-1])
    return ids


def _chosen(allowed: list[int], tokenizer: Tokenizer, end_id: int, *, spaced: bool) -> int:
    if end_id in allowed:
        return end_id
    by_bytes = {tokenizer.token_bytes(one): one for one in reversed(allowed)}
    wanted = (*(_SPACES if spaced else ()), *_PREFERRED)
    found = next((by_bytes[data] for data in wanted if data in by_bytes), None)
    plain = (one for one in allowed if tokenizer.token_bytes(one).strip())
    return next(plain, allowed[0]) if found is None else found


def _ends_in_space(ids: list[int], tokenizer: Tokenizer) -> bool:
    return bool(ids) and not tokenizer.token_bytes(ids[-1]).strip()
