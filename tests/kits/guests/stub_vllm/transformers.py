"""A stand-in for transformers in the environment of the stand-in for vLLM: it finds tokenizers."""

from pathlib import Path


class AutoTokenizer:
    @staticmethod
    def from_pretrained(model: str) -> None:
        if not (Path(model) / "tokenizer.json").is_file():
            raise OSError(f"{model} has no tokenizer")
