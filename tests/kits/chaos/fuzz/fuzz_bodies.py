"""Whole bodies for the routes that generate: fuzzing edits them."""

from typing import Any

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"enum": [1, "x"]}},
    "required": ["a"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {
    "name": "look_up",
    "description": "Looks up.",
    "parameters": SCHEMA,
    "strict": True,
}
CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "look_up", "arguments": '{"a":1}'},
}
TOOL_CHAT: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 4,
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "tools": [{"type": "function", "function": FUNCTION}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hello!"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "found"},
    ],
    "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": False},
}
FORM_CHAT: dict[str, Any] = {
    "model": "demo",
    "max_completion_tokens": 4,
    "messages": [{"role": "developer", "content": "Answer."}],
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
    },
    "metadata": {"k": "v"},
    "service_tier": "auto",
    "stop_token_ids": [3],
    "min_tokens": 1,
}
RESPONSE: dict[str, Any] = {
    "model": "demo",
    "max_output_tokens": 16,
    "instructions": "Be brief.",
    "store": True,
    "background": False,
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello!"}]},
        {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
    ],
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": "auto",
    "metadata": {"k": "v"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}},
    "reasoning": {"effort": "low"},
    "truncation": "disabled",
    "previous_response_id": None,
}
MESSAGES: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 4,
    "system": [{"type": "text", "text": "Be brief."}],
    "stop_sequences": ["x"],
    "messages": [
        {"role": "user", "content": "Hello!"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t1", "name": "look_up", "input": {"a": 1}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "found"}]},
    ],
    "tools": [{"name": "look_up", "description": "Looks up.", "input_schema": SCHEMA}],
    "tool_choice": {"type": "any"},
    "metadata": {"user_id": "u"},
    "thinking": {"type": "disabled"},
    "top_k": 5,
}
EMBEDDINGS: dict[str, Any] = {
    "model": "demo",
    "input": ["Hello", "Bye"],
    "encoding_format": "base64",
    "dimensions": 8,
    "user": "u",
}
TOKENIZE: dict[str, Any] = {"model": "demo", "prompt": "Hello", "add_special_tokens": True}
DETOKENIZE: dict[str, Any] = {"model": "demo", "tokens": [5, 6, 7]}
GENERATING = {
    "/v1/chat/completions": (TOOL_CHAT, FORM_CHAT),
    "/v1/responses": (RESPONSE,),
    "/v1/messages": (MESSAGES,),
    "/v1/messages/count_tokens": (MESSAGES,),
    "/v1/embeddings": (EMBEDDINGS,),
    "/tokenize": (TOKENIZE, {"model": "demo", "messages": TOOL_CHAT["messages"]}),
    "/detokenize": (DETOKENIZE,),
}
