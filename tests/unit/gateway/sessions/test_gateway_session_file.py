"""Session files: an exported file can be read back; any other is refused."""

import json
from hashlib import sha256
from typing import Any

import pytest
from msgspec.structs import replace

from services.gateway.resources.sessions import exported_file
from services.gateway.resources.sessions.exported_file import SessionFile
from shared.codec import pack_tokens
from shared.errors import Conflict, InvalidRequest, RequestTooLarge
from shared.messages import ChatMessage, ModelCard, ModelList, SessionRecord
from shared.messages.sessions import MAX_SESSION_MESSAGES

RECORD = SessionRecord(
    session_id="tea/with-ada",
    tenant="acme",
    model="demo",
    version=3,
    messages=[
        ChatMessage(role="user", content='Ada "Ü" \\ \x07\x7f\u2028\n😀', name="a"),
        ChatMessage(role="assistant", content="Hello"),
    ],
    token_ids=pack_tokens([1, 2**32 - 1, 3]),
    turns=1,
    last_group="g0",
    created_ms=1000,
    updated_ms=2000,
)
FILE = exported_file.dump_session(RECORD, "f1", 5000)


def refused(raw: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        exported_file.read_session(raw)
    return caught.value


def signed(document: dict[str, Any]) -> bytes:
    """Returns the document as a file with a correct digest, whatever it contains."""
    document = {key: value for key, value in document.items() if key != "sha256"}
    raw = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return json.dumps(document | {"sha256": sha256(raw).hexdigest()}).encode()


def test_what_is_exported_can_be_read_and_begins_anew() -> None:
    content = exported_file.read_session(FILE)
    assert (content.session_id, content.model, content.model_fingerprint) == (
        RECORD.session_id,
        "demo",
        "f1",
    )
    assert (content.messages, content.token_ids) == (RECORD.messages, [1, 2**32 - 1, 3])
    assert (content.turns, content.created_ms, content.exported_ms) == (1, 1000, 5000)
    record = exported_file.imported_record(content, "other", "s2", card("demo", "f1"), 9000)
    assert (record.tenant, record.session_id, record.version, record.last_group) == ("other", "s2", 1, "")
    assert (record.created_ms, record.updated_ms, record.turns) == (9000, 9000, 1)
    assert (record.messages, record.token_ids) == (RECORD.messages, RECORD.token_ids)


def test_the_file_tells_nothing_of_the_tenant_and_may_be_laid_out_anew() -> None:
    document = json.loads(FILE)
    assert "acme" not in FILE.decode()
    assert signed(document) != FILE
    assert exported_file.read_session(signed(document)) == exported_file.read_session(FILE)
    assert exported_file.read_session(json.dumps(document, indent=2).encode()) == exported_file.read_session(
        FILE
    )
    assert json.loads(signed(document)) == document  # other programs compute the digest by the same rule


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_file_that_is_cut(share: float) -> None:
    assert refused(FILE[: int(len(FILE) * share)]).data["reason"] == "file_cut"
    assert refused(FILE[:-2]).data["reason"] == "file_cut"


def test_every_field_is_under_the_digest() -> None:
    document = json.loads(FILE)
    for key in document.keys() - {"format", "format_version"}:
        altered = document | {key: "other"}
        assert refused(json.dumps(altered).encode()).data["reason"] == "file_altered", key
        missing = {name: value for name, value in document.items() if name != key}
        assert refused(json.dumps(missing).encode()).data["reason"] == "file_altered", key
    assert refused(FILE.replace(b"Hello", b"Hallo")).data["reason"] == "file_altered"
    assert refused(json.dumps(document | {"sha256": None}).encode()).data["reason"] == "file_altered"


def test_a_file_of_another_kind_or_version() -> None:
    document = json.loads(FILE)
    newer = refused(signed(document | {"format_version": 2}))
    assert newer.data["reason"] == "file_version"
    assert "version 2" in newer.message
    assert "reads version 1" in newer.message
    assert refused(signed(document | {"format_version": True})).data["reason"] == "file_version"
    for raw in (b"[]", b"{}", b'{"format": "x"}', b"PK\x03\x04", b"\xff\xfe", b"[" * 100_000):
        assert refused(raw).data["reason"] in {"file_format", "file_cut"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_ids", [-1]),
        ("token_ids", [2**32]),
        ("token_ids", [1.5]),
        ("messages", [{"role": "wizard", "content": "x"}]),
        ("messages", [{"role": "user"}]),
        ("session_id", "a b"),
        ("model", ""),
        ("turns", -1),
        ("created_ms", "x"),
    ],
)
def test_a_right_digest_does_not_make_a_wrong_file_right(field: str, value: Any) -> None:
    error = refused(signed(json.loads(FILE) | {field: value}))
    assert error.data["reason"] == "file_format"
    assert field in error.message


