"""What an operator says of a server is checked, and its key is never shown."""

import pytest

from services.worker.guests.remote.options import RemoteOptions, check_options
from shared.errors import InvalidRequest


@pytest.mark.parametrize(
    ("url", "base", "host"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "127.0.0.1:8080"),
        ("https://api.example/v1/", "https://api.example", "api.example"),
        ("https://one.example/team/v1", "https://one.example/team", "one.example"),
        ("http://[::1]:80/v1", "http://[::1]:80", "[::1]:80"),
    ],
)
def test_addresses_are_read(url: str, base: str, host: str) -> None:
    options = RemoteOptions(url=url, model="m")
    check_options(options)
    assert (options.base_url, options.host) == (base, host)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:80",
        "ftp://a",
        "http://",
        "http://a:x",
        "http://a?b=1",
        "http://u:secret@a",
        "http://[a",
    ],
)
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="address") as refused:
        check_options(RemoteOptions(url=url, model="m"))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("host", "allowed", "fits"),
    [
        ("a.example", ("a.example",), True),
        ("A.Example", ("a.example.",), True),
        ("b.a.example", ("*.a.example",), True),
        ("a.example", ("*.a.example",), False),
        ("nota.example", ("a.example", "*.a.example"), False),
        ("a.example.evil", ("a.example", "*.a.example"), False),
        ("a.example", (), True),
    ],
)
def test_only_allowed_hosts_are_named(host: str, allowed: tuple[str, ...], fits: bool) -> None:
    options = RemoteOptions(url=f"http://{host}:99", model="m", allowed_hosts=allowed)
    if fits:
        check_options(options)
    else:
        with pytest.raises(InvalidRequest, match="allowed hosts"):
            check_options(options)


@pytest.mark.parametrize("key", ["a b", "a\nb", "ä"])
def test_keys_that_no_header_can_have_are_refused_without_showing_them(key: str) -> None:
    with pytest.raises(InvalidRequest, match="API key") as refused:
        check_options(RemoteOptions(url="http://a", model="m", api_key=key))
    assert key not in str(refused.value)


def test_the_key_is_not_shown() -> None:
    assert "secret" not in repr(RemoteOptions(url="http://a", model="m", api_key="secret"))
