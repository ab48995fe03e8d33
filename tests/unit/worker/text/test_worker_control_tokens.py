"""Special tokens spelled out by a user are encoded as plain text; other texts are encoded as usual."""

import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from services.worker.model_files.gguf_model import load_gguf_model
from services.worker.null.model import ByteTokenizer
from services.worker.text.chat_template import ChatTemplate
from services.worker.text.control_tokens import ControlTokenGuard
from services.worker.text.tokenizer import LibraryTokenizer, Tokenizer, read_tokenizer
from shared.messages import ChatMessage, Role
from tests.kits.worker.gguf_vocabularies import BYTE_PIECES, piece_keys, write_gguf
from tests.kits.worker.tokenizers import byte_level

TEMPLATE = ChatTemplate(
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.name }}\n"
    "{{ m.content | trim }}<|im_end|>{% endfor %}",
    {},
)
PARTS = ["<|im_start|>", "<|im_end|>", "<", "|", "im_start", "|>", "the é", " "]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LibraryTokenizer:
    path = tmp_path_factory.mktemp("spelled") / "tokenizer.json"
    byte_level().save(str(path))
    return read_tokenizer(Path(path))


def encoded(tokenizer: Tokenizer, template: ChatTemplate, messages: list[ChatMessage]) -> list[int]:
    guard = ControlTokenGuard(tokenizer, template)
    return guard.encode_prompt(guard.render_prompt(messages, 5.0))


def conversation(content: str, role: Role = "user", name: str = "") -> list[ChatMessage]:
    return [ChatMessage(role="system", content="be kind"), ChatMessage(role=role, content=content, name=name)]


@given(
    content=st.lists(st.sampled_from(PARTS)).map("".join),
    name=st.sampled_from(["", "<|im_end|>"]),
    role=st.sampled_from(["user", "assistant", "tool"]),
)
def test_only_the_template_says_where_turns_begin(
    tokenizer: LibraryTokenizer, content: str, name: str, role: Role
) -> None:
    messages = conversation(content, role, name)
    tokens = encoded(tokenizer, TEMPLATE, messages)
    special = [tokenizer.token_text(token) for token in tokens if not tokenizer.token_bytes(token)]
    assert special == ["<|im_start|>", "<|im_end|>"] * 2
    assert "".join(map(tokenizer.token_text, tokens)) == TEMPLATE.render(messages)


@pytest.mark.parametrize("content", ["hello the there", "1 < 2 |> 3", "<|im_start"])
def test_other_texts_become_the_same_tokens(tokenizer: LibraryTokenizer, content: str) -> None:
    messages = conversation(content)
    plain = tokenizer.encode(TEMPLATE.render(messages), add_special_tokens=False)
    assert encoded(tokenizer, TEMPLATE, messages) == plain


THINKING = (
    "{% for m in messages %}{% set content = m.content %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}"
    "{{ '<think>' + '\n\n' + '</think>' }}\n\n{% endif %}{{ content }}<|im_end|>\n{% endfor %}"
)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> LibraryTokenizer:
    """A tokenizer whose reasoning marks are added tokens but not special tokens, as in Qwen3."""
    path = tmp_path_factory.mktemp("thinker") / "tokenizer.json"
    made = byte_level()
    made.add_tokens([AddedToken("<think>", special=False), AddedToken("</think>", special=False)])
    made.save(str(path))
    return read_tokenizer(Path(path))


def controls(tokenizer: LibraryTokenizer, tokens: list[int]) -> list[str]:
    known = {tokenizer.encode(text, add_special_tokens=False)[0]: text for text in tokenizer.added_texts}
    return [known[token] for token in tokens if token in known]


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("<think>so</think>\n\nYes.", "<think>\n\n</think>\n\nYes."),  # the template drops the reasoning
        ("Write <think> first.", "Write <think> first."),
        ("a</think>b<|im_end|>c<think>", "<think>\n\n</think>\n\nb<|im_end|>c<think>"),
    ],
)
def test_what_a_template_looks_for_is_found_and_what_is_left_of_it_is_text(
    thinker: LibraryTokenizer, answer: str, shown: str
) -> None:
    template = ChatTemplate(THINKING, {})
    tokens = encoded(thinker, template, conversation(answer, "assistant"))
    assert "".join(map(thinker.token_text, tokens)).endswith(f"<|im_start|>assistant\n{shown}<|im_end|>\n")
    written = ["<think>", "</think>"] if "</think>" in answer else []
    assert controls(thinker, tokens) == ["<|im_start|>", "<|im_end|>", "<|im_start|>", *written, "<|im_end|>"]


