"""Server addresses: the TLS files in them, and errors that show no part of a password."""

import pytest

from shared.bus.broker_address import BrokerAddress, not_allowed
from shared.errors import InvalidRequest
from shared.settings import RedisSettings


@pytest.mark.parametrize("word", ["hush#word", "hush/word", "hush?word"])
def test_a_password_that_is_not_escaped_is_not_reported(word: str) -> None:
    with pytest.raises(InvalidRequest, match="RYZ_KV_REDIS_URL is no address") as caught:
        RedisSettings().redis_address(f"redis://worker:{word}@127.0.0.1:6379/0", "RYZ_KV_REDIS_URL")
    assert "hush" not in caught.value.message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "url",
    [
        "redis://worker:hush%23word@127.0.0.1:6379/0",
        "unix://worker:hush@/run/ryz/redis.sock?db=0",
        "redis://[::1]/0",
        "redis://far",
    ],
)
def test_a_good_one_stays_as_it_is(url: str) -> None:
    assert RedisSettings().redis_address(url) == url


@pytest.mark.parametrize("url", ["nats://router:hush#word@b:4222", "nats://a:1,router:hush/word@b:4222"])
def test_a_brokers_address_tells_no_part_of_its_password_either(url: str) -> None:
    with pytest.raises(InvalidRequest, match="RYZ_NATS_URL is no address") as caught:
        BrokerAddress(url)
    assert "hush" not in caught.value.message
    assert BrokerAddress("nats://router:hush%23word@b:4222, far").url


def test_files_for_tls_name_the_address_that_has_none() -> None:
    with pytest.raises(InvalidRequest, match="RYZ_KV_REDIS_URL has to begin with rediss://"):
        RedisSettings(redis_ca="x.pem").redis_address("redis://far", "RYZ_KV_REDIS_URL")


def test_a_refused_bus_user_is_told_that_it_may_have_ended() -> None:
    """The broker does not say why it refuses a user: it has one that expired no longer."""
    ours, theirs = (str(not_allowed(f"nats://{user}:word@127.0.0.1:4222")) for user in ("router", "billing"))
    assert "`ryz keys show billing`" in theirs
    assert "ryz keys" not in ours
    assert "word@" not in theirs
