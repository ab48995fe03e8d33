"""What is read of a GPU, and the port through which it is read; `nvml.py` implements it."""

from typing import NamedTuple, Protocol


class DeviceReading(NamedTuple):
    """One reading of a GPU.

    Attributes:
        uncorrected_ecc: Memory errors since its driver was loaded that ECC could not correct.
        remap_pending: A row of its memory is replaced at the next reset.
        remap_failed: A row could not be replaced: the GPU has to be.
        hot: Its clocks are lowered because of heat.
        pcie_width: Lanes of its PCIe link; 0: not known.
        nvlinks: Its NVLinks that are up.
        lost: Why the driver does not reach it; empty: it does.
    """

    uncorrected_ecc: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    hot: bool = False
    pcie_width: int = 0
    nvlinks: int = 0
    lost: str = ""


class DeviceReader(Protocol):
    """Reads GPUs of this host."""

    def read(self, uuid: str) -> DeviceReading | None:
        """Reads one; may take seconds if it is ill, so call it in a thread.

        Args:
            uuid: As the rank reports it, such as `GPU-5c9b…`.

        Returns:
            None if the driver has no answer now, which says nothing about the GPU.
        """
        ...
