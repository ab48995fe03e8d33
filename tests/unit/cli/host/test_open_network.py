"""Which starts of `ryz up` on an address that other machines reach are left to the gateway to decide."""

from pathlib import Path

import pytest

from cli.console import CommandError
from cli.stack.host.reachability import may_have_keys, refuse_open_network


def test_only_a_broker_that_was_there_may_have_keys(tmp_path: Path) -> None:
    assert not may_have_keys(tmp_path, None)
    assert may_have_keys(tmp_path, "nats://10.0.0.1:4222"), "one of the user's own"
    (tmp_path / "jetstream" / "jetstream" / "RYZ" / "streams" / "RYZ_BATCHES").mkdir(parents=True)
    assert not may_have_keys(tmp_path, "")
    (tmp_path / "jetstream" / "jetstream" / "RYZ" / "streams" / "RYZ_ACCOUNTS").mkdir()
    assert may_have_keys(tmp_path, "")


def test_an_open_address_without_keys_is_refused_with_the_remedies() -> None:
    for host, keys, allowed in (("127.0.0.1", "", False), ("0.0.0.0", "k:t", False), ("0.0.0.0", "", True)):
        refuse_open_network(host, keys, allowed=allowed)
    with pytest.raises(CommandError, match="ryz keys create") as refused:
        refuse_open_network("0.0.0.0", " ", allowed=False)
    assert refused.value.exit_code == 2
