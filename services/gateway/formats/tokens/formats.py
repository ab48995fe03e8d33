"""The formats of `/tokenize` and `/detokenize`, in vLLM's shapes.

A leader of the model makes the tokens, in the way of a generation's prompt.
"""

from functools import partial

import msgspec

from services.gateway.answering.call import Call, StartedCall
from services.gateway.formats.chat.tools import SERVED_TYPES, tool_use_of
from services.gateway.formats.chat.translation import continues_last, messages_of
from services.gateway.formats.fields.body_format import BodyFormat, CallOrigin
from services.gateway.formats.fields.changing_blocks import without_changing_blocks
from services.gateway.formats.fields.openai_answer import part_text
from services.gateway.formats.fields.rules import inner_without_tools, judge_fields, offered_tools
from services.gateway.formats.tokens.schema import DetokenizeRequest, TokenizeRequest
from services.gateway.settings import GatewaySettings
from shared.client import InferenceClient
from shared.codec import pack_tokens, unpack_tokens
from shared.errors import InvalidRequest
from shared.messages import DetokenizeQuery, TemplateOptions, Tokenized, TokenizeQuery

_NAMES = {"token_ids": "tokens", "template": "chat_template_kwargs"}


class TokenizeFormat(BodyFormat[TokenizeRequest]):
    """The format of `/tokenize`.

    Args:
        settings: Limits of a body.
        client: Asks a leader for the tokens.
    """

    kind = "tokenize"
    path = "/tokenize"
    repeatable = False

    def __init__(self, settings: GatewaySettings, client: InferenceClient) -> None:
        super().__init__(TokenizeRequest, self._call, settings)
        self._client = client

    def _call(self, body: TokenizeRequest, origin: CallOrigin) -> Call:
        unknown, left_out = judge_fields(body.model_extra, TokenizeRequest.model_fields)
        if isinstance(body.tools, list):
            left_out += offered_tools(body.tools, SERVED_TYPES).left_out
        query = tokenize_query(body, origin.tenant)
        if query.messages and origin.drops_blocks:
            query = msgspec.structs.replace(query, messages=without_changing_blocks(query.messages)[0])
        return Call(
            kind=self.kind,
            request_id=origin.request_id,
            requests=[],
            stream=False,
            unknown_fields=inner_without_tools([*unknown, *body.unknown_inside], left_out),
            left_out=left_out,
            field_names=_NAMES,
            asked_model=body.model,
            whole=partial(self._tokenize, query),
        )

    async def _tokenize(self, query: TokenizeQuery, started: StartedCall) -> bytes:
        asked = msgspec.structs.replace(query, model=started.call.model)
        tokenized = await self._client.tokenize(asked, timeout_s=started.timeout_s)
        return msgspec.json.encode(
            {
                "count": tokenized.count,
                "max_model_len": tokenized.context_length,
                "tokens": unpack_tokens(tokenized.token_ids),
                "token_strs": _shown(tokenized) if query.texts else None,
            }
        )


class DetokenizeFormat(BodyFormat[DetokenizeRequest]):
    """The format of `/detokenize`; arguments as above."""

    kind = "detokenize"
    path = "/detokenize"
    repeatable = False

    def __init__(self, settings: GatewaySettings, client: InferenceClient) -> None:
        super().__init__(DetokenizeRequest, self._call, settings)
        self._client = client

    def _call(self, body: DetokenizeRequest, origin: CallOrigin) -> Call:
        unknown, left_out = judge_fields(body.model_extra, DetokenizeRequest.model_fields)
        token_ids = pack_tokens(body.tokens)
        query = DetokenizeQuery(model=body.model, token_ids=token_ids, tenant=origin.tenant)
        return Call(
            kind=self.kind,
            request_id=origin.request_id,
            requests=[],
            stream=False,
            unknown_fields=[*unknown, *body.unknown_inside],
            left_out=left_out,
            field_names=_NAMES,
            asked_model=body.model,
            whole=partial(self._detokenize, query),
        )

    async def _detokenize(self, query: DetokenizeQuery, started: StartedCall) -> bytes:
        asked = msgspec.structs.replace(query, model=started.call.model)
        tokenized = await self._client.detokenize(asked, timeout_s=started.timeout_s)
        return msgspec.json.encode({"prompt": tokenized.text})


def _shown(tokenized: Tokenized) -> list[str]:
    """The texts of the tokens; parts of characters as in log probabilities."""
    return [
        part_text(tokenized.parts[index]) if index in tokenized.parts else text
        for index, text in enumerate(tokenized.texts)
    ]


def tokenize_query(body: TokenizeRequest, tenant: str) -> TokenizeQuery:
    """The question that a body asks.

    Raises:
        InvalidRequest: Fields contradict each other; names one.
    """
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("give one of `prompt` and `messages`", param="messages")
    if body.messages is None:
        for name in ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
            if getattr(body, name) is not None:
                raise InvalidRequest(f"`{name}` needs `messages`", param=name)
    elif body.add_special_tokens:
        raise InvalidRequest(
            "`add_special_tokens` is for a `prompt`: in messages the chat template writes them",
            param="add_special_tokens",
        )
    variables = body.chat_template_kwargs
    continues = body.messages is not None and continues_last(body, body.messages)
    return TokenizeQuery(
        model=body.model,
        messages=None if body.messages is None else messages_of(body.messages),
        prompt=body.prompt,
        tools=tool_use_of(body.tools, None, parallel=True),
        template=TemplateOptions(variables=msgspec.json.encode(variables).decode()) if variables else None,
        special_tokens=body.add_special_tokens is not False,
        generation_prompt=continues or body.add_generation_prompt is not False,
        continues=continues,
        texts=bool(body.return_token_strs),
        tenant=tenant,
    )
