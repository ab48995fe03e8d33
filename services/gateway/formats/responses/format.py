"""The format of `POST /v1/responses`: bodies with their history become calls."""

import random
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from services.gateway.admission.caller import Caller
from services.gateway.answering.call import Call, StartedCall
from services.gateway.answering.events.ports import EventSource
from services.gateway.answering.intake.new_calls import root_from
from services.gateway.formats.fields.body_format import parse_body
from services.gateway.formats.responses.kept_answer import KeptResponse
from services.gateway.formats.responses.schema import ResponseRequest
from services.gateway.formats.responses.translation import FIELD_NAMES, ResponseCall, response_call
from services.gateway.settings import GatewaySettings
from shared.client.calls.responses_client import ResponsesClient
from shared.errors import ResponseNotFound, RyzError
from shared.messages import ResponseRecord

KIND = "response"
PATH = "/v1/responses"
RESPONSE_ID = re.compile(r"[A-Za-z0-9_-]{1,96}\Z")


class BackgroundAnswer(Protocol):
    """The answer to a call whose response runs without its caller."""

    async def whole(self, started: StartedCall) -> bytes:
        """See `Call.whole`: the response as it begins."""

    def events(self, started: StartedCall) -> EventSource:
        """See `Call.events`."""


class ResponseFormat:
    """The format; see `Format`.

    Args:
        settings: Limits of bodies and times.
        store: Has the records of responses.
        in_background: Makes the answer of a response that runs without its caller.
    """

    kind = KIND
    path = PATH

    def __init__(
        self,
        settings: GatewaySettings,
        store: ResponsesClient,
        in_background: Callable[[ResponseCall], BackgroundAnswer],
    ) -> None:
        self._settings = settings
        self._store = store
        self._in_background = in_background

    def translate(self, raw: bytes, caller: Caller) -> Awaitable[Call]:
        """See `Format`; the history is read after the body."""
        return self._call_of(
            parse_body(raw, ResponseRequest, self._settings.constants.max_body_values), caller
        )

    async def history_of(self, body: ResponseRequest, tenant: str) -> list[ResponseRecord]:
        """The conversation that a body continues; raises `ResponseNotFound` if it is not there."""
        name = body.previous_response_id
        if not name:
            return []
        try:
            if not RESPONSE_ID.match(name):
                raise ResponseNotFound(f"no response {name[:96]!r}")
            return await self._store.chain(tenant, name, self._settings.max_body_bytes)
        except RyzError as error:
            if error.code == "response_not_found":
                error.data.setdefault("param", "previous_response_id")
            raise

    def draft_of(
        self, body: ResponseRequest, history: Sequence[ResponseRecord], caller: Caller
    ) -> ResponseCall:
        """The response that a body asks for; raises `InvalidRequest` if a field is wrong."""
        return response_call(
            body,
            history,
            request_id=caller.request_id,
            tenant=caller.tenant,
            seed=random.getrandbits(63),  # no secret: it decides what is drawn
            created_s=caller.created_s,
            drops_blocks=self._settings.leave_out_changing_blocks,
            route_key=root_from(self._settings.session_from, caller.tenant, body.prompt_cache_key, body.user),
        )

    def kept(self, draft: ResponseCall, *, shows_defaults: bool = True) -> KeptResponse:
        """What makes the answer of a response that runs with its caller; see `KeptResponse`."""
        return KeptResponse(draft, self._store, shows_defaults=shows_defaults)

    async def _call_of(self, body: ResponseRequest, caller: Caller) -> Call:
        history = await self.history_of(body, caller.tenant)
        draft = self.draft_of(body, history, caller)
        if not draft.background:
            return call_of_draft(draft, self.kept(draft))
        begun = self._in_background(draft)
        return Call(
            kind=KIND,
            request_id=draft.request.request_id,
            requests=[draft.request],
            stream=draft.stream,
            event_ids=True,
            timeout_s=self._settings.max_timeout_s if draft.timeout_s is None else draft.timeout_s,
            unknown_fields=draft.unknown_fields,
            left_out=draft.left_out,
            field_names=FIELD_NAMES,
            whole=begun.whole,
            events=begun.events,
        )


def call_of_draft(draft: ResponseCall, kept: KeptResponse) -> Call:
    """The call of a response that runs with its caller."""
    return Call(
        kind=KIND,
        request_id=draft.request.request_id,
        requests=[draft.request],
        stream=draft.stream,
        timeout_s=draft.timeout_s,
        unknown_fields=draft.unknown_fields,
        left_out=draft.left_out,
        field_names=FIELD_NAMES,
        kept=kept,
    )
