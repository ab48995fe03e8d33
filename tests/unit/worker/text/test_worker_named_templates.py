"""Models with several chat templates: which files have them, and which one a request gets."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.worker.leader.intake.tool_checks import template_input
from services.worker.model_files.load_model import load_model
from services.worker.model_files.model_dir import MAX_NAMED
from services.worker.text.answers.known_formats import format_of
from services.worker.text.chat_template import ChatTemplate
from services.worker.text.control_tokens import ControlTokenGuard
from services.worker.text.tokenizer import LibraryTokenizer
from services.worker.text.tool_prompt import TemplateInput
from shared.errors import InvalidRequest
from shared.messages import ChatMessage, GenerateRequest, TemplateOptions, ToolDefinition
from tests.kits.templates.template_shapes import named_sources, template, template_source
from tests.kits.worker.gguf_vocabularies import byte_level_keys, write_gguf
from tests.kits.worker.tokenizers import byte_level

SAID = [ChatMessage(role="user", content="hi")]
TOOLS = TemplateInput([ToolDefinition(name="look")])
TEXT = "{% for m in messages %}{{ m.content or '' }}{% endfor %}"
ALL = (
    "{{ tools | tojson }}{% for m in messages %}{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}{% endfor %}"
)
SOURCES = {
    "default": f"plain {TEXT}",
    "tool_use": f"tools {ALL}",
    "rag": f"rag {TEXT}",
}


def listed(path: Path) -> None:
    templates = [{"name": name, "template": source} for name, source in SOURCES.items()]
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))


def in_files(path: Path) -> None:
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": f"older {TEXT}"}))
    (path / "chat_template.jinja").write_text(SOURCES["default"])
    (path / "additional_chat_templates").mkdir()
    for name in ("tool_use", "rag"):
        (path / "additional_chat_templates" / f"{name}.jinja").write_text(SOURCES[name])


def of_a_processor(path: Path) -> None:
    (path / "chat_template.json").write_text(json.dumps({"chat_template": SOURCES}))


def file(path: Path) -> Path:
    named = {f"chat_template.{name}": source for name, source in SOURCES.items() if name != "default"}
    keys = byte_level_keys() | {"chat_template": SOURCES["default"], "chat_templates": [*SOURCES]} | named
    return write_gguf(path / "x.gguf", keys)


def directory(path: Path, write: Any) -> Path:
    byte_level().save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps({"max_position_embeddings": 128, "eos_token_id": 261}))
    write(path)
    return path


@pytest.fixture(params=[listed, in_files, of_a_processor, file])
def several(request: pytest.FixtureRequest, tmp_path: Path) -> ChatTemplate:
    made = request.param
    found = load_model(file(tmp_path) if made is file else directory(tmp_path, made)).template
    assert found is not None
    return found


def test_the_template_for_tools_is_taken_with_tools(several: ChatTemplate) -> None:
    assert several.render(SAID) == "plain hi"
    with_tools = several.render(SAID, 5.0, TOOLS)
    assert with_tools.startswith("tools [")
    assert '"name": "look"' in with_tools


def test_a_request_may_name_a_template(several: ChatTemplate) -> None:
    def render(name: Any, **given: Any) -> str:
        return several.render(SAID, 5.0, TemplateInput(variables={"chat_template": name}, **given))

    assert render("rag") == "rag hi"
    assert render("default", tools=TOOLS.tools).startswith("plain ")
    for name in ("other", "", 7, ["rag"], None):
        if name is None:
            assert render(name) == "plain hi"
            continue
        with pytest.raises(InvalidRequest, match="it has default, ") as refused:
            render(name)
        assert refused.value.data == {"param": "template", "variable": "chat_template"}


def asking(**variables: Any) -> GenerateRequest:
    options = TemplateOptions(variables=json.dumps(variables))
    return GenerateRequest(request_id="r", model="m", messages=SAID, template=options)


def test_documents_are_given_to_templates_that_read_them() -> None:
    model, documents = template("command_r"), [{"title": "Cats", "text": "They purr."}]
    given = template_input(asking(chat_template="rag", documents=documents), model)
    prompt = model.render(SAID, 5.0, given)
    assert "Document: 0\ntitle: Cats\ntext: They purr." in prompt
    for variables in ({"documents": documents}, {"chat_template": "rag"}):
        with pytest.raises(InvalidRequest, match="cannot be set by a request"):
            template_input(asking(**variables), ChatTemplate(TEXT, {}))


def test_answers_are_read_in_the_form_of_the_template_for_tools() -> None:
    model = template("hermes")
    assert model.knows_tools
    assert format_of(model.source) is None
    found = format_of(model.sources)
    assert found is not None
    assert found.name == "hermes"


def test_a_template_for_tools_that_is_broken_is_refused(tmp_path: Path) -> None:
    path = directory(tmp_path, listed)
    broken = [{"name": "default", "template": TEXT}, {"name": "tool_use", "template": "{% if %}"}]
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": broken}))
    with pytest.raises(InvalidRequest, match=r"tokenizer_config\.json: .* is broken"):
        load_model(path)


@pytest.mark.parametrize(
    "given",
    [
        [{"name": ["default"], "template": TEXT}, {"name": "default", "template": {}}, 7, None],
        [{"template": TEXT}],
        {"tool_use": TEXT},
        {"default": 7},
        7,
        True,
    ],
)
def test_a_list_without_a_default_is_no_template(tmp_path: Path, given: Any) -> None:
    path = directory(tmp_path, listed)
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": given}))
    assert load_model(path).template is None


def test_only_some_of_very_many_templates_are_read(tmp_path: Path) -> None:
    path = directory(tmp_path, in_files)
    for number in range(100):
        (path / "additional_chat_templates" / f"{number}.jinja").write_text(TEXT)
    many = load_model(path).template
    assert many is not None
    assert many.sources.count(TEXT) <= MAX_NAMED + 1
    templates = {"default": TEXT} | {str(number): TEXT for number in range(100)}
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    (path / "chat_template.jinja").unlink()
    many = load_model(path).template
    assert many is not None
    assert many.sources.count(TEXT) == MAX_NAMED + 1


@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"])
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, name: str) -> None:
    path = directory(tmp_path, in_files)
    (path / name).write_bytes(b"\xff\xfe{{ x }}")
    with pytest.raises(InvalidRequest, match=r"\.jinja cannot be read: ") as refused:
        load_model(path)
    assert str(path / name) in refused.value.message


def test_control_tokens_of_all_templates_are_no_text() -> None:
    named = {"tool_use": f"<plain token é>{ALL}"}
    tokenizer = LibraryTokenizer(byte_level())
    guard = ControlTokenGuard(tokenizer, ChatTemplate(TEXT, {}, named=named))
    said = [ChatMessage(role="user", content="a <plain token é> b")]
    ids = guard.encode_prompt(guard.render_prompt(said, 5.0, TOOLS))
    assert ids.count(262) == 1
    assert tokenizer.decode(ids).endswith("a <plain token é> b")


def test_findings_say_which_template_they_are_about() -> None:
    named = named_sources("hermes") | {"rag": "nothing"}
    found = ChatTemplate(template_source("hermes"), {}, named=named).findings
    assert any(one.endswith("(template 'rag')") for one in found)
    assert all("(template 'rag')" in one for one in found)
