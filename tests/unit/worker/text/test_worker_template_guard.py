"""Limits on the time and size of chat template rendering; ordinary templates render as without limits."""

import time

import jinja2
import pytest

from services.worker.text.chat_template import ChatTemplate
from services.worker.text.template_guard import TemplateOverran
from services.worker.text.tool_prompt import TemplateInput
from shared.errors import InvalidRequest
from shared.messages import ChatMessage, ToolDefinition

MANY = [ChatMessage(role="user", content="x")] * 4000
ENDLESS = [
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% for a in messages %}{% for b in messages %}{% for c in messages %}{% endfor %}{% endfor %}"
    "{% endfor %}",
    "{% macro f(n) %}{% for i in range(9) %}{{ f(n + 1) if n < 30 }}{% endfor %}{% endmacro %}{{ f(0) }}",
]
HUGE = [
    "{% set ns = namespace(s='a' * 1000) %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s=['a']) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(s=('a',)) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{{ 'a' * 10 ** 10 }}",
    "{{ [1] * 10 ** 10 }}",
    "{{ 'a'.ljust(10 ** 9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ 2 ** 1000000000 }}",
    "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
]


@pytest.mark.parametrize("source", ENDLESS)
def test_a_template_that_does_not_end_is_ended(source: str) -> None:
    template = ChatTemplate(source, {})
    began = time.thread_time()
    with pytest.raises(TemplateOverran):
        template.render(MANY, limit_s=0.2)
    assert time.thread_time() - began < 5  # it would take hours without the limit


@pytest.mark.parametrize("source", HUGE)
def test_a_template_that_builds_something_huge_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequest, match="template"):
        ChatTemplate(source, {}).render(MANY[:1], limit_s=60.0)


def test_one_that_calls_itself_without_end_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="recursion"):
        ChatTemplate("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", {}).render(MANY[:1])


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{{ m.content }}{% endfor %}",
        "{% for m in messages[::-1] if m.content != 'b' %}{{ loop.previtem }}{{ loop.revindex }}{% endfor %}",
        "{% for k, v in {'a': 1}.items() %}{{ k ~ v ~ none ~ 2.5 }}{% endfor %}",
        "{% for m in missing %}x{% else %}none{% endfor %}{{ 'a' ~ missing ~ 'b' }}",
        "{{ '%05.1f %s' % (1.5, 'x') }}{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ [1] + [2] }}{{ 1 + 2 }}",
        "{% for m in messages recursive %}{{ m.content }}{% endfor %}",
        "{{ messages | map(attribute='content') | join('-') | upper | replace('A', 'x') }}",
    ],
)
def test_what_is_guarded_renders_the_same(source: str) -> None:
    source += "{% for m in messages %}{{ m.content }}{% endfor %}"  # a prompt without a text is refused
    messages = [ChatMessage(role="user", content=text) for text in "abc"]
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    expected = plain.render(messages=[{"role": m.role, "content": m.content} for m in messages])
    assert ChatTemplate(source, {}).render(messages) == expected


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("{{ messages[0].content + (extra or '') }}", 7),
        ("{% if extra %}{{ extra.name.first }}{% endif %}", {"b": 1}),
        ("{% for one in extra or [] %}{{ one }}{% endfor %}", 7),
        ("{% if extra is defined %}{{ raise_exception('no ' ~ extra) }}{% endif %}", None),
        ("{{ '%d' % extra if extra is defined else '' }}", "x"),
        ("{% if extra %}{{ 1 // extra.n }}{% endif %}", {"n": 0}),
    ],
)
def test_what_a_variable_makes_of_a_template_names_the_variables(source: str, value: object) -> None:
    template = ChatTemplate(source + "{{ messages[0].content }}", {})
    said = [ChatMessage(role="user", content="x")]
    template.render(said, 1.0)
    with pytest.raises(InvalidRequest, match="the variables of the request") as refused:
        template.render(said, 1.0, TemplateInput(variables={"extra": value}))
    assert refused.value.data["param"] == "template"


def test_tools_that_a_template_refuses_are_named() -> None:
    refusing = "{% if tools and tools[0].function.name == 'bad' %}{{ raise_exception('no tool') }}{% endif %}"
    template = ChatTemplate(refusing + "{{ messages[0].content }}", {})
    said = [ChatMessage(role="user", content="x")]
    tools = [ToolDefinition(name="bad")]
    for variables in ({}, {"extra": 1}):
        with pytest.raises(InvalidRequest, match="refuses the tools of the request: no tool") as refused:
            template.render(said, 1.0, TemplateInput(tools, variables))
        assert refused.value.data["param"] == "tools"


def test_what_messages_make_of_a_template_names_the_messages() -> None:
    template = ChatTemplate("{{ raise_exception('alternate') }}", {})
    with pytest.raises(InvalidRequest, match="these messages: alternate") as refused:
        template.render(MANY[:1], 1.0, TemplateInput(variables={"extra": 1}))
    assert refused.value.data["param"] == "messages"
