"""The number of a container, as Docker's DNS answers for its address."""

import struct

import pytest

from deploy.containers.container_number import NUMBER, first_labels, question


def answer_with(asked: bytes, *names: str) -> bytes:
    """What a DNS server sends: the question again, and a record for each name, which refers to it."""
    head = struct.pack(">HHHHHH", 1, 0x8180, 1, len(names), 0, 0) + asked
    for name in names:
        data = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"
        head += struct.pack(">HHHIH", 0xC00C, 12, 1, 600, len(data)) + data
    return head


def test_the_question_is_for_the_address_backwards() -> None:
    assert question("172.18.0.5") == b"\x015\x010\x0218\x03172\x07in-addr\x04arpa\x00\x00\x0c\x00\x01"


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ryzanstein-worker-2.ryzanstein_bus", "2"),
        ("wt_cont_worker_11.wt_cont_bus", "11"),
        ("x-worker-run-0123abcd.x_bus", None),
    ],
)
def test_the_containers_name_ends_with_its_number(name: str, number: str | None) -> None:
    asked = question("10.0.0.2")
    (label,) = first_labels(answer_with(asked, name), asked)
    match = NUMBER.search(label)
    assert (match[1] if match else None) == number


def test_no_answer_is_no_name() -> None:
    asked = question("10.0.0.2")
    assert first_labels(answer_with(asked), asked) == []