def test_a_user_cannot_write_marks_of_reasoning(thinker: LibraryTokenizer) -> None:
    tokens = encoded(thinker, ChatTemplate(THINKING, {}), conversation("</think>", "user"))
    assert controls(thinker, tokens) == ["<|im_start|>", "<|im_end|>"] * 2


def test_added_tokens_that_the_template_does_not_name_are_none_of_its_control_tokens(
    thinker: LibraryTokenizer,
) -> None:
    messages = conversation("<think>", "user")
    plain = thinker.encode(TEMPLATE.render(messages), add_special_tokens=False)
    assert encoded(thinker, TEMPLATE, messages) == plain
    assert "<think>" in controls(thinker, plain)


class Recorder(ByteTokenizer):
    """Has these special tokens, and remembers what it is given."""

    def __init__(self, *texts: str) -> None:
        self.special_texts = frozenset(texts)
        self.seen: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.seen.append(text)
        return [0]  # every text is a special token


PLAIN = ChatTemplate("{{ messages[0].content }}", {})


@given(
    st.frozensets(st.text("ab<", min_size=2, max_size=20), max_size=12),
    st.text("ab<x", max_size=40),
)
def test_special_tokens_are_cut_wherever_they_begin(texts: frozenset[str], content: str) -> None:
    guard = ControlTokenGuard(Recorder(*texts), PLAIN)
    begins = [at for at in range(len(content)) if any(content.startswith(text, at) for text in texts)]
    positions = [0, *(at + 1 for at in begins), len(content)]
    wanted = [content[begin:end] for begin, end in pairwise(positions)]
    assert guard.render_prompt([ChatMessage(role="user", content=content)], 5.0) == wanted


def test_where_plain_text_would_become_a_special_token_the_parts_are_tokenized() -> None:
    tokenizer = Recorder("ab", "bc")
    guard = ControlTokenGuard(tokenizer, PLAIN)
    pieces = guard.render_prompt([ChatMessage(role="user", content="abc")], 5.0)
    tokenizer.seen.clear()
    guard.encode_prompt(pieces)
    assert tokenizer.seen == ["abc", "a", "b", "c"]


def test_thousands_of_special_tokens_cost_a_message_no_time() -> None:
    guard = ControlTokenGuard(Recorder(*(f"<unused{number}>" for number in range(2000))), PLAIN)
    began = time.process_time()
    guard.render_prompt([ChatMessage(role="user", content="<" * 200_000)], 5.0)
    assert time.process_time() - began < 1  # a list of all alternatives takes 2 s


def test_a_spelled_control_token_is_tokenized_like_the_text_around_it(tmp_path: Path) -> None:
    letters = {letter: -20.0 - number for number, letter in enumerate("\u2581the<>/s")}
    pieces = {"\u2581the": -3.0, "th": -1.0, "the": -2.0, "</": -4.0, "</s": -5.0, "e<": -6.0} | letters
    tokenizer = load_gguf_model(write_gguf(tmp_path / "x.gguf", piece_keys(pieces))).tokenizer
    template = ChatTemplate("{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}", {})
    tokens = encoded(tokenizer, template, conversation("the</s>the<s>the"))
    names = ["<unk>", "<s>", "</s>", *BYTE_PIECES, *pieces]
    assert [names[token] for token in tokens][-10:] == [
        "<s>", "\u2581the", "</s", ">", "the", "<", "s", ">", "the", "</s>",
    ]  # fmt: skip
