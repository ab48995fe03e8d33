"""The format of `POST /v1/messages/count_tokens`: the tokens of a message that is not answered."""

from functools import partial

import msgspec

from services.gateway.admission.errors.shapes import ANTHROPIC
from services.gateway.answering.call import Call, StartedCall
from services.gateway.formats.anthropic.schema import CountTokensRequest
from services.gateway.formats.anthropic.translation import FIELD_NAMES, count_query, judge_body
from services.gateway.formats.fields.body_format import BodyFormat, CallOrigin
from services.gateway.settings import GatewaySettings
from shared.client import InferenceClient
from shared.messages import TokenizeQuery


class CountTokensFormat(BodyFormat[CountTokensRequest]):
    """The format.

    Args:
        settings: Limits of a body.
        client: Asks a leader for the tokens.
    """

    kind = "count_tokens"
    path = f"{ANTHROPIC}/count_tokens"
    repeatable = False

    def __init__(self, settings: GatewaySettings, client: InferenceClient) -> None:
        super().__init__(CountTokensRequest, self._call, settings)
        self._client = client

    def _call(self, body: CountTokensRequest, origin: CallOrigin) -> Call:
        unknown, left_out = judge_body(body)
        query = count_query(body, origin.tenant, drops_blocks=origin.drops_blocks)
        return Call(
            kind=self.kind,
            request_id=origin.request_id,
            requests=[],
            stream=False,
            unknown_fields=unknown,
            left_out=left_out,
            field_names=FIELD_NAMES,
            asked_model=body.model,
            whole=partial(self._count, query),
        )

    async def _count(self, query: TokenizeQuery, started: StartedCall) -> bytes:
        asked = msgspec.structs.replace(query, model=started.call.model)
        tokenized = await self._client.tokenize(asked, timeout_s=started.timeout_s)
        return msgspec.json.encode({"input_tokens": tokenized.count})
