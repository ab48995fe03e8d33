"""The response object: the fields that a request determines, and those that its answer adds. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from services.gateway.formats.responses.schema import ResponseRequest
from shared.errors import RyzError
from shared.messages import Usage

_CODES = {
    "invalid_request": "invalid_prompt",
    "context_length_exceeded": "context_length_exceeded",
    "rate_limited": "rate_limit_exceeded",
    "overloaded": "rate_limit_exceeded",
}


def fields_of(body: ResponseRequest, response_id: str, created_s: int) -> dict[str, Any]:
    """The fields of a response that has just begun."""
    text_format = (body.text.format if body.text else None) or {"type": "text"}
    reasoning = body.reasoning
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_s,
        "completed_at": None,
        "status": "queued" if body.background else "in_progress",
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "model": body.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": body.temperature,
        "presence_penalty": body.presence_penalty or 0.0,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "text": {"format": text_format, "verbosity": (body.text and body.text.verbosity) or "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": [_shown_tool(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "user": body.user,
        "metadata": body.metadata or {},
    }


def _shown_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    shown = {"description": None, "parameters": None, "strict": False}
    return shown | {name: value for name, value in tool.items() if value is not None}


def usage_object(usage: Usage) -> dict[str, Any]:
    """The usage of a response."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.stored_tokens,
            "fetched_tokens": usage.fetched_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def error_object(error: RyzError) -> dict[str, Any]:
    """The `error` of a failed response."""
    code = _CODES.get(error.code, "server_error")
    text = error.message if error.code != "internal" else "An internal error occurred."
    return {"code": code, "message": text}


def shown_input(given: str | Sequence[Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    """The items of an input as `input_items` lists them: each with a type and an id."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    items = []
    for index, item in enumerate(given):
        shown = {"type": "message", **item}
        if not isinstance(shown.get("id"), str):
            shown["id"] = f"in_{name}_{index}"
        if shown["type"] == "message":
            shown.setdefault("status", "completed")
            if isinstance(shown.get("content"), str):
                kind = "output_text" if shown.get("role") == "assistant" else "input_text"
                more: dict[str, Any] = {"annotations": []} if kind == "output_text" else {}
                shown["content"] = [{"type": kind, "text": shown["content"], **more}]
        items.append(shown)
    return items
