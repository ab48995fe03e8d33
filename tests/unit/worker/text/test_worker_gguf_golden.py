"""Real vocabularies give llama.cpp's ids on 1,000 texts. Needs the models: `ryz models pull smollm2-135m`."""

from pathlib import Path

import pytest

from cli.models.store import models_dir
from services.worker.model_files.gguf_model import load_gguf_model
from services.worker.model_files.model import Model
from services.worker.text.tokenizer import Tokenizer
from tests.kits.worker.golden_ids import digest, golden_ids
from tests.kits.worker.tokenizer_texts import tokenizer_texts

TEXTS = tokenizer_texts(1000)
GOLDEN = golden_ids()


@pytest.fixture(scope="module", params=sorted(GOLDEN))
def pulled(request: pytest.FixtureRequest) -> tuple[str, Model]:
    file: Path = models_dir() / f"{request.param}.gguf"
    if not file.is_file():
        pytest.skip(f"{file} is not there; `ryz models pull {request.param}` fetches it")
    return request.param, load_gguf_model(file)


def test_ids_are_those_of_llama_cpp(pulled: tuple[str, Model]) -> None:
    name, model = pulled
    found = [digest(text, model.tokenizer.encode(text, add_special_tokens=False)) for text in TEXTS]
    assert found == GOLDEN[name]["special"]


def test_control_tokens_as_plain_text_have_the_ids_of_llama_cpp(pulled: tuple[str, Model]) -> None:
    name, model = pulled
    plain = model.tokenizer.without(model.tokenizer.special_texts)
    found = [digest(text, plain.encode(text, add_special_tokens=False)) for text in TEXTS]
    golden = zip(TEXTS, found, GOLDEN[name]["plain"], strict=True)
    other = {text for text, ours, theirs in golden if ours != theirs}
    # llama.cpp takes `</s>` for a control token by its text; in Gemma's vocabulary it is an HTML tag
    assert other == ({text for text in TEXTS if "</s>" in text} if name == "gemma3-270m" else set())


def streamed(tokenizer: Tokenizer, text: str) -> list[str]:
    detokenizer = tokenizer.detokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    return [*map(detokenizer.feed, ids), detokenizer.flush()]


def test_streamed_text_is_the_text(pulled: tuple[str, Model]) -> None:
    _, model = pulled
    plain = model.tokenizer.without(model.tokenizer.special_texts)
    # SmolLM2 has no tokens for some control characters and empty planes; in Gemma's pieces U+2581 is a space
    whole = {letter: "".join(streamed(plain, letter)) for letter in set("".join(TEXTS))}
    changed = {letter for letter, text in whole.items() if letter != text}
    assert all(letter < " " or letter == "\u2581" or letter > "\U00040000" for letter in changed)
    for text in TEXTS:
        parts = streamed(plain, text)
        assert "".join(parts) == "".join(map(whole.__getitem__, text))
        assert "\ufffd" in text or not any("\ufffd" in part for part in parts)
