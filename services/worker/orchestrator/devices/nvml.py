"""Reads GPUs with NVIDIA's management library, by the optional package nvidia-ml-py (extra `gpu`).

What a GPU does not support counts as healthy: GPUs for desktops have neither ECC nor NVLink.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import structlog

from services.worker.orchestrator.devices.readings import DeviceReading

log = structlog.get_logger(__name__)
_LOST = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED")
# the last one: an NVLink of a number that the GPU does not have
_LACKS = ("NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_FUNCTION_NOT_FOUND", "NVML_ERROR_INVALID_ARGUMENT")


class NvmlReader:
    """Implements `DeviceReader`.

    Args:
        library: The module `pynvml`, initialized.
    """

    def __init__(self, library: ModuleType) -> None:
        self._library: Any = library
        self._lost = {getattr(library, name) for name in _LOST}
        self._lacks = {getattr(library, name) for name in _LACKS}

    def read(self, uuid: str) -> DeviceReading | None:
        """See `DeviceReader`."""
        nvml = self._library
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            ecc = self._supported(
                lambda: nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                ),
                0,
            )
            remapped = self._supported(lambda: nvml.nvmlDeviceGetRemappedRows(handle), (0, 0, 0, 0))
            reasons = self._supported(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle), 0)
            heat = nvml.nvmlClocksEventReasonSwThermalSlowdown | nvml.nvmlClocksEventReasonHwThermalSlowdown
            return DeviceReading(
                uncorrected_ecc=int(ecc),
                remap_pending=bool(remapped[2]),
                remap_failed=bool(remapped[3]),
                hot=bool(reasons & heat),
                pcie_width=int(self._supported(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle), 0)),
                nvlinks=self._nvlinks(handle),
            )
        except nvml.NVMLError as error:
            return DeviceReading(lost=str(error)) if error.value in self._lost else None

    def _nvlinks(self, handle: object) -> int:
        nvml = self._library
        count = 0
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            state = self._supported(partial(nvml.nvmlDeviceGetNvLinkState, handle, link), 0)
            count += state == nvml.NVML_FEATURE_ENABLED
        return count

    def _supported(self, read: Callable[[], Any], otherwise: Any) -> Any:
        """The value, or `otherwise` where the GPU or its driver does not know it."""
        try:
            return read()
        except self._library.NVMLError as error:
            if error.value in self._lacks:
                return otherwise
            raise


def nvml_reader() -> NvmlReader | None:
    """Returns the reader; None, with a line in the log, if the package or the driver is missing."""
    try:
        import pynvml  # noqa: PLC0415 (an extra)
    except ImportError:
        why = "the package nvidia-ml-py is missing"
    else:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            why = str(error)
        else:
            return NvmlReader(pynvml)
    log.warning(
        "the health of GPUs is not read", why=why, remedy="pip install 'ryzanstein[gpu]', and see nvidia-smi"
    )
    return None
