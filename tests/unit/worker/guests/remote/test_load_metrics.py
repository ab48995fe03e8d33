"""The load by the names that servers use."""

import pytest

from services.worker.guests.remote.load_metrics import read_load

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a}b"} 3.0
vllm:num_requests_running{engine="1",model_name="a"} 2.0
vllm:num_requests_waiting{engine="0"} 1.0
vllm:num_requests_waiting_by_reason{engine="0"} 9.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 5e-1
"""


@pytest.mark.parametrize(
    ("metrics", "load"),
    [
        (VLLM, {"running": 5.0, "waiting": 1.0, "kv_used": 0.5}),
        (b"llamacpp:requests_processing 2\nllamacpp:requests_deferred 4\n", {"running": 2.0, "waiting": 4.0}),
        (b"sglang:num_running_reqs 1\nsglang:token_usage 0.5\n", {"running": 1.0, "kv_used": 0.5}),
        (b"vllm:num_requests_running e.e\n<html>", {}),
        (b"", {}),
    ],
)
def test_loads_are_read(metrics: bytes, load: dict[str, float]) -> None:
    assert read_load(metrics) == load
