"""A prompt that lacks the text of a message or of a call is mended or refused, whatever the template does."""

import json
from collections.abc import Sequence

import pytest

from services.worker.text.chat_template import ChatTemplate
from services.worker.text.control_tokens import ControlTokenGuard
from services.worker.text.template_guard import TemplateOverran
from services.worker.text.tokenizer import LibraryTokenizer
from services.worker.text.tool_prompt import TemplateInput
from shared.errors import InvalidRequest
from shared.messages import ChatMessage, ToolCall, ToolDefinition
from tests.kits.memory_bus import MemoryBus
from tests.kits.templates.template_shapes import template_source
from tests.kits.worker.leader import Kit, chat
from tests.kits.worker.tokenizers import byte_level
from tests.unit.worker.leader.answers.test_worker_tokenizing import counting

PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
TOOL = ToolDefinition(name="look", parameters='{"type": "object", "properties": {"at": {"type": "string"}}}')
ASKED = ChatMessage(role="user", content="What is there?")
LOOKED = ChatMessage(role="tool", content="A cat.", tool_call_id="c1")


def users(*texts: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=text) for text in texts]


def calling(arguments: str, content: str = "", call_id: str = "c1") -> ChatMessage:
    call = ToolCall(call_id=call_id, name="look", arguments=arguments)
    return ChatMessage(role="assistant", content=content, tool_calls=[call])


def render(source: str, said: Sequence[ChatMessage], *, tools: bool = False) -> str:
    return ChatTemplate(source, {}).render(list(said), 5.0, TemplateInput([TOOL] if tools else []))


@pytest.mark.parametrize(
    "walk",
    [
        "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}",
        "{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}{{ p['text'] }}{% endfor %}",
        "{{ m.content[0].text }}",
        "{{ m.content | map(attribute='text') | join('') }}",
    ],
)
def test_a_template_that_walks_over_parts_gets_parts(walk: str) -> None:
    source = f"{{% for m in messages %}}<{{{{ m.role }}}}>{walk}{{% endfor %}}"
    said = [ChatMessage(role="system", content="Be short."), *users("one {% raw %}"), calling('{"at": "it"}')]
    prompt = render(source, [*said, LOOKED])
    assert prompt.startswith("<system>Be short.<user>one {% raw %}<assistant>")
    assert '{"name": "look", "arguments": {"at": "it"}}' in prompt
    assert "A cat." in prompt


def test_only_the_roles_that_need_parts_get_them() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}{% for p in m.content %}"
        "{% if p.type == 'text' %}({{ p.text }}){% endif %}{% endfor %}"
        "{% else %}{{ m.role + ': ' + m.content }}{% endif %}{% endfor %}"
    )
    said = [ChatMessage(role="system", content="s"), *users("u"), ChatMessage(role="assistant", content="a")]
    assert render(source, said) == "system: s(u)assistant: a"


def test_texts_of_parts_keep_control_tokens_as_text() -> None:
    tokenizer = LibraryTokenizer(byte_level())
    source = (
        "{% for m in messages %}<|im_start|>{% for p in m.content %}"
        "{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}<|im_end|>{% endfor %}"
    )
    guard = ControlTokenGuard(tokenizer, ChatTemplate(source, {}))
    ids = guard.encode_prompt(guard.render_prompt(users("end <|im_end|> here"), 5.0))
    assert ids.count(261) == 1
    assert tokenizer.decode(ids) == "<|im_start|>end <|im_end|> here<|im_end|>"


CALLS = "{% for c in m.tool_calls or [] %}{{ '<' + c.function.name + '>' }}CALLED{% endfor %}"
WITH_TOOLS = "{{ tools | tojson }}{% for m in messages %}BODY{% endfor %}"


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("{{ '' + c.function.arguments }}", '{"at":  "it"}'),  # joined: only a text can be
        ("{{ c.function.arguments | tojson }}", '{"at": "it"}'),
        ("{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}",
         '{"at": "it"}'),
        ("{{ c.function.arguments }}", '{"at":  "it"}'),  # an object would be written as Python does
        ("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}", "at=it;"),
    ],
)  # fmt: skip
def test_arguments_are_what_the_template_writes_well(written: str, arguments: str) -> None:
    body = "{{ m.content or '' }}" + CALLS.replace("CALLED", written)
    prompt = render(WITH_TOOLS.replace("BODY", body), [ASKED, calling('{"at":  "it"}'), LOOKED], tools=True)
    assert f"<look>{arguments}A cat." in prompt


@pytest.mark.parametrize(
    "body",
    [
        "{% if m.content is none %}" + CALLS + "{% else %}{{ m.content }}{% endif %}",
        "{% if m.content is string %}{{ m.content }}{% else %}" + CALLS + "{% endif %}",
        "{{ m.content | trim }}" + CALLS,
        "{{ m.content }}" + CALLS,
        "{{ '' + m.content }}" + CALLS,
        "{% if m.content is not none and m.content | length %}{{ m.content }}{% endif %}" + CALLS,
    ],
)
def test_a_message_that_only_calls_has_null_or_an_empty_text(body: str) -> None:
    body = body.replace("CALLED", "{{ c.function.arguments | tojson }}")
    prompt = render(WITH_TOOLS.replace("BODY", body), [ASKED, calling('{"at": "it"}'), LOOKED], tools=True)
    assert '<look>{"at": "it"}' in prompt
    assert "None" not in prompt


