"""The text of API keys."""

import hashlib

import pytest

from shared.accounts.keys import digest_of, key_id_of, new_key, shown_prefix
from shared.messages import KeyRecord


def test_a_new_key_has_an_id_and_a_secret_of_256_bits() -> None:
    made = [new_key() for _ in range(200)]
    assert len({one.text for one in made}) == len({one.key_id for one in made}) == 200
    for one in made:
        assert key_id_of(one.text) == one.key_id
        assert one.text.startswith(f"{shown_prefix(one.key_id)}-")
        assert len(one.text) == len("sk-ryz-") + 12 + 1 + 43
        assert one.digest == hashlib.sha256(one.text.encode()).digest() == digest_of(one.text)
        assert KeyRecord(key_id=one.key_id, digest=one.digest).name == f"key.{one.key_id}"


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1],
        lambda text: text + "a",
        lambda text: text + "\n",
        lambda text: text.upper(),
        lambda text: text.replace("sk-ryz-", "sk-"),
        lambda text: text[:19] + "_" + text[20:],
        lambda text: text[:-1] + "é",
        lambda text: "",
    ],
)
def test_other_texts_have_no_id(change) -> None:  # type: ignore[no-untyped-def]
    assert key_id_of(change(new_key().text)) is None


def test_any_text_has_a_digest() -> None:
    assert digest_of("a key of the setting, é") != digest_of("")
