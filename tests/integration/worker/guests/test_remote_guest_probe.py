"""What the probe finds out of servers of each kind, and whom it refuses."""

import re

import pytest

from services.worker.null.model import ByteTokenizer
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.failures import EngineFailed, EngineRefused
from services.worker.text.tokenizer import read_tokenizer
from tests.conftest import DEMO
from tests.integration.worker.guests.conftest import StartGuest, StartServer, make_voice
from tests.kits.guests.false_server.scripts import Style
from tests.kits.guests.guest_runs import guest_sequence

PROMPT = list(b"Once upon a time")


async def test_a_server_of_token_ids(start_server: StartServer, start_guest: StartGuest) -> None:
    run = await start_guest(await start_server("vllm"), context_length=0)
    assert run.facts is not None
    assert (run.facts.name, run.facts.fingerprint) == ("vLLM 0.99.0", "vllm demo")
    assert (run.facts.context_length, run.facts.kv_tokens, run.facts.vocab_size) == (4096, 16_000, 257)
    assert run.facts.abilities == {
        "adapters",
        "choice",
        "continuation",
        "gbnf",
        "grammar",
        "ignore_eos",
        "json_schema",
        "logit_bias",
        "logprobs",
        "min_p",
        "min_tokens",
        "penalties",
        "seed",
        "token_ids_in",
        "token_ids_out",
        "top_k",
    }


async def test_the_server_of_llama_cpp(start_server: StartServer, start_guest: StartGuest) -> None:
    run = await start_guest(await start_server("llama.cpp"))
    assert run.facts is not None
    assert (run.facts.name, run.facts.max_running) == ("llama.cpp b1-x", 8)
    assert (run.facts.context_length, run.facts.kv_tokens) == (1000, 8 * 4096)
    # its penalties count the tokens of the prompt as well; `repetition_penalty` had no effect
    assert run.facts.abilities == {
        "choice",
        "continuation",
        "gbnf",
        "ignore_eos",
        "json_schema",
        "logit_bias",
        "logprobs",
        "min_p",
        "seed",
        "token_ids_in",
        "token_ids_out",
        "top_k",
    }


@pytest.mark.parametrize("style", ["text", "strict"])
async def test_a_server_of_texts(style: Style, start_server: StartServer, start_guest: StartGuest) -> None:
    server = await start_server(style)
    run = await start_guest(server)
    assert run.facts is not None
    known = {"text": {"min_p", "top_k"}, "strict": set[str]()}
    assert run.facts.abilities == {"continuation", "logit_bias", "seed", *known[style]}
    await run.run(guest_sequence(PROMPT))
    assert server.bodies[-1]["prompt"] == "Once upon a time"
    assert "ignore_eos" not in server.bodies[-1]


async def test_a_server_that_ignores_forms_follows_none(
    start_server: StartServer, start_guest: StartGuest
) -> None:
    for style in ("vllm", "llama.cpp"):
        voice = make_voice(style)
        voice.follows = False
        run = await start_guest(await start_server(style, voice=voice))
        assert run.facts is not None
        assert not run.facts.abilities & {"choice", "gbnf", "grammar", "json_schema"}


async def test_what_it_cannot_is_an_error_of_the_sequence(
    start_server: StartServer, start_guest: StartGuest
) -> None:
    server = await start_server("strict")
    run = await start_guest(server)
    asked = len(server.bodies)
    brought = await run.run(guest_sequence(PROMPT, sampling=EngineSampling(logprobs=1, top_k=3)))
    assert "logprobs, top_k" in brought.error
    assert len(server.bodies) == asked


async def test_logprobs_come_with_their_tokens(start_server: StartServer, start_guest: StartGuest) -> None:
    for style in ("vllm", "llama.cpp"):
        server = await start_server(style, voice=make_voice(style, "plain letters "))
        run = await start_guest(server)
        sampling = EngineSampling(temperature=0.0, logprobs=1)
        brought = await run.run(guest_sequence(PROMPT, sampling=sampling))
        assert brought.token_ids == server.voice.next_tokens(len(PROMPT), 24)
        assert {one.logprob for one in brought.sampled} == {-0.25}
        assert [one.top[0].token_id for one in brought.sampled] == brought.token_ids
        assert {len(one.top) for one in brought.sampled} == {1}


async def test_a_model_that_is_not_there_is_refused_with_those_that_are(
    start_server: StartServer, start_guest: StartGuest
) -> None:
    server = await start_server("vllm")
    with pytest.raises(EngineRefused, match="no model 'other'; it has 'demo', 'an-adapter'"):
        await start_guest(server, model="other")


@pytest.mark.parametrize("style", ["vllm", "llama.cpp", "text"])
async def test_another_tokenizer_is_refused(
    style: Style, start_server: StartServer, start_guest: StartGuest
) -> None:
    server = await start_server(style)
    with pytest.raises(EngineRefused, match="GGUF file of the model that the server has loaded"):
        await start_guest(server, tokenizer=read_tokenizer(DEMO / "tokenizer.json"))


async def test_a_wrong_key_is_refused_and_no_key_is_shown(
    start_server: StartServer, start_guest: StartGuest
) -> None:
    server = await start_server("vllm", api_key="right")
    for key, says in (("secret", "refuses the API key"), ("", "wants an API key")):
        with pytest.raises(EngineRefused, match=says) as refused:
            await start_guest(server, api_key=key)
        assert "secret" not in str(refused.value)
    run = await start_guest(server, api_key="right")
    assert (await run.run(guest_sequence(PROMPT))).finished == "length"
    assert "right" not in str(run.guest.status())


async def test_nothing_that_listens_is_a_failure_with_a_remedy(
    start_server: StartServer, start_guest: StartGuest
) -> None:
    server = await start_server("vllm")
    await server.stop()
    with pytest.raises(EngineFailed, match=r"cannot be reached.*start it") as failed:
        await start_guest(server)
    assert failed.value.failure.kind == "start_failed"


@pytest.mark.parametrize("name", ["silence", "stall", "empty", "status_500", "no_http", "redirect"])
async def test_a_server_without_completions_does_not_start(
    name: str, start_server: StartServer, start_guest: StartGuest
) -> None:
    server = await start_server("text")
    server.behave(name)
    with pytest.raises(EngineFailed, match=re.escape(f"the server at 127.0.0.1:{server.port} ")):
        await start_guest(server, probe_timeout_s=1.0)


async def test_a_length_must_be_known(start_server: StartServer, start_guest: StartGuest) -> None:
    server = await start_server("text")
    with pytest.raises(EngineRefused, match="how long a sequence may be"):
        await start_guest(server, context_length=0)


async def test_a_vocabulary_without_bytes_needs_a_server_of_token_ids(
    start_server: StartServer, start_guest: StartGuest
) -> None:
    class Shapeless(ByteTokenizer):
        has_token_bytes = False

    assert await start_guest(await start_server("vllm"), tokenizer=Shapeless())
    with pytest.raises(EngineRefused, match="text only"):
        await start_guest(await start_server("text"), tokenizer=Shapeless())