def test_tools_of_a_template_without_a_system_role_are_in_the_first_message_of_the_user() -> None:
    prompt = render(template_source("gemma2"), [ASKED], tools=True)
    assert prompt.startswith("<start_of_turn>user\n# Tools\n")
    assert '"name": "look"' in prompt
    assert prompt.endswith("\n\nWhat is there?<end_of_turn>\n<start_of_turn>model\n")


def test_tools_of_a_template_that_drops_system_messages_are_in_the_first_message_of_the_user() -> None:
    source = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    said = [ChatMessage(role="system", content="Be kind."), ASKED, calling('{"at": "it"}', "Wait."), LOOKED]
    prompt = render(source, said, tools=True)
    assert prompt.startswith("<user># Tools\n")
    assert '"name": "look"' in prompt
    assert "\n\nBe kind.\n\nWhat is there?<assistant>Wait.\n<tool_call>" in prompt
    assert "A cat." in prompt


def test_a_system_message_that_would_be_dropped_is_in_the_next_message_of_the_user() -> None:
    source = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    said = [ChatMessage(role="developer", content="Be kind."), ASKED]
    assert render(source, said) == "<user>Be kind.\n\nWhat is there?"
    answered = [
        *said,
        ChatMessage(role="assistant", content="A dog."),
        ChatMessage(role="system", content="Hm."),
    ]
    assert render(source, answered) == "<user>Be kind.\n\nWhat is there?<assistant>A dog.<user>Hm."


@pytest.mark.parametrize(
    ("source", "said", "index", "what"),
    [
        ("{{ messages[-1].content }}", users("one", "two"), 0, "text of this message of role 'user'"),
        ("{% for m in messages[-3:] %}{{ m.content }}{% endfor %}", users(*"abcde"), 0, "role 'user'"),
        ("{% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}",
         [ASKED, ChatMessage(role="assistant", content="A dog."), ASKED], 1, "role 'assistant'"),
        ("nothing", users("x"), 0, "role 'user'"),
    ],
)  # fmt: skip
def test_what_cannot_be_mended_is_refused(
    source: str, said: list[ChatMessage], index: int, what: str
) -> None:
    with pytest.raises(InvalidRequest, match=rf"^messages\.{index}: .* leaves out .*{what}") as refused:
        render(source, said)
    assert refused.value.data == {"param": "messages", "index": index}


def test_a_text_that_is_short_enough_to_be_anywhere_is_missed_as_well() -> None:
    """The prompt has an `e` of its own; the template is known to drop answers since it was loaded."""
    source = "the {% for m in messages if m.role != 'assistant' %}{{ m.content }}{% endfor %}"
    with pytest.raises(InvalidRequest, match=r"^messages\.1: "):
        render(source, [ASKED, ChatMessage(role="assistant", content="e"), ASKED])


@pytest.mark.parametrize(
    ("source", "text", "wanted"),
    [
        (
            "{{ messages[0].content | tojson }}",
            'say "x"\n\u00e9',
            json.dumps('say "x"\n\u00e9', ensure_ascii=False),
        ),
        ("{{ messages[0].content | e }}", "<b>&", "&lt;b&gt;&amp;"),
        ("{{ messages[0].content | upper }}", "shout", "SHOUT"),
        ("{{ messages[0].content.split() | join(' ') }}", "a\n  b", "a b"),
        ("{{ messages[0].content | replace('\n', ' ') | trim }}", " a\nb\n", "a b"),
        ("{{ messages[0].content.split('</think>')[-1] }}", "<think>no</think>yes", "yes"),
    ],
)
def test_a_text_in_another_form_is_no_loss(source: str, text: str, wanted: str) -> None:
    assert render(source, users(text)) == wanted


def test_empty_texts_are_not_missed() -> None:
    assert render("{{ messages[-1].content }}", users("", "  \n", "x")) == "x"


def test_reasoning_of_earlier_turns_may_be_dropped() -> None:
    said = [ASKED, ChatMessage(role="assistant", content="A dog.", reasoning="It barks."), ASKED]
    prompt = render(PLAIN, said)
    assert "A dog." in prompt
    assert "barks" not in prompt


def test_a_template_that_loops_is_stopped_when_it_is_checked() -> None:
    loop = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
    template = ChatTemplate(loop + PLAIN, {})
    assert template.findings == ["it takes too much time or memory to be checked"]
    with pytest.raises(TemplateOverran):
        template.render(users("x"), 0.1)


async def test_a_lost_text_fails_the_request_with_its_message() -> None:
    """Through the leader, which all APIs go through."""
    model, _ = counting("{{ messages[-1].content }}")
    async with Kit(MemoryBus(), model=model) as kit:
        failed = await kit.failure(chat("r", "", messages=users("one", "two")))
        assert (failed.code, failed.data) == ("invalid_request", {"param": "messages", "index": 0})
        assert "leaves out the text of this message of role 'user'" in failed.message
