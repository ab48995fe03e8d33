"""Bodies that broke other servers of this API: each is refused with the field's name, or has no effect."""

import hmac
import json
import time
from typing import Any

import pytest

from services.gateway.admission.auth import Keyring
from services.gateway.formats.chat.call import judge_chat
from services.gateway.formats.chat.schema import ChatCompletionRequest
from services.gateway.formats.chat.translation import chat_request
from services.gateway.formats.fields.body_format import parse_body
from services.gateway.formats.fields.sampling import Origin
from services.gateway.formats.text.schema import CompletionRequest
from shared.errors import InvalidRequest
from shared.messages.generate import MAX_CHOICES

HELLO = [{"role": "user", "content": "Hello"}]
BOMB = "{% for a in range(10**9) %}{% for b in range(10**9) %}x{% endfor %}{% endfor %}"


def chat(raw: str = "", /, **fields: Any) -> ChatCompletionRequest:
    """Parses a chat body as the gateway does.

    Args:
        raw: More fields as JSON text, for values that `json` would not write.
        **fields: More fields.

    Returns:
        The parsed body.
    """
    body = json.dumps({"model": "demo", "messages": HELLO} | fields)
    return parse_body((body[:-1] + (f", {raw}" if raw else "") + "}").encode(), ChatCompletionRequest)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize(
    "field",
    [
        "temperature",
        "top_p",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "timeout",
    ],
)
def test_numbers_that_are_none_are_refused(field: str, value: str) -> None:
    """CVE-2026-54235: comparisons let NaN and infinity through to the kernels."""
    with pytest.raises(InvalidRequest) as caught:
        chat(f'"{field}": {value}')
    assert caught.value.data.get("param") in {field, None}  # a number out of range may be invalid JSON


@pytest.mark.parametrize("value", [MAX_CHOICES + 1, 10**6, 2**31, 2**63, 10**30, 0, -1])
def test_the_number_of_choices_is_bounded(value: int) -> None:
    """CVE-2026-34756: an unbounded `n` took all memory."""
    with pytest.raises(InvalidRequest) as caught:
        chat(n=value)
    assert caught.value.data["param"] == "n"


@pytest.mark.parametrize(
    "field", ["max_tokens", "max_completion_tokens", "top_logprobs", "top_k", "seed", "n"]
)
@pytest.mark.parametrize("value", [-(2**63) - 1, -(10**30), 2**63, 10**30])
def test_integers_beyond_the_wire_are_refused(field: str, value: int) -> None:
    """CVE-2026-21869: a negative count from a body reached pointer arithmetic."""
    with pytest.raises(InvalidRequest) as caught:
        chat(**{field: value})
    assert caught.value.data["param"] == field


@pytest.mark.parametrize("field", ["functions", "chat_template"])
def test_no_template_comes_from_a_request(field: str) -> None:
    """CVE-2025-61620: servers compiled these as sent. Grammars and tools are compiled within limits."""
    for value in (BOMB, [{"type": "function"}]):
        with pytest.raises(InvalidRequest) as caught:
            judge_chat(chat(**{field: value}))
        assert caught.value.data["param"] == field


@pytest.mark.parametrize(
    "field",
    ["prompt_embeds", "mm_processor_kwargs", "custom_logit_processor", "n_discard",
     "lora_path", "return_hidden_states", "kv_transfer_params"],
)  # fmt: skip
def test_fields_of_other_servers_reach_nothing(field: str) -> None:
    """CVE-2025-62164, CVE-2025-62426, CVE-2026-7304: such fields are unknown here and only counted."""
    body = chat(**{field: {"chat_template": BOMB, "tokenize": True}})
    assert judge_chat(body) == ([field], [])
    plain, more = (chat_request(one, Origin("r1", "acme", 7, None)) for one in (chat(), body))
    assert more == plain


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "video_url", "file", "image_embeds"])
def test_no_media_is_taken_and_no_address_followed(kind: str) -> None:
    """CVE-2025-6242, CVE-2026-24779, CVE-2026-22778 and others: media by URL, and its decoders."""
    part = {"type": kind, kind: {"url": "http://169.254.169.254/latest/meta-data/"}}
    with pytest.raises(InvalidRequest, match="only parts of type 'text'"):
        chat(messages=[{"role": "user", "content": [part]}])


def test_serialized_tensors_are_no_prompts() -> None:
    """CVE-2025-62164: `prompt_embeds` went to `torch.load`."""
    body = json.dumps({"model": "demo", "prompt_embeds": "gASVBQ=="}).encode()
    with pytest.raises(InvalidRequest) as caught:
        parse_body(body, CompletionRequest)
    assert caught.value.data["param"] == "prompt"


@pytest.mark.parametrize("opening", ['{"a":', "["])
def test_depth_ends_soon(opening: str) -> None:
    """Other servers' parsers ran out of stack before the end of the body."""
    raw = (opening * 100_000).encode()
    began = time.process_time()
    with pytest.raises(InvalidRequest):
        parse_body(raw, ChatCompletionRequest)
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize("key", ["a" * 20, "b" * 20, "z", "a" * 19 + "b", "é"])
def test_a_key_is_compared_with_every_known_one_in_full(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2025-59425: the time of a comparison revealed how much of a key was right."""
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def compare(known: bytes, given: bytes) -> bool:
        compared.append((known, given))
        return real(known, given)

    keyring = Keyring({"a" * 20: "acme", "b" * 20: "globex", "c" * 20: "initech"})
    monkeypatch.setattr(hmac, "compare_digest", compare)
    keyring.find(key.encode())
    assert len(compared) == 3
    assert {len(part) for pair in compared for part in pair} == {32}  # digests, not keys
    assert key.encode() not in {part for pair in compared for part in pair}
