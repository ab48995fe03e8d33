"""Tokenizers, chat templates and model directories."""

import json
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from services.worker.model_files.model_dir import load_model_dir
from services.worker.null.model import END, ByteTokenizer, null_model
from services.worker.text.chat_template import ChatTemplate
from services.worker.text.tokenizer import LibraryTokenizer, read_tokenizer
from shared.errors import InvalidRequest
from shared.messages import ChatMessage
from tests.kits.worker.tokenizers import byte_level, sentence_piece

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FULL = """{{ bos_token }}{%- set ns = namespace(turns=0) -%}
{% if messages[0]['role'] == 'system' %}
    {% set system = messages[0]['content'] | trim %}
    {% set messages = messages[1:] %}
{% endif %}
{% for m in messages %}
    {% if loop.index > 50 %}{% break %}{% endif %}
    {% set ns.turns = ns.turns + 1 %}
[{{ ns.turns }} {{ m['role'] }}] {{ m['content'] | tojson }}{% if m.name %} ({{ m.name }}){% endif %}

    {% generation %}{% if m.role == 'assistant' %}!{% endif %}{% endgeneration %}
{% endfor %}
{% if tools is not none %}tools{% endif %}
system={{ system | default('none') }} year={{ strftime_now('%Y') }}{{ eos_token }}
{%- if add_generation_prompt %}<assistant>{% endif %}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


@pytest.fixture(scope="module")
def by_bytes(folder: Path) -> LibraryTokenizer:
    byte_level().save(str(folder / "bytes.json"))
    return read_tokenizer(folder / "bytes.json")


@pytest.fixture(scope="module")
def by_pieces(folder: Path) -> LibraryTokenizer:
    sentence_piece().save(str(folder / "pieces.json"))
    return read_tokenizer(folder / "pieces.json")


def streamed(tokenizer: LibraryTokenizer | ByteTokenizer, ids: list[int]) -> list[str]:
    detokenizer = tokenizer.detokenizer()
    return [*(detokenizer.feed(token_id) for token_id in ids), detokenizer.flush()]


@given(st.text(max_size=40))
def test_text_comes_back_whole_and_never_in_half_characters(
    by_bytes: LibraryTokenizer, by_pieces: LibraryTokenizer, text: str
) -> None:
    for tokenizer in (by_bytes, ByteTokenizer()):
        pieces = streamed(tokenizer, tokenizer.encode(text, add_special_tokens=False))
        assert "".join(pieces) == text
        assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


def test_a_character_over_several_tokens_comes_with_the_last(by_bytes: LibraryTokenizer) -> None:
    ids = by_bytes.encode("a😀b", add_special_tokens=False)
    assert streamed(by_bytes, ids) == ["a", "", "", "", "😀", "b", ""]
    assert "".join(streamed(by_bytes, ids[:3])) == "a\ufffd"
    assert by_bytes.token_text(ids[1]) == "\ufffd"


def test_special_tokens_are_no_text_added_ones_are(by_bytes: LibraryTokenizer) -> None:
    ids = by_bytes.encode("<|im_start|>é the<plain token é><|im_end|>", add_special_tokens=False)
    assert "".join(streamed(by_bytes, ids)) == "é the<plain token é>"
    assert by_bytes.token_text(ids[0]) == "<|im_start|>"
    assert by_bytes.token_text(10**6) == ""
    assert streamed(by_bytes, [10**6]) == ["", ""]
    assert ByteTokenizer().token_text(END) == "<|end|>"


@given(st.lists(st.integers(0, 262), max_size=25))
def test_any_bytes_give_what_python_gives(by_bytes: LibraryTokenizer, ids: list[int]) -> None:
    data = b"".join(map(by_bytes.token_bytes, ids))
    assert "".join(streamed(by_bytes, ids)) == data.decode(errors="replace")


def test_pieces_keep_their_spaces_and_fall_back_to_bytes(by_pieces: LibraryTokenizer) -> None:
    ids = [2, 3, 1, *(6 + byte for byte in "é".encode()), 4, 262, 0, 6 + 0xFF]
    assert streamed(by_pieces, ids) == [" the", "a", " ", "", "é", "b", "", "<unk>", "\ufffd", ""]
    assert by_pieces.token_text(6 + 0xC3) == "\ufffd"


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(prefix="##"),
        decoders.Sequence([decoders.Replace("▁", "_"), decoders.ByteFallback(), decoders.Fuse()]),
        None,
    ],
)
def test_a_decoder_without_a_rule_is_left_to_the_library(folder: Path, decoder: Any) -> None:
    tokenizer = sentence_piece()
    tokenizer.decoder = decoder
    tokenizer.save(str(folder / "other.json"))
    ids = [2, 3, *((6 + byte for byte in "é😀".encode()) if decoder else ()), 4, 5, 5, 262, 3]
    pieces = streamed(read_tokenizer(folder / "other.json"), ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True)
    assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, 262), max_size=25))
def test_a_primed_detokenizer_goes_on_as_if_never_stopped(by_bytes: LibraryTokenizer, ids: list[int]) -> None:
    whole = streamed(by_bytes, ids)
    for cut in range(len(ids) + 1):
        detokenizer = by_bytes.detokenizer()
        for token_id in ids[:cut]:
            detokenizer.feed(token_id)
        rest = [detokenizer.feed(token_id) for token_id in ids[cut:]]
        assert [*rest, detokenizer.flush()] == whole[cut:]


def messages(*contents: str, roles: str = "sua") -> list[ChatMessage]:
    names: dict[str, Any] = {"s": "system", "u": "user", "a": "assistant"}
    return [ChatMessage(role=names[r], content=c) for r, c in zip(roles, contents, strict=False)]


@pytest.mark.parametrize("source", [CHATML, FULL])
@pytest.mark.parametrize("roles", ["sua", "uau", "u"])
def test_templates_render_as_in_transformers(source: str, roles: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template  # noqa: PLC0415 (slow to import)

    said = messages(" be nice ", "héllo <b>&", 'say "x"\n', roles=roles)
    plain = [{"role": m.role, "content": m.content} for m in said]
    special: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>"}
    rendered = render_jinja_template(
        conversations=[plain], chat_template=source, add_generation_prompt=True, **special
    )
    assert ChatTemplate(source, special).render(said) == rendered[0][0]


def test_the_clock_of_a_template_is_given() -> None:
    template = ChatTemplate(
        "{{ strftime_now('%d %b %Y') }} {{ messages[0].content }}", {}, now=lambda: datetime(2024, 2, 3)
    )
    assert template.render(messages("x", roles="u")) == "03 Feb 2024 x"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ messages[9].role }}",
        "{{ 1 / 0 }}",
        "{% for i in range(100000000) %}{% endfor %}",
    ],
)
def test_a_template_that_refuses_or_reaches_out_is_the_request_s_error(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template refuses") as caught:
        ChatTemplate(source, {}).render(messages("x", roles="u"))
    assert caught.value.data["param"] == "messages"


def test_a_broken_template_is_an_error_at_the_start() -> None:
    with pytest.raises(InvalidRequest, match="broken"):
        ChatTemplate("{% if %}", {})


def write_model(path: Path, **files: Any) -> Path:
    path.mkdir()
    byte_level().save(str(path / "tokenizer.json"))
    files = {"config": {"max_position_embeddings": 128, "eos_token_id": 5}, "tokenizer_config": {}} | files
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def test_a_model_directory_is_read(tmp_path: Path) -> None:
    plain = load_model_dir(write_model(tmp_path / "plain"))
    assert (plain.name, plain.context_length, plain.eos_ids) == ("plain", 128, frozenset([5]))
    assert plain.template is None
    named = [
        {"name": "tool_use", "template": "no"},
        {"name": "default", "template": "{{ bos_token }}yes {{ messages[0].content }}"},
    ]
    config = {"chat_template": named, "bos_token": {"content": "<s>"}, "eos_token": None}
    path = write_model(tmp_path / "x", tokenizer_config=config, generation_config={"eos_token_id": [1, 2]})
    full = load_model_dir(path, "called")
    assert (full.name, full.eos_ids) == ("called", frozenset([1, 2]))
    assert full.template is not None
    assert full.template.render(messages("x", roles="u")) == "<s>yes x"
    (path / "chat_template.jinja").write_text("from the file {{ messages[0].content }}")
    again = load_model_dir(path).template
    assert again is not None
    assert again.render(messages("x", roles="u")) == "from the file x"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="nowhere does not exist"):
        load_model_dir(tmp_path / "nowhere")
    with pytest.raises(InvalidRequest, match=r"README\.md is no directory"):
        load_model_dir(Path(__file__).parents[4] / "README.md")
    for number, (file, content, complaint) in enumerate(
        [
            ("config.json", None, "config.json is missing"),
            ("tokenizer.json", None, "tokenizer.json is missing"),
            ("tokenizer.json", "{}", "not a tokenizer"),
            ("config.json", "{", "config.json cannot be read as JSON"),
            ("config.json", "[]", "must hold a JSON object"),
            ("config.json", "{}", "max_position_embeddings"),
            ("generation_config.json", '{"eos_token_id": "x"}', "eos_token_id"),
            ("tokenizer_config.json", '{"chat_template": "{% if %}"}', "tokenizer_config.json: .* is broken"),
            ("chat_template.jinja", "{% if %}", "chat_template.jinja: .* is broken"),
        ]
    ):
        path = write_model(tmp_path / str(number))
        if content is None:
            (path / file).unlink()
        else:
            (path / file).write_text(content)
        with pytest.raises(InvalidRequest, match=complaint):
            load_model_dir(path)


def test_the_null_model_chats() -> None:
    template = null_model("n", 64).template
    assert template is not None
    assert template.render(messages("hi", roles="u")) == "user: hi\nassistant: "


def test_a_long_text_has_the_tokens_of_its_words_and_other_threads_run_meanwhile(
    by_bytes: LibraryTokenizer,
) -> None:
    text, gaps, done = "one two three " * 60_000, [], threading.Event()

    def beat() -> None:
        while not done.is_set():
            began = time.monotonic()
            time.sleep(0.005)
            gaps.append(time.monotonic() - began)

    beating = threading.Thread(target=beat)
    beating.start()
    began = time.monotonic()
    ids = by_bytes.encode(text, add_special_tokens=False)
    took = time.monotonic() - began
    done.set()
    beating.join()
    assert ids == by_bytes.encode("one two three ", add_special_tokens=False) * 60_000
    assert max(gaps) < took / 2
