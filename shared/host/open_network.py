"""Whether an API would be open to a network: no keys, and an address that other machines reach."""

import ipaddress


def open_network(host: str, has_keys: bool) -> bool:
    """Whether machines besides this one may use the API without a key.

    Args:
        host: what is listened on; of names only `localhost` counts as loopback.
        has_keys: whether the API asks for keys.
    """
    return not has_keys and not is_loopback(host)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False
