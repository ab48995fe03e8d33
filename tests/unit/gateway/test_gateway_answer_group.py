"""Which group an answer names."""

from types import SimpleNamespace
from typing import Any

import pytest

from services.gateway.admission.caller import CallOutcome
from services.gateway.answering.answer import Answer
from shared.messages import Accepted

pytestmark = pytest.mark.sources  # a stream of the test stands in


class LostStream:
    """A generation that was accepted, and whose group was lost before the gateway's next step."""

    group = ""
    accepted = Accepted(request_id="r", group="g0")

    async def wait_accepted(self) -> Accepted:
        return self.accepted


async def test_an_answer_names_the_group_that_began_it_also_when_that_is_lost() -> None:
    caller: Any = SimpleNamespace(outcome=CallOutcome())
    context: Any = SimpleNamespace(running=set(), metrics=None)
    detached: Any = None
    start: Any = None
    answer = Answer(
        caller=caller, context=context, detached=detached, start=start, timeout_s=1.0, field_names={}
    )
    stream: Any = LostStream()
    answer.running.streams.append(stream)
    await answer.wait_accepted()
    assert dict(caller.outcome.headers())[b"x-ryz-group"] == b"g0"
