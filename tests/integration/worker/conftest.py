"""Fixtures of the tests of groups of rank processes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.worker.model_files.load_model import load_model
from services.worker.model_files.model import Model
from tests.kits.engine.small_models import small_model
from tests.kits.kv.kv_groups import RedisIndex

model = small_model(of_bytes=True, num_key_value_heads=4, num_attention_heads=8)


@pytest.fixture
def tiny(model: Path) -> Model:
    """What a leader knows of the model."""
    return load_model(model, "tiny")


@pytest.fixture
async def index(redis_url: str) -> AsyncIterator[RedisIndex]:
    """The index of an empty store."""
    index = RedisIndex(redis_url)
    await index.redis.flushdb()
    yield index
    await index.redis.aclose()
