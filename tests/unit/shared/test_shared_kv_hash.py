"""The names of KV blocks: golden values, and the inputs that change them."""

import hashlib
import struct

import pytest

from shared import kv_hash

GOLDEN = [
    "5ad8f2664d77190d4bdd30bb5fb8eede",
    "84eab68cb23310860fd591db5189ff06",
    "24d62afd63efc55d99c08ec396ae73e3",
]


def test_names_are_what_they_always_were() -> None:
    parent = kv_hash.root("llama-7f", "fp32", "acme")
    first = kv_hash.extend(parent, range(16))
    second = kv_hash.extend(first, [2**32 - 1] * 16)
    assert [name.hex() for name in (parent, first, second)] == GOLDEN


def test_the_format_is_the_documented_one() -> None:
    fields = b"".join(struct.pack("<I", len(f)) + f for f in (b"ryz.kv.1", "é".encode(), b"fp32", b""))
    parent = hashlib.blake2b(fields, digest_size=16).digest()
    assert kv_hash.root("é", "fp32", "") == parent
    block = hashlib.blake2b(parent + struct.pack("<16I", *range(5, 21)), digest_size=16).digest()
    assert kv_hash.extend(parent, list(range(5, 21))) == block
    assert kv_hash.extend_packed(parent, struct.pack("<16I", *range(5, 21))) == block


def test_everything_that_decides_the_content_is_in_the_name() -> None:
    roots = {
        kv_hash.root(*fields)
        for fields in (
            ("f", "fp32", "a"),
            ("g", "fp32", "a"),
            ("f", "bf16", "a"),
            ("f", "fp32", "b"),
            ("f", "fp32", ""),
        )
    }
    roots |= {kv_hash.root("ff", "p32", "a"), kv_hash.root("f", "fp32a", "")}  # field boundaries count
    assert len(roots) == 7
    parent = kv_hash.root("f", "fp32", "a")
    names = {kv_hash.extend(p, t) for p in roots for t in (range(16), range(1, 17))}
    assert len(names) == 14
    assert all(len(name) == kv_hash.NAME_BYTES for name in names | {parent})


@pytest.mark.parametrize("token_ids", [range(15), range(17), [-1] * 16, [2**32] * 16])
def test_only_whole_blocks_of_token_ids_have_names(token_ids: list[int]) -> None:
    with pytest.raises(struct.error):
        kv_hash.extend(b"x" * 16, token_ids)
