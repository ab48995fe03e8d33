"""The command that publishes says its sizes in bytes, and its headers are read back as they were given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.bus.broker.parser import parse_headers
from shared.bus.broker.publish_command import payload_size, publish_command
from shared.errors import InvalidRequest

VALUE = st.text("aé \r\n:\t€", max_size=8)


@given(
    st.dictionaries(st.sampled_from(["a", "B-c", "Ryz-X"]), VALUE),
    st.sampled_from(["", "_INBOX.r", "_INBOX.ü"]),
    st.binary(max_size=20),
)
def test_sizes_and_headers_are_those_of_the_message(headers: dict[str, str], reply: str, data: bytes) -> None:
    command = publish_command("a.b", reply, data, headers)
    first, _, rest = command.partition(b"\r\n")
    words = first.decode().split()
    assert words[1 : -2 if headers else -1] == ["a.b", *([reply] if reply else [])]
    assert int(words[-1]) == payload_size(data, headers) == len(rest) - 2
    if not headers:
        assert (words[0], rest) == ("PUB", data + b"\r\n")
        return
    head = rest[: int(words[-2])]
    assert (words[0], rest) == ("HPUB", head + data + b"\r\n")
    assert head.endswith(b"\r\n\r\n")
    lines = {name: value.replace("\r\n", " ").replace("\r", " ").replace("\n", " ").strip()
             for name, value in headers.items()}  # fmt: skip
    assert parse_headers(head) == ({name: value for name, value in lines.items() if value.isprintable()}, "")


@pytest.mark.parametrize("name", ["", "a b", "a:", "é", "a\r\nb"])
def test_a_name_that_the_protocol_does_not_allow_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="name of a header"):
        publish_command("a", "", b"", {name: "x"})
