"""The figures of moving KV blocks: of a real Redis, and none of one that refuses."""

import json
from pathlib import Path

import pytest
import redis

from benchmarks.kv.kv_move import MoveError, measure
from tests.kits.servers import RedisServer


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_figures_are_of_what_was_moved(tmp_path: Path, compression: str) -> None:
    server = RedisServer(tmp_path)
    server.start()
    try:
        row = measure(
            server.url, heads=2, head_bytes=4096, num_blocks=20, compression=compression, rounds=1  # type: ignore[arg-type]
        )  # fmt: skip
        assert json.loads(json.dumps(row)) == row
        assert (row["heads"], row["head_bytes"], row["blocks"]) == (2, 4096, 20)
        assert row["write_mb_s"] > 0 < row["read_mb_s"]
        assert row["stored_share"] > 1.0 if compression == "none" else row["stored_share"] < 0.9
        client = redis.Redis.from_url(server.url)
        assert client.dbsize() == 0, "nothing stays behind"
        client.config_set("maxmemory", "1")
        with pytest.raises(MoveError, match="refuses writes"):
            measure(server.url, heads=1, head_bytes=4096, num_blocks=1)
    finally:
        server.stop()
