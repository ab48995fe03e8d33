"""What a leader shows of its requests: under vLLM's names, and as OpenTelemetry's `gen_ai.server.*`."""

import pytest

from tests.kits.memory_bus import MemoryBus
from tests.kits.worker.leader import Kit, chat, null_engine

VLLM = {"model_name": "demo", "engine": "0"}
GENAI = {
    "gen_ai_provider_name": "ryzanstein", "gen_ai_request_model": "demo", "gen_ai_response_model": "demo",
    "gen_ai_operation_name": "chat",
}  # fmt: skip


# what the queries of vLLM's own board ask for: examples/observability/prometheus_grafana/grafana.json there
VLLM_BOARD = {
    "e2e_request_latency_seconds_bucket", "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_bucket", "request_time_per_output_token_seconds_bucket",
    "prompt_tokens_total", "generation_tokens_total", "num_requests_running", "num_requests_waiting",
    "kv_cache_usage_perc", "request_prompt_tokens_bucket", "request_generation_tokens_bucket",
    "request_success_total", "request_queue_time_seconds_sum", "request_prefill_time_seconds_sum",
    "request_decode_time_seconds_sum", "request_max_num_generation_tokens_sum",
}  # fmt: skip


async def test_ended_requests_are_shown_under_the_names_that_others_know(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.002)) as kit:
        value = kit.registry.get_sample_value

        def vllm(name: str, **labels: str) -> float:
            found = value(f"vllm:{name}", VLLM | labels)
            assert found is not None, name
            return found

        assert vllm("request_success_total", finished_reason="length") == 0  # there from the start
        assert vllm("time_to_first_token_seconds_count") == 0
        await kit.run(chat("a", sampling={"max_tokens": 5}))
        await kit.run(chat("b", sampling={"max_tokens": 3, "n": 2}))
        assert vllm("generation_tokens_total") == 11
        assert vllm("prompt_tokens_total") == vllm("request_prompt_tokens_sum") > 0
        assert vllm("request_generation_tokens_sum") == 11
        assert vllm("request_success_total", finished_reason="length") == 3
        assert vllm("e2e_request_latency_seconds_count") == 2
        parts = ("request_queue_time", "request_inference_time")
        whole_s = vllm("e2e_request_latency_seconds_sum")
        assert 0 < sum(vllm(f"{part}_seconds_sum") for part in parts) <= whole_s
        both = vllm("request_prefill_time_seconds_sum") + vllm("request_decode_time_seconds_sum")
        assert both == pytest.approx(vllm("request_inference_time_seconds_sum"))
        assert vllm("inter_token_latency_seconds_count") == kit.metric("inter_token_latency_seconds_count")
        assert vllm("cache_config_info", block_size="16", num_gpu_blocks="256") == 1
        assert value("gen_ai_server_request_duration_seconds_count", GENAI | {"error_type": ""}) == 2
        assert value("gen_ai_server_time_to_first_token_seconds_count", GENAI) == 2
        assert value("gen_ai_server_time_per_output_token_seconds_count", GENAI) == 2
        assert kit.metric("max_running") == 64
        assert vllm("iteration_tokens_total_count") == kit.metric("step_seconds_count")
        assert vllm("request_max_num_generation_tokens_sum") == 8
        shown = {sample.name for family in kit.registry.collect() for sample in family.samples}
        assert {f"vllm:{name}" for name in VLLM_BOARD} <= shown


async def test_requests_that_fail_count_under_their_code(memory_bus: MemoryBus) -> None:
    async with Kit(memory_bus, null_engine(delay_s=0.002)) as kit:
        await kit.ask(chat("a", sampling={"max_tokens": 500}))
        await kit.until(lambda: bool(kit.frames["a"][1:]))
        kit.leader.parts.table.cancel_request("a", "test")
        await kit.end_of("a")
        count = kit.registry.get_sample_value
        labels = GENAI | {"error_type": "cancelled"}
        assert count("gen_ai_server_request_duration_seconds_count", labels) == 1
        assert count("gen_ai_server_time_to_first_token_seconds_count", GENAI) == 0
        assert count("vllm:request_success_total", VLLM | {"finished_reason": "abort"}) == 1
