"""The cases of Open Responses that use one WebSocket for several responses, with OpenAI's SDK."""

from typing import Any

import pytest
from openai import OpenAI
from openai.types.responses import ResponsesServerEvent

from tests.kits.clients.open_responses import check_events, message
from tests.kits.clients.served import KEY, Served

ENDS = {"response.completed", "response.incomplete", "response.failed", "error"}


@pytest.mark.filterwarnings("ignore:connect\\(\\) must be used as a context manager:DeprecationWarning")
class OpenResponsesSocketCases:
    """Cases over a WebSocket."""

    def test_16_a_response_over_a_websocket(self, served: Served) -> None:
        with self._client(served) as client, client.responses.connect() as connection:
            connection.response.create(model=served.model, input=[message("Hello.")], max_output_tokens=16)
            assert check_events(_until_end(connection)).output_text

    def test_17_a_chain_over_one_websocket(self, served: Served) -> None:
        with self._client(served) as client, client.responses.connect() as connection:
            connection.response.create(model=served.model, input="My name is Ada.", max_output_tokens=16)
            first = check_events(_until_end(connection))
            connection.response.create(
                model=served.model,
                input="What is my name?",
                previous_response_id=first.id,
                max_output_tokens=16,
            )
            second = check_events(_until_end(connection))
        assert second.previous_response_id == first.id

    def _client(self, served: Served) -> OpenAI:
        return OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0, timeout=60)


def _until_end(connection: Any) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in ENDS:
        event: ResponsesServerEvent = connection.recv()
        events.append(event.to_dict())
    return events
