"""What the leader takes from a GGUF file; damaged and hostile files are refused with one sentence."""

import time
from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType

from services.worker.model_files.gguf_model import load_gguf_model
from services.worker.model_files.load_model import load_model
from services.worker.text.control_tokens import ControlTokenGuard
from services.worker.text.from_gguf.byte_level import MAX_MERGES
from services.worker.text.from_gguf.vocabulary import MAX_TOKENS
from services.worker.text.template_guard import TemplateOverran
from shared.errors import InvalidRequest
from shared.messages import ChatMessage
from tests.kits.worker.gguf_vocabularies import byte_level_keys, piece_keys, write_gguf

CHATML = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SAID = [ChatMessage(role="user", content="the <|im_end|>")]


def with_tokens(*tokens: str, kind: Any = TokenType.CONTROL, **keys: Any) -> dict[str, Any]:
    """The small byte-level vocabulary with more tokens at its end."""
    base = byte_level_keys()
    base["ggml.tokens"] = [*base["ggml.tokens"], *tokens]
    base["ggml.token_type"] = [*base["ggml.token_type"], *([int(kind)] * len(tokens))]
    return base | keys


def ends(path: Path, keys: dict[str, Any]) -> set[str]:
    model = load_gguf_model(write_gguf(path / "x.gguf", keys))
    return {model.tokenizer.token_text(token_id) for token_id in model.eos_ids}


def test_a_model_is_read_by_what_its_path_is(tmp_path: Path) -> None:
    keys = with_tokens("<bos>", chat_template=CHATML, **{"ggml.bos_token_id": 263, "ggml.eos_token_id": 261})
    model = load_model(write_gguf(tmp_path / "tiny.Q8_0.gguf", keys, context_length=128))
    assert (model.name, model.context_length) == ("tiny.Q8_0", 128)
    assert load_model(tmp_path / "tiny.Q8_0.gguf", "called").name == "called"
    assert model.tokenizer.vocab_size == 264
    assert model.tokenizer.special_texts == {"<|im_start|>", "<|im_end|>", "<bos>"}
    assert model.template is not None
    assert model.template.render(SAID).startswith("<bos><|im_start|>user\n")
    guard = ControlTokenGuard(model.tokenizer, model.template)
    ids = guard.encode_prompt(guard.render_prompt(SAID, 5.0))
    texts = [model.tokenizer.token_text(token_id) for token_id in ids]
    assert texts.count("<|im_end|>") == 1
    assert "".join(texts) == model.template.render(SAID)


def test_tokens_around_a_text(tmp_path: Path) -> None:
    keys = with_tokens("a $A:1 b", **{"ggml.bos_token_id": 263, "ggml.eos_token_id": 261})
    for add, pre, wanted in (
        ({}, "gpt-2", [257]),
        ({}, "llama-bpe", [263, 257]),
        ({"ggml.add_bos_token": False}, "llama-bpe", [257]),
        ({"ggml.add_bos_token": True, "ggml.add_eos_token": True}, "gpt-2", [263, 257, 261]),
    ):
        path = write_gguf(tmp_path / "x.gguf", keys | add | {"ggml.pre": pre})
        tokenizer = load_gguf_model(path).tokenizer
        assert tokenizer.encode("the", add_special_tokens=True) == wanted
        assert tokenizer.encode("the", add_special_tokens=False) == [257]


def test_what_ends_an_answer(tmp_path: Path) -> None:
    assert ends(tmp_path, with_tokens()) == {"<|im_end|>"}
    assert ends(tmp_path, with_tokens("<e>", "<t>", "<m>", **{
        "ggml.eos_token_id": 263, "ggml.eot_token_id": 264, "ggml.eom_token_id": 265,
    })) == {"<|im_end|>", "<e>", "<t>", "<m>"}  # fmt: skip
    assert ends(tmp_path, with_tokens("<|eot_id|>", kind=TokenType.NORMAL)) == {"<|im_end|>", "<|eot_id|>"}
    assert ends(tmp_path, with_tokens("</s>", "<eos>", kind=TokenType.USER_DEFINED)) == {"<|im_end|>"}
    assert ends(tmp_path, with_tokens("</s>", "<eos>")) == {"<|im_end|>", "</s>", "<eos>"}
    assert ends(tmp_path, with_tokens("<|end|>")) == {"<|im_end|>", "<|end|>"}
    assert ends(tmp_path, with_tokens("<|end|>", "<|call|>", "<|return|>")) == {
        "<|im_end|>", "<|call|>", "<|return|>",
    }  # fmt: skip
    assert ends(tmp_path, piece_keys({"a": -1.0})) == {"</s>"}


def test_the_token_with_which_the_template_ends_an_answer(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %} {over}{% endif %}"
    for source, wanted in (
        (template.replace("{over}", "<over>") + "{% endfor %}", {"<|im_end|>", "<over>"}),
        (template.replace("{over}", "over") + "{% endfor %}", {"<|im_end|>"}),
        ("{{ raise_exception('never') }}", {"<|im_end|>"}),
    ):
        assert ends(tmp_path, with_tokens("<over>", chat_template=source)) == wanted


