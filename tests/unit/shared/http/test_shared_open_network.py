"""Whether an API would be open to the network."""

import pytest

from shared.host.open_network import is_loopback, open_network


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_loopback_is_for_this_machine(host: str) -> None:
    assert is_loopback(host)
    assert not open_network(host, has_keys=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "fe80::1%eth0", "box.example", "", "127.evil"])
def test_every_other_address_needs_keys(host: str) -> None:
    assert open_network(host, has_keys=False)
    assert not open_network(host, has_keys=True)
