"""A stand-in of the module `pynvml` (nvidia-ml-py): the calls that `NvmlReader` makes, over made-up GPUs."""

from dataclasses import dataclass
from types import ModuleType


class NVMLError(Exception):
    """As in pynvml: its value is NVML's number."""

    def __init__(self, value: int) -> None:
        super().__init__({15: "GPU is lost", 3: "Not Supported", 999: "Unknown Error"}.get(value, str(value)))
        self.value = value


@dataclass
class Gpu:
    """What the driver says of a GPU.

    Attributes:
        error: NVML's number of the error of each call; 0: they work.
        plain: A GPU for desktops, without ECC, rows that can be replaced, and NVLink.
    """

    ecc: int = 0
    remap: tuple[int, int, int, int] = (0, 0, 0, 0)
    reasons: int = 0
    width: int = 16
    links: int = 18
    error: int = 0
    plain: bool = False

    def answer(self, value: int, *, of_servers: bool = False) -> int:
        """The value, or the error of the GPU."""
        if self.error:
            raise NVMLError(self.error)
        if of_servers and self.plain:
            raise NVMLError(3)
        return value


def standin(gpus: dict[str, Gpu]) -> ModuleType:
    """The module, over GPUs by their ids."""
    nvml = ModuleType("pynvml")

    def remapped(gpu: Gpu) -> tuple[int, int, int, int]:
        gpu.answer(0, of_servers=True)
        return gpu.remap

    members: dict[str, object] = {
        "NVMLError": NVMLError,
        "NVML_ERROR_GPU_IS_LOST": 15,
        "NVML_ERROR_RESET_REQUIRED": 16,
        "NVML_ERROR_NOT_SUPPORTED": 3,
        "NVML_ERROR_FUNCTION_NOT_FOUND": 13,
        "NVML_ERROR_INVALID_ARGUMENT": 2,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "NVML_VOLATILE_ECC": 0,
        "NVML_FEATURE_ENABLED": 1,
        "NVML_NVLINK_MAX_LINKS": 36,
        "nvmlClocksEventReasonSwThermalSlowdown": 0x20,
        "nvmlClocksEventReasonHwThermalSlowdown": 0x40,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: gpus[uuid],
        "nvmlDeviceGetTotalEccErrors": lambda gpu, error_type, counter: gpu.answer(gpu.ecc, of_servers=True),
        "nvmlDeviceGetRemappedRows": remapped,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: gpu.answer(gpu.reasons),
        "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: gpu.answer(gpu.width),
        "nvmlDeviceGetNvLinkState": lambda gpu, link: gpu.answer(int(link < gpu.links), of_servers=True),
    }
    for name, member in members.items():
        setattr(nvml, name, member)
    return nvml
