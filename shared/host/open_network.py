"""Tells whether an API is open to a network: without keys, on an address that other machines reach."""

import ipaddress


def open_network(host: str, has_keys: bool) -> bool:
    """Returns whether other machines may use the API without a key.

    Args:
        host: The address of the API; of names only `localhost` counts as loopback.
        has_keys: Whether the API asks for keys.
    """
    return not has_keys and not is_loopback(host)


def is_loopback(host: str) -> bool:
    """Returns whether only this machine reaches that address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False