def content(model: str, fingerprint: str) -> SessionFile:
    return SessionFile(session_id="s", model=model, model_fingerprint=fingerprint, messages=[])


def card(name: str, fingerprint: str) -> ModelCard:
    return ModelCard(name=name, context_length=2048, fingerprint=fingerprint)


def test_a_session_has_no_more_tokens_than_the_model_s_context() -> None:
    for count in (2048, 2049):
        one = SessionFile(session_id="s", model="demo", messages=[], token_ids=list(range(count)))
        if count == 2048:
            assert (
                len(exported_file.imported_record(one, "t", "s", card("demo", ""), 1).token_ids) == 4 * count
            )
            continue
        with pytest.raises(RequestTooLarge, match=r"2049 token ids, and the context .* holds 2048") as caught:
            exported_file.imported_record(one, "t", "s", card("demo", ""), 1)
        assert caught.value.data["reason"] == "session_tokens"


def test_the_weights_decide_which_model_goes_on() -> None:
    served = ModelList(models=[card("copy", "f1"), card("demo", "f1"), card("old", "f0")])
    assert exported_file.served_by(content("demo", "f1"), served).name == "demo"
    assert exported_file.served_by(content("renamed", "f1"), served).name == "copy"
    assert exported_file.served_by(content("old", ""), served).name == "old"
    for wanted in (content("demo", "f2"), content("nope", "")):
        with pytest.raises(Conflict) as caught:
            exported_file.served_by(wanted, served)
        assert repr(wanted.model) in caught.value.message
        assert "'demo' (fingerprint f1)" in caught.value.message


def test_a_session_of_too_many_messages_is_refused_by_its_limit() -> None:
    empty = ChatMessage(role="user", content="")
    fits = replace(RECORD, messages=[empty] * MAX_SESSION_MESSAGES)
    assert (
        len(exported_file.read_session(exported_file.dump_session(fits, "f1", 5000)).messages)
        == MAX_SESSION_MESSAGES
    )
    many = exported_file.dump_session(replace(RECORD, messages=[empty] * 22_000), "f1", 5000)
    with pytest.raises(RequestTooLarge, match="has 22000 messages, and may have 8192") as caught:
        exported_file.read_session(many)
    assert caught.value.data["reason"] == "session_messages"


@pytest.mark.parametrize(
    "odd",
    [
        {f"k{n}": 0 for n in range(300)},
        {"more": {f"k{n}": 0 for n in range(300)}},
        {"more": [[{f"k{n}": 0 for n in range(300)}]]},
        {"more": [2**64]},
        {"more": {"a": [{"b": -(10**4000)}]}},
    ],
)
def test_what_would_keep_the_encoder_long_is_refused_before(
    odd: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorting many names and writing long numbers cannot be interrupted. Exported files have neither."""
    raw = signed(json.loads(FILE) | odd)
    monkeypatch.setattr(exported_file, "_encoded", None)
    assert refused(raw).data["reason"] == "file_format"


def test_fields_that_this_version_does_not_know_are_left_alone() -> None:
    odd: dict[str, Any] = {"more": {"a": [1, -(2**63), 2**64 - 1, 1.5, None, True, "x", {"b": []}]}}
    assert exported_file.read_session(signed(json.loads(FILE) | odd)) == exported_file.read_session(FILE)


def test_a_long_file_is_what_the_plain_rule_makes_of_it_and_is_encoded_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One long call of the encoder would block every other thread of the process."""
    longest, real = 0, exported_file._encoded

    def encoded(value: Any) -> bytes:
        nonlocal longest
        longest = max(longest, len(value) if isinstance(value, list) else 0)
        return real(value)

    monkeypatch.setattr(exported_file, "_encoded", encoded)
    messages = [ChatMessage(role="user", content=f"{n} \u2028ü") for n in range(exported_file.PART)]
    for count in (0, 1, exported_file.PART, exported_file.PART + 1, 5 * exported_file.PART):
        record = replace(RECORD, token_ids=pack_tokens(range(count)), messages=messages)
        file = exported_file.dump_session(record, "f1", 5000)
        assert signed(json.loads(file)).startswith(b"{")
        plain = json.dumps(json.loads(file), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert file == plain.encode() + b"\n"
        assert json.loads(signed(json.loads(file))) == json.loads(file)
        assert exported_file.read_session(file).token_ids == list(range(count))
    assert 0 < longest <= exported_file.PART
