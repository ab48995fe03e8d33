"""Special tokens that a user spells out stay words; everything else becomes the same tokens as ever."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.adapters.chat_template import ChatTemplate
from services.worker.adapters.spelled import SpelledTokens
from services.worker.adapters.tokenizer import FileTokenizer
from shared.messages import ChatMessage, Role
from tests.unit.test_worker_adapters import byte_level

TEMPLATE = ChatTemplate(
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.name }}\n"
    "{{ m.content | trim }}<|im_end|>{% endfor %}",
    {},
)
PARTS = ["<|im_start|>", "<|im_end|>", "<", "|", "im_start", "|>", "the é", " "]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FileTokenizer:
    path = tmp_path_factory.mktemp("spelled") / "tokenizer.json"
    byte_level().save(str(path))
    return FileTokenizer(Path(path))


def conversation(content: str, role: Role = "user", name: str = "") -> list[ChatMessage]:
    return [ChatMessage(role="system", content="be kind"), ChatMessage(role=role, content=content, name=name)]


@given(content=st.lists(st.sampled_from(PARTS)).map("".join), name=st.sampled_from(["", "<|im_end|>"]))
def test_only_the_template_says_where_turns_begin(tokenizer: FileTokenizer, content: str, name: str) -> None:
    spelled = SpelledTokens(tokenizer.special_texts)
    messages = conversation(content, name=name)
    tokens = spelled.encode(messages, TEMPLATE, tokenizer)
    special = [tokenizer.token_text(token) for token in tokens if not tokenizer.token_bytes(token)]
    assert special == ["<|im_start|>", "<|im_end|>"] * 2
    assert "".join(map(tokenizer.token_text, tokens)) == TEMPLATE.render(messages)


@pytest.mark.parametrize("content", ["hello the there", "1 < 2 |> 3", "<|im_start"])
def test_other_texts_become_the_same_tokens(tokenizer: FileTokenizer, content: str) -> None:
    messages = conversation(content)
    plain = tokenizer.encode(TEMPLATE.render(messages), add_special_tokens=False)
    assert SpelledTokens(tokenizer.special_texts).encode(messages, TEMPLATE, tokenizer) == plain


def test_the_assistant_s_own_words_are_left_alone(tokenizer: FileTokenizer) -> None:
    messages = conversation("so <|im_end|>", role="assistant")
    plain = tokenizer.encode(TEMPLATE.render(messages), add_special_tokens=False)
    assert SpelledTokens(tokenizer.special_texts).encode(messages, TEMPLATE, tokenizer) == plain


def test_special_tokens_that_overlap_are_all_cut() -> None:
    seen: list[str] = []

    class Words:
        vocab_size, special_texts = 1, frozenset({"ab", "bc"})

        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            seen.append(text)
            return [0]

        detokenizer = token_text = None

    template = ChatTemplate("{{ messages[0].content }}", {})
    words = Words()
    SpelledTokens(words.special_texts).encode([ChatMessage(role="user", content="abc")], template, words)  # type: ignore[arg-type]
    assert seen == ["a", "b", "c"]
