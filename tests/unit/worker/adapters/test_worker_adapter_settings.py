"""The memory for adapters, as a setting."""

import pytest
from pydantic import ValidationError

from services.worker.settings import WorkerSettings

GIB = 2**30


def test_adapters_take_no_more_than_a_rank_may_grow_by() -> None:
    with pytest.raises(ValidationError, match="raise RYZ_RANK_MEMORY_GROWTH_MB as well"):
        WorkerSettings(engine="null", adapter_bytes=5 * GIB)
    assert WorkerSettings(engine="null", adapter_bytes=4 * GIB).adapter_bytes == 4 * GIB
    for growth_mb in (0, 6 * 1024):
        more = WorkerSettings(engine="null", adapter_bytes=5 * GIB, rank_memory_growth_mb=growth_mb)
        assert more.adapter_bytes == 5 * GIB
