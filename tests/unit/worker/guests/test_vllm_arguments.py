"""`RYZ_VLLM_ARGS`: what is passed on, and what is refused before vLLM is started."""

import pytest

from services.worker.guests.vllm.arguments import engine_arguments, split_arguments


def test_arguments_are_split_as_a_shell_does() -> None:
    text = "--tensor-parallel-size 2 --kv-events-config '{\"enable_kv_cache_events\": true}' --enforce-eager"
    assert split_arguments(text) == [
        "--tensor-parallel-size",
        "2",
        "--kv-events-config",
        '{"enable_kv_cache_events": true}',
        "--enforce-eager",
    ]
    assert split_arguments("") == []


def test_given_arguments_come_behind_ours() -> None:
    assert engine_arguments("", shares=False)[-1] == "--no-enable-prefix-caching"
    found = engine_arguments("--max-logprobs 50", shares=True)
    assert found[-2:] == ["--max-logprobs", "50"]
    assert found[:2] == ["--generation-config", "vllm"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("--model other", "RYZ_MODEL names the model"),
        ("--max-model-len 5 --skip_tokenizer_init", "the leader tokenizes"),
        ("--no-skip-tokenizer-init", "the leader tokenizes"),
        ("--logprobs-mode=processed_logprobs", "raw_logprobs"),
        ("--port 8000", "vLLM serves no HTTP here"),
        ("some/model --max-model-len 5", "begins with 'some/model'"),
        ("--dtype 'bfloat16", "No closing quotation"),
        ("--kv-events-config.enable_kv_cache_events true", "give --kv-events-config one JSON object"),
        ("--enable-lora --lora-modules a=/x", "ryz worker --remote"),
        ("--kv-events-config {", "--kv-events-config of vLLM is not its JSON object"),
    ],
)
def test_what_is_not_the_operators_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        split_arguments(text)


def test_events_of_a_cache_that_is_off_are_refused() -> None:
    text = "--kv-events-config '{\"enable_kv_cache_events\": true}'"
    assert "--no-enable-prefix-caching" not in engine_arguments(text, shares=True)
    with pytest.raises(ValueError, match="RYZ_PREFIX_SHARING=off leaves no cache"):
        engine_arguments(text, shares=False)
