"""Twenty-five shapes of chat templates, each with twelve conversations: no text is missing in any prompt.

A conversation that a template cannot take is refused, and the table here says which ones that are.
"""

import json
from typing import Any

import pytest

from services.worker.text.tool_prompt import TemplateInput, tool_dict
from shared.errors import InvalidRequest
from tests.kits.templates.conversations import CONVERSATIONS, Conversation
from tests.kits.templates.template_shapes import NAMES, SPECIAL, template, template_source

ALTERNATE, NO_SYSTEM = "must alternate", "System role not supported"
REFUSED = {
    ("gemma2", "system"): NO_SYSTEM,
    ("gemma2", "developer"): NO_SYSTEM,
    ("mistral_v1", "system"): ALTERNATE,
    ("mistral_v1", "developer"): ALTERNATE,
    ("mistral_v3", "call beside text"): "messages.1: the model's chat template leaves out the text of this",
    **{
        (name, "later system"): ALTERNATE
        for name in ("gemma2", "gemma3", "llama2", "mistral_v1", "mistral_v3")
    },
}
MOVED = "they become part of the next message of the user"
BEGINNING = f"it drops system messages that are not the first message: {MOVED}"
NO_SYSTEM_MESSAGES = "it refuses system messages; tools are told in the first message of the user"
PARTS = "it takes parts as the content of: assistant, system, user"
FINDINGS = {
    "command_r": [BEGINNING],
    "deepseek_r1": [f"it drops system messages after the first one: {MOVED}"],
    "deepseek_v3": ["it takes the arguments of calls as text"],
    "gemma2": [NO_SYSTEM_MESSAGES],
    "gpt_oss": [BEGINNING],
    "llama_guard3": [PARTS],
    "mistral_v1": [NO_SYSTEM_MESSAGES],
    "mistral_v3": ["it drops the text beside a call: requests with that are refused"],
    "phi4_mini": ["it drops tools, the names of calls, the arguments of calls; tools are told in words"],
    "smolvlm": [PARTS],
}
OWN_TOOLS = {
    "command_r", "deepseek_v3", "glm45", "gpt_oss", "granite3", "hermes", "llama31", "mistral_v3", "qwen25",
    "qwen3",
}  # fmt: skip


def rendered(name: str, said: Conversation) -> str:
    given = TemplateInput(said.tools)
    return template(name).render(said.messages, 5.0, given, generation_prompt=said.generation_prompt)


def is_in(text: str, prompt: str) -> bool:
    return text in prompt or any(
        json.dumps(text, ensure_ascii=each)[1:-1] in prompt for each in (True, False)
    )


def test_there_are_twenty_five_shapes_and_twelve_conversations() -> None:
    assert len(NAMES) == 25
    assert len(CONVERSATIONS) == 12


@pytest.mark.parametrize("kind", CONVERSATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_no_text_is_missing(name: str, kind: str) -> None:
    said = CONVERSATIONS[kind]
    if (name, kind) in REFUSED:
        with pytest.raises(InvalidRequest) as refused:
            rendered(name, said)
        assert REFUSED[name, kind] in refused.value.message
        assert refused.value.data["param"] == "messages"
        return
    prompt = rendered(name, said)
    assert [text for text in said.wanted if not is_in(text, prompt)] == []
    assert "None" not in prompt
    assert "'city'" not in prompt, "arguments are JSON, and no text of Python"
    assert '\\"city' not in prompt, "arguments are JSON, and no text of JSON"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_unusual_is_found(name: str) -> None:
    assert template(name).findings == FINDINGS.get(name, [])
    assert template(name).knows_tools == (name in OWN_TOOLS)


@pytest.mark.parametrize("kind", ["user", "system", "turns", "parts", "later system", "prefill"])
@pytest.mark.parametrize("name", NAMES)
def test_what_transformers_renders_whole_is_rendered_the_same(name: str, kind: str) -> None:
    """The prompt is that of transformers wherever this has no text missing."""
    said = CONVERSATIONS[kind]
    plain = [{"role": message.role, "content": message.content} for message in said.messages]
    reference = by_transformers(template_source(name), plain, said)
    if reference is None or not all(is_in(text, reference) for text in said.wanted):
        return
    assert rendered(name, said) == reference


@pytest.mark.parametrize("kind", ["tools", "call without text", "two calls", "reasoning"])
@pytest.mark.parametrize("name", ["glm45", "granite3", "qwen25", "qwen3"])
def test_calls_are_rendered_as_in_transformers(name: str, kind: str) -> None:
    """Of messages as OpenAI's API has them, but with an object as the arguments, as transformers asks for."""
    said = CONVERSATIONS[kind]
    plain: list[dict[str, Any]] = []
    for message in said.messages:
        fields: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            functions = [
                {"name": one.name, "arguments": json.loads(one.arguments)} for one in message.tool_calls
            ]
            fields["tool_calls"] = [{"type": "function", "function": function} for function in functions]
            fields["content"] = message.content or (None if name != "glm45" else "")
        if message.reasoning:
            fields["reasoning_content"] = message.reasoning
        plain.append(fields)
    assert rendered(name, said) == by_transformers(template_source(name), plain, said)


def by_transformers(source: str, plain: list[dict[str, Any]], said: Conversation) -> str | None:
    """Returns the prompt of transformers; None if it raises an error."""
    from jinja2 import TemplateError  # noqa: PLC0415
    from transformers.utils.chat_template_utils import render_jinja_template  # noqa: PLC0415 (slow to import)

    tools = [tool_dict(tool) for tool in said.tools] or None
    try:
        prompts, _ = render_jinja_template(
            [plain],
            tools=tools,
            chat_template=source,
            add_generation_prompt=said.generation_prompt,
            **SPECIAL,
        )
    except (TemplateError, TypeError):
        return None
    prompt: str = prompts[0]
    return prompt