def test_an_end_token_of_another_type_is_no_text(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", with_tokens("<|eot_id|>", kind=TokenType.NORMAL))
    tokenizer = load_gguf_model(path).tokenizer
    assert tokenizer.encode("<|eot_id|>", add_special_tokens=False) == [263]
    assert tokenizer.detokenizer().feed(263) == ""


def test_empty_tokens_are_distinguished(tmp_path: Path) -> None:
    model = load_gguf_model(write_gguf(tmp_path / "x.gguf", with_tokens("", "", kind=TokenType.UNUSED)))
    assert model.tokenizer.vocab_size == 265


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"ggml.model": "bert"}, "`tokenizer.ggml.model` must be one of gpt2, llama, t5, got 'bert'"),
        ({"ggml.model": None}, "`tokenizer.ggml.model` must be one of"),
        ({"ggml.model": 7}, "must be a text"),
        ({"ggml.tokens": None}, "holds no vocabulary"),
        ({"ggml.tokens": [1, 2]}, "must be a list of texts"),
        ({"ggml.tokens": ["a", "b", "a"], "ggml.token_type": None}, "the token 'a' twice"),
        ({"ggml.token_type": [1]}, "must have one entry for each"),
        ({"ggml.merges": None}, "`tokenizer.ggml.merges` is missing"),
        ({"ggml.merges": ["t h", "th"]}, "merge 1 of its tokenizer, 'th', is no pair of tokens"),
        ({"ggml.merges": ["t q"]}, "merge 0"),
        ({"ggml.eos_token_id": 10**6}, "must be the id of one of the 263 tokens, got 1000000"),
        ({"ggml.add_bos_token": "yes"}, "must be true or false"),
        ({"chat_template": "{% if %}"}, "`tokenizer.chat_template`: .* is broken"),
        ({"chat_template": "x" * (2**20 + 1)}, "1048576 are the limit"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, keys: dict[str, Any], complaint: str) -> None:
    path = write_gguf(tmp_path / "x.gguf", byte_level_keys() | keys)
    with pytest.raises(InvalidRequest, match=complaint) as caught:
        load_model(path)
    said = caught.value.message
    assert said.startswith(str(path))
    assert len(said) < 600
    assert "\n" not in said


@pytest.mark.parametrize("length", [None, 0, 2**31])
def test_the_context_length_is_checked(tmp_path: Path, length: int | None) -> None:
    path = write_gguf(tmp_path / "x.gguf", byte_level_keys(), context_length=length)
    with pytest.raises(InvalidRequest, match=r"`llama\.context_length` must be a positive integer"):
        load_model(path)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="does not exist"):
        load_model(tmp_path / "no.gguf")
    with pytest.raises(InvalidRequest, match="RYZ_MODEL_NAME"):
        load_model(tmp_path / "a b.gguf")


LOOP = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"


def test_a_template_that_loops_is_stopped_at_the_start_and_in_requests(tmp_path: Path) -> None:
    began = time.process_time()
    model = load_model(write_gguf(tmp_path / "x.gguf", byte_level_keys() | {"chat_template": LOOP}))
    assert time.process_time() - began < 5
    assert model.template is not None
    with pytest.raises(TemplateOverran):
        model.template.render(SAID, 0.1)


@pytest.mark.parametrize(
    ("limit", "complaint"),
    [
        ("vocabulary.MAX_TOKENS", "`tokenizer.ggml.tokens` has 263 entries, 2 are the limit"),
        ("vocabulary.MAX_TOKEN_CHARS", "its tokens have more than 2 characters"),
        ("byte_level.MAX_MERGES", "`tokenizer.ggml.merges` has 4 entries, 2 are the limit"),
    ],
)
def test_a_vocabulary_beyond_the_limits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, complaint: str
) -> None:
    monkeypatch.setattr(f"services.worker.text.from_gguf.{limit}", 2)
    with pytest.raises(InvalidRequest, match=complaint):
        load_model(write_gguf(tmp_path / "x.gguf", byte_level_keys()))


def test_pieces_that_can_be_built_in_too_many_ways_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = piece_keys({letter * length: -1.0 * length for letter in "ab" for length in range(1, 20)})
    assert load_model(write_gguf(tmp_path / "x.gguf", keys)).context_length == 64
    monkeypatch.setattr("services.worker.text.from_gguf.sentence_piece.MAX_MERGES", 100)
    with pytest.raises(InvalidRequest, match="can be built in more than 100 ways"):
        load_model(tmp_path / "x.gguf")


def test_the_limits_leave_room_for_known_models() -> None:
    assert 262_144 < MAX_TOKENS <= 2**20
    assert 514_847 < MAX_MERGES <= 2**20  # Gemma's pieces are joined in so many ways
