"""Which tokens end an answer: joined from all files of a directory, and as in the GGUF file of the model."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from services.worker.model_files.load_model import load_model
from services.worker.model_files.model_dir import load_model_dir
from shared.errors import InvalidRequest
from shared.messages import ChatMessage
from tests.kits.worker.gguf_vocabularies import byte_level_keys, write_gguf
from tests.kits.worker.tokenizers import byte_level

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HARMONY = "{% for m in messages %}<|im_start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
END, START, LETTER, WORD = 261, 260, 5, 257  # `<|im_end|>`, `<|im_start|>`, and ordinary tokens


def write_directory(
    path: Path,
    config: Any = None,
    generation: Any = None,
    tokenizer_config: dict[str, Any] | None = None,
    *,
    extra: tuple[str, ...] = (),
) -> Path:
    """Writes a directory; None leaves `eos_token_id` out, and "null" writes null."""
    path.mkdir(exist_ok=True)
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken(text, special=True) for text in extra])
    tokenizer.save(str(path / "tokenizer.json"))
    files = {
        "config": {"max_position_embeddings": 128, "vocab_size": 300} | _eos(config),
        "generation_config": _eos(generation),
        "tokenizer_config": tokenizer_config or {},
    }
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def _eos(value: Any) -> dict[str, Any]:
    return {} if value is None else {"eos_token_id": None if value == "null" else value}


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer_config", "ends"),
    [
        # a null names no token, and does not hide what another file says
        (END, "null", {}, {END}),
        ("null", END, {}, {END}),
        ("null", "null", {"eos_token": "<|im_end|>"}, {END}),
        ("null", "null", {"eos_token": None}, set()),
        (None, None, {}, set()),
        # all files count
        (START, [END], {}, {START, END}),
        (START, "null", {"eos_token": "<|im_end|>"}, {START, END}),
        (None, START, {"eos_token": {"content": "<|im_end|>", "special": True}}, {START, END}),
        (START, None, {"chat_template": CHATML}, {START, END}),
        ("null", "null", {"chat_template": CHATML}, {END}),
        (None, [], {"chat_template": CHATML}, {END}),
        # a text that the tokenizer does not have ends nothing
        (END, None, {"eos_token": "</s>"}, {END}),
        # an ordinary word in `config.json` beside another end is an id of another vocabulary
        (LETTER, END, {}, {END}),
        (LETTER, None, {}, {LETTER}),
        (LETTER, [WORD], {}, {WORD}),
        (299, None, {}, {299}),  # the embedding has more rows than the tokenizer tokens
    ],
)
def test_all_files_of_a_directory_say_what_ends_an_answer(
    tmp_path: Path, config: Any, generation: Any, tokenizer_config: dict[str, Any], ends: set[int]
) -> None:
    path = write_directory(tmp_path / "m", config, generation, tokenizer_config)
    assert load_model_dir(path).eos_ids == ends


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (300, "must be the id of one of the 300 tokens, got 300"),
        (-1, "must be the id of one of the 300 tokens, got -1"),
        ([END, 2**40], "must be the id of one of the 300 tokens, got 1099511627776"),
        (True, "must be a token id, or a list of at most 1024, got True"),
        (2.0, "must be a token id, or a list of at most 1024, got 2.0"),
        ("</s>", "must be a token id, or a list of at most 1024, got '</s>'"),
        ([END, None], "must be a token id"),
        ([[END]], "must be a token id"),
        ({"id": END}, "must be a token id"),
        ([END] * 1025, "must be a token id, or a list of at most 1024, got a list of 1025"),
    ],
)
def test_what_is_no_token_is_refused_with_its_file(
    tmp_path: Path, file: str, value: Any, complaint: str
) -> None:
    config, generation = (value, END) if file == "config.json" else (END, value)
    path = write_directory(tmp_path / "m", config, generation)
    with pytest.raises(InvalidRequest) as caught:
        load_model_dir(path)
    assert caught.value.message.startswith(f"{path / file}: `eos_token_id` ")
    assert complaint in caught.value.message


def test_without_a_size_of_the_embedding_ids_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "m", 264)
    (path / "config.json").write_text(json.dumps({"max_position_embeddings": 128, "eos_token_id": 263}))
    with pytest.raises(InvalidRequest, match="one of the 263 tokens, got 263"):
        load_model_dir(path)


def test_a_message_that_ends_before_the_answer_does_ends_no_answer(tmp_path: Path) -> None:
    """gpt-oss writes `<|end|>` after its reasoning too, and `<|return|>` or `<|call|>` after an answer."""
    extra = ("<|end|>", "<|return|>", "<|call|>")
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken(text, special=True) for text in extra])
    keys = byte_level_keys(tokenizer) | {"chat_template": HARMONY}
    both = (
        load_model(write_directory(tmp_path / "m", 264, None, {"chat_template": HARMONY}, extra=extra)),
        load_model(write_gguf(tmp_path / "m.gguf", keys)),
    )
    for model in both:
        texts = {model.tokenizer.token_text(token_id) for token_id in model.eos_ids}
        assert "<|end|>" not in texts
        assert "<|return|>" in texts
    alone = write_directory(tmp_path / "phi", None, None, {"chat_template": HARMONY}, extra=("<|end|>",))
    assert load_model(alone).eos_ids == {263}


def test_a_directory_and_its_gguf_file_end_at_the_same_tokens(tmp_path: Path) -> None:
    keys = byte_level_keys() | {"chat_template": CHATML, "ggml.eos_token_id": START}
    file = write_gguf(tmp_path / "m.gguf", keys)
    path = write_directory(tmp_path / "m", START, "null", {"chat_template": CHATML})
    assert load_model(path).eos_ids == load_model(file).eos_ids == {START, END}


def test_special_tokens_that_only_the_older_file_names(tmp_path: Path) -> None:
    source = "{{ bos_token }}" + CHATML.replace("<|im_end|>", "{{ eos_token }}")
    path = write_directory(tmp_path / "m", "null", None, {"chat_template": source, "bos_token": None})
    special = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}}
    (path / "special_tokens_map.json").write_text(json.dumps(special))
    model = load_model(path)
    assert model.eos_ids == {END}
    assert model.template is not None
    said = [ChatMessage(role="user", content="x")]
    assert model.template.render(said) == "<|im_start|><|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_start|>"}))
    assert load_model(path).eos_ids == {START}
