"""Tokens of a tokenizer that is larger than the embedding are never made, or the model is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from tokenizers import AddedToken, Tokenizer, models, processors

from services.worker.model_files.load_model import load_model
from services.worker.text.control_tokens import ControlTokenGuard
from services.worker.text.tokenizer import LibraryTokenizer
from shared.errors import InvalidRequest
from shared.messages import ChatMessage
from tests.kits.worker.gguf_vocabularies import byte_level_keys
from tests.kits.worker.tokenizers import byte_level

ROWS = 263  # the tokens of the kit's byte-level tokenizer, without those added here
PLAIN = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
TEXT = "see <extra> and <more>"


def larger(*, special: bool = True) -> Tokenizer:
    """Returns a tokenizer with two added tokens beyond `ROWS`."""
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken(text, special=special) for text in ("<extra>", "<more>")])
    return tokenizer


def write_directory(path: Path, tokenizer: Tokenizer, *, template: str = PLAIN, rows: int = ROWS) -> Path:
    path.mkdir(exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"max_position_embeddings": 128, "vocab_size": rows, "eos_token_id": 261}
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return path


def write_file(path: Path, tokenizer: Tokenizer, *, template: str = PLAIN, rows: int = ROWS) -> Path:
    keys = byte_level_keys(tokenizer) | {"chat_template": template, "ggml.eos_token_id": 261}
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(128)
    for key, value in keys.items():
        adders: dict[type, Any] = {str: writer.add_string, int: writer.add_uint32, list: writer.add_array}
        adders[type(value)](f"tokenizer.{key}", value)
    embedding = np.zeros((rows, 8), np.float32)
    writer.add_tensor("token_embd.weight", embedding, raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def written(path: Path, kind: str, tokenizer: Tokenizer, *, template: str = PLAIN, rows: int = ROWS) -> Path:
    if kind == "directory":
        return write_directory(path / "m", tokenizer, template=template, rows=rows)
    return write_file(path / "m.gguf", tokenizer, template=template, rows=rows)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("kind", ["directory", "file"])
def test_added_tokens_beyond_the_embedding_are_read_as_text(tmp_path: Path, kind: str, special: bool) -> None:
    model = load_model(written(tmp_path, kind, larger(special=special)))
    tokenizer = model.tokenizer
    assert tokenizer.vocab_size == ROWS
    for around in (False, True):
        ids = tokenizer.encode(TEXT, add_special_tokens=around)
        assert max(ids) < ROWS
        assert tokenizer.decode(ids) == TEXT
    assert max(tokenizer.vocabulary().values()) == ROWS - 1
    assert {"<extra>", "<more>"}.isdisjoint(tokenizer.vocabulary())
    assert {"<extra>", "<more>"}.isdisjoint(tokenizer.added_texts | tokenizer.special_texts)
    assert max(tokenizer.special_ids) < ROWS
    # the tokens that the model has are found as before
    assert tokenizer.encode("<|im_start|>", add_special_tokens=False) == [260]
    assert model.template is not None
    guard = ControlTokenGuard(tokenizer, model.template)
    said = [ChatMessage(role="user", content=f"{TEXT} <|im_end|>")]
    ids = guard.encode_prompt(guard.render_prompt(said, 5.0))
    assert max(ids) < ROWS
    assert ids.count(261) == 1
    assert tokenizer.decode(ids) == f"<|im_start|>{TEXT} <|im_end|><|im_end|>"


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_ordinary_tokens_beyond_the_embedding_are_refused(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind, byte_level(), rows=258)
    with pytest.raises(InvalidRequest, match="the embedding has 258 rows, and 2 tokens") as caught:
        load_model(path)
    assert "the first one is 'Ġthe' with the id 258" in caught.value.message
    assert str(path) in caught.value.message


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_a_template_that_writes_a_token_beyond_the_embedding_is_refused(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind, larger(), template=PLAIN.replace("<|im_end|>", "<more>"))
    with pytest.raises(InvalidRequest, match="chat template writes '<more>', which is token 264, and the"):
        load_model(path)


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_an_end_beyond_the_embedding_is_refused(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind, byte_level(), rows=261, template="{{ messages[0].content }}")
    with pytest.raises(InvalidRequest, match=r"eos_token_id` must be .*261"):
        load_model(path)


def test_a_token_around_each_text_beyond_the_embedding_is_refused(tmp_path: Path) -> None:
    tokenizer = larger()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["<more>", "$A"], special_tokens=[("<more>", 264)]
    )
    path = write_directory(tmp_path / "m", tokenizer)
    with pytest.raises(InvalidRequest, match="put around each text"):
        load_model(path)


def test_a_token_around_each_text_that_the_model_has_is_kept(tmp_path: Path) -> None:
    tokenizer = larger()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["<|im_start|>", "$A"], special_tokens=[("<|im_start|>", 260)]
    )
    read = load_model(write_directory(tmp_path / "m", tokenizer)).tokenizer
    assert read.encode("the", add_special_tokens=True) == [260, 257]
    assert read.encode("the", add_special_tokens=False) == [257]


def test_a_vocabulary_that_makes_the_token_from_its_text_is_refused() -> None:
    """A model of whole words finds `<more>` in its vocabulary, as an added token or not."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "?": 1, "<more>": 2}, unk_token="?"))
    tokenizer.add_special_tokens(["<more>"])
    with pytest.raises(ValueError, match="the first one is '<more>' with the id 2"):
        LibraryTokenizer(tokenizer).within(2)


def test_ids_with_gaps_count_to_the_highest() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "?": 7}, unk_token="?"))
    read = LibraryTokenizer(tokenizer)
    assert read.vocab_size == 8
    assert read.within(8) is read
    with pytest.raises(ValueError, match="the embedding has 7 rows, and 1 tokens"):
        read.within(7)


def test_types_of_a_file_decide_what_is_ordinary(tmp_path: Path) -> None:
    tokenizer = larger()
    keys = byte_level_keys(tokenizer)
    assert keys["ggml.token_type"][-2:] == [TokenType.CONTROL] * 2
    assert load_model(write_file(tmp_path / "m.gguf", tokenizer, rows=264)).tokenizer.vocab_size == 264
