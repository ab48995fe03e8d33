"""The whole path: an OpenAI client, the gateway, the broker, two ranks, the store, and `ryz chat`."""

import json
from contextlib import closing

import httpx
import pytest
from openai import NotFoundError, OpenAI
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import Response

from tests.kits.e2e.stack import Stack, ryz
from tests.kits.e2e.written_lines import check_lines
from tests.kits.waiting import PATIENCE_S, wait_for

# the first test with the model waits for four processes that import torch


def client_of(stack: Stack, http: httpx.Client | None = None) -> OpenAI:
    url = f"{stack.state.url}/v1"
    return OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S, http_client=http)


def streamed(client: OpenAI, session_id: str, messages: list[ChatCompletionMessageParam]) -> tuple[str, int]:
    """The text of a streamed answer and its number of pieces."""
    pieces = []
    headers = {"X-Session-Id": session_id} if session_id else {}
    with client.chat.completions.create(
        model="demo", messages=messages, temperature=0, stream=True, extra_headers=headers
    ) as stream:
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                pieces.append(chunk.choices[0].delta.content)
    return "".join(pieces), len(pieces)


def test_an_openai_client_streams_sensible_text(torch_stack: Stack) -> None:
    with closing(client_of(torch_stack)) as client:
        assert [model.id for model in client.models.list()] == ["demo"]
        text, pieces = streamed(client, "", [{"role": "user", "content": "My name is Ada."}])
    assert "Ada" in text
    assert pieces > 1


@pytest.mark.parametrize("name", ["Omar", "Grace"])
def test_the_second_turn_knows_the_first_by_the_session_alone(torch_stack: Stack, name: str) -> None:
    with closing(client_of(torch_stack)) as client:
        streamed(client, f"told-{name}", [{"role": "user", "content": f"My name is {name}."}])
        text, _ = streamed(client, f"told-{name}", [{"role": "user", "content": "What is my name?"}])
    assert text.strip() == f"Your name is {name}."


def test_the_second_response_knows_the_first_by_its_id(torch_stack: Stack) -> None:
    groups: list[str] = []
    answers: list[Response] = []

    def note(answer: httpx.Response) -> None:
        if answer.request.method == "POST":
            groups.append(answer.headers["x-ryz-group"])

    def both_in_one_group() -> bool:
        """Asks twice; another router may choose another group when the first one is busy."""
        first = client.responses.create(model="demo", input="My name is Ada.", temperature=0)
        with client.responses.stream(
            model="demo", input="What is my name?", temperature=0, previous_response_id=first.id
        ) as stream:
            deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            answer = stream.get_final_response()
        assert client.responses.retrieve(answer.id).output_text == deltas == answer.output_text
        assert answer.status == first.status == "completed"
        assert deltas.strip() == "Your name is Ada."
        answers.append(answer)
        return groups[-1] == groups[-2]

    with httpx.Client(event_hooks={"response": [note]}) as http:
        client = client_of(torch_stack, http)
        wait_for(both_in_one_group, "one group answers a conversation")
    usage = answers[-1].usage
    assert usage is not None
    assert usage.input_tokens_details.cached_tokens >= 16


def test_the_second_turn_knows_the_first_by_the_history(torch_stack: Stack) -> None:
    history: list[ChatCompletionMessageParam] = [{"role": "user", "content": "My name is Linus."}]
    with closing(client_of(torch_stack)) as client:
        answer, _ = streamed(client, "", history)
        history += [{"role": "assistant", "content": answer}, {"role": "user", "content": "What is my name?"}]
        text, _ = streamed(client, "", history)
    assert text.strip() == "Your name is Linus."


def test_chat_keeps_the_session_between_commands(torch_stack: Stack) -> None:
    base = ["chat", "--session", "cli", "--temperature", "0"]
    result = ryz(*base, "--once", "My name is Vera.", cwd=torch_stack.folder)
    assert result.returncode == 0, result.stderr
    asked = ryz(*base, cwd=torch_stack.folder, stdin="What is my name?\n")
    assert asked.stdout == "Your name is Vera.\n"


def test_chat_says_what_is_wrong(null_stack: Stack) -> None:
    unknown = ryz("chat", "--once", "hello", "--model", "nope", cwd=null_stack.folder)
    assert unknown.returncode == 1
    assert "nope" in unknown.stderr
    nowhere = ryz("chat", "--once", "hello", "--url", "http://127.0.0.1:9", cwd=null_stack.folder)
    assert nowhere.returncode == 1
    assert "ryz up" in nowhere.stderr
    nothing = ryz("chat", cwd=null_stack.folder, stdin="  \n")
    assert nothing.returncode == 1
    assert "nothing to ask" in nothing.stderr


def test_an_unknown_model_is_the_callers_mistake(null_stack: Stack) -> None:
    with closing(client_of(null_stack)) as client, pytest.raises(NotFoundError, match="nope"):
        client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "hi"}])


def test_status_shows_services_groups_and_ranks(torch_stack: Stack) -> None:
    result = ryz("status", "--json", cwd=torch_stack.folder)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    kinds = sorted(one["service"] for one in report["services"])
    assert kinds == ["gateway", "kvstate", "router", "router", "worker", "worker"]
    assert all(one["state"] == "ready" for one in report["services"])
    assert {group["group"]: len(group["ranks"]) for group in report["groups"]} == {"g0": 2, "g1": 2}
    assert report["supervisor"]["url"] == torch_stack.state.url
    assert isinstance(report["sessions"], int)
    for one in report["services"]:
        admin_url = one["detail"]["admin_url"]
        assert (admin_url == "") is (one["service"] == "gateway")  # its API has the admin routes
        if admin_url:
            assert httpx.get(f"{admin_url}/ready", timeout=5).status_code == 200
    tables = ryz("status", cwd=torch_stack.folder)
    assert "worker g1" in tables.stdout


def test_status_says_when_nothing_answers(nats_url: str, null_stack: Stack) -> None:
    alone = ryz("status", "--nats-url", nats_url, cwd=null_stack.folder)
    assert (alone.returncode, alone.stdout) == (1, "")
    assert "no service answers" in alone.stderr
    no_broker = ryz("status", "--json", "--nats-url", "nats://127.0.0.1:9", cwd=null_stack.folder)
    assert no_broker.returncode == 1
    assert json.loads(no_broker.stdout)["services"] == []


def test_the_lines_of_all_services_and_ranks_follow_the_schema(torch_stack: Stack) -> None:
    events, wrong = check_lines(torch_stack)
    assert wrong == {}
    assert {"a rank is ready", "group", "ready"} <= events
    state = torch_stack.state
    urls = [*state.nats_urls.values(), state.redis_url, state.kv_redis_url]  # ranks have the last one
    secret = {url.partition("@")[0].rpartition(":")[2] for url in urls}
    written = "".join(path.read_text() for path in torch_stack.state_dir.logs.glob("*.log"))
    assert [word for word in secret if word in written] == []
