"""The routes of `/tokenize` and `/detokenize`, in vLLM's shapes.

A leader of the model makes the tokens, in the way of a generation's prompt.
"""

import msgspec

from services.gateway.admission.error_shapes import renamed
from services.gateway.answering.context import GatewayContext
from services.gateway.completions.chat_messages import messages_of
from services.gateway.completions.chat_tools import SERVED_TYPES, tool_use_of
from services.gateway.completions.logprob_forms import part_text
from services.gateway.completions.request_translation import continues_last
from services.gateway.field_policy.field_rules import inner_without_tools, offered_tools
from services.gateway.field_policy.left_out import LeftOut, without_changing_blocks
from services.gateway.http.serving_route import HttpExchange
from services.gateway.tokens.json_route import JsonRoute
from services.gateway.tokens.token_schema import DetokenizeRequest, TokenizeRequest
from shared.codec import pack_tokens, unpack_tokens
from shared.errors import InvalidRequest, RyzError
from shared.messages import DetokenizeQuery, TemplateOptions, Tokenized, TokenizeQuery

_NAMES = {"token_ids": "tokens", "template": "chat_template_kwargs"}


class TokenizeRoute(JsonRoute[TokenizeRequest]):
    """Answers `POST /tokenize`."""

    def __init__(self, context: GatewayContext) -> None:
        super().__init__("/tokenize", TokenizeRequest, context)

    def judge(self, body: TokenizeRequest) -> tuple[list[str], list[LeftOut]]:
        """See `JsonRoute`."""
        unknown, left_out = super().judge(body)
        if isinstance(body.tools, list):
            left_out += offered_tools(body.tools, SERVED_TYPES).left_out
        return inner_without_tools(unknown, left_out), left_out

    async def answer_body(self, body: TokenizeRequest, exchange: HttpExchange, timeout_s: float) -> bytes:
        """See `JsonRoute`."""
        exchange.caller.model = body.model
        query = tokenize_query(body, exchange.caller.tenant)
        if query.messages and self.context.settings.leave_out_changing_blocks:
            query = msgspec.structs.replace(query, messages=without_changing_blocks(query.messages)[0])
        try:
            told = await self.context.client.tokenize(query, timeout_s=timeout_s)
        except RyzError as error:
            raise renamed(error, _NAMES) from None
        return msgspec.json.encode(
            {
                "count": told.count,
                "max_model_len": told.context_length,
                "tokens": unpack_tokens(told.token_ids),
                "token_strs": _shown(told) if query.texts else None,
            }
        )


class DetokenizeRoute(JsonRoute[DetokenizeRequest]):
    """Answers `POST /detokenize`."""

    def __init__(self, context: GatewayContext) -> None:
        super().__init__("/detokenize", DetokenizeRequest, context)

    async def answer_body(self, body: DetokenizeRequest, exchange: HttpExchange, timeout_s: float) -> bytes:
        """See `JsonRoute`."""
        exchange.caller.model = body.model
        query = DetokenizeQuery(
            model=body.model, token_ids=pack_tokens(body.tokens), tenant=exchange.caller.tenant
        )
        try:
            told = await self.context.client.detokenize(query, timeout_s=timeout_s)
        except RyzError as error:
            raise renamed(error, _NAMES) from None
        return msgspec.json.encode({"prompt": told.text})


def _shown(told: Tokenized) -> list[str]:
    """The texts of the tokens; parts of characters as in log probabilities."""
    return [
        part_text(told.parts[place]) if place in told.parts else text for place, text in enumerate(told.texts)
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
