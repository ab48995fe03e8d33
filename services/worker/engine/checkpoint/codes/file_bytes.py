"""Reads bytes of tensors; it imports no torch."""

import os

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.checkpoint.stored_tensor import StoredTensor
from services.worker.engine.config.json_fields import ModelError


def read_bytes(stored: StoredTensor, begin: int, count: int) -> NDArray[np.uint8]:
    """Read bytes of a tensor, from its byte `begin` on.

    Raises:
        ModelError: The file cannot be read, or has become shorter.
    """
    data: NDArray[np.uint8] = np.empty(count, np.uint8)
    try:
        with stored.path.open("rb") as file:
            found = os.preadv(file.fileno(), [data.data], stored.begin + begin) if count else 0
            while 0 < found < count:
                more = os.preadv(file.fileno(), [data.data[found:]], stored.begin + begin + found)
                found = found + more if more else -1
    except OSError as error:
        raise ModelError(f"{stored.path} cannot be read: {error.strerror}") from error
    if found != count:
        raise ModelError(f"{stored.path} has become shorter while it was read; copy it again")
    return data
