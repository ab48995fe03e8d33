"""Collectives over torch.distributed's Gloo: TCP, so ranks may be on different hosts.

On one host it is much slower than shared memory. The operations are in `torch_distributed.py`; this module
chooses the network interface.
"""

import fcntl
import os
import socket
import struct

import torch

from services.worker.engine.collectives.base import CollectiveError
from services.worker.engine.collectives.torch_distributed import Rendezvous, TorchCollectives

_SIOCGIFADDR = 0x8915  # ioctl request for an interface's IPv4 address, on Linux


class GlooCollectives(TorchCollectives):
    """`TorchCollectives` for at least 2 ranks that compute on CPUs."""

    def __init__(self, rendezvous: Rendezvous, timeout_s: float) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = rendezvous.interface or _loopback()
        super().__init__(rendezvous, timeout_s, backend="gloo", device=torch.device("cpu"))


def interface_of(address: str) -> str:
    """The network interface that has this IPv4 address.

    Raises:
        CollectiveError: No interface has it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # the interface has no IPv4 address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    raise CollectiveError(
        f"gloo: no network interface has the address {address}; name one by RYZ_GLOO_INTERFACE or --interface"
    )


def _loopback() -> str:
    names = {name for _, name in socket.if_nameindex()}
    return "lo" if "lo" in names else "lo0"
