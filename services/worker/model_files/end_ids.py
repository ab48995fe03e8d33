"""Joins the tokens that end an answer from all files of a model directory that name some.

A file that says null names none. Directories on the Hub disagree often: an instruct model's `config.json` may
still have the end of its base model, and only the template shows the token that ends a turn.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from services.worker.model_files.json_files import shown
from services.worker.text.chat_template import ChatTemplate
from services.worker.text.end_tokens import turn_end
from services.worker.text.tokenizer import LibraryTokenizer
from shared.errors import InvalidRequest

MAX_EOS_IDS = 1024
_CONFIG, _GENERATION = "config.json", "generation_config.json"


@dataclass(frozen=True, slots=True)
class EndIds:
    """The values of `eos_token_id` in a directory.

    Attributes:
        named: The ids that each file names; files that name none are left out.
        num_rows: Rows of the embedding; 0: the config does not say.
    """

    path: Path
    named: Mapping[str, list[int]]
    num_rows: int

    @classmethod
    def read(cls, path: Path, config: Mapping[str, Any], generation: Mapping[str, Any]) -> Self:
        """Take the ids from the contents of both files.

        Raises:
            InvalidRequest: A value is neither an id nor a list of ids.
        """
        values = {_CONFIG: config.get("eos_token_id"), _GENERATION: generation.get("eos_token_id")}
        named = {name: _ids(path / name, value) for name, value in values.items() if value is not None}
        rows = config.get("vocab_size")
        return cls(path, named, rows if type(rows) is int and rows > 0 else 0)

    def joined(
        self, tokenizer: LibraryTokenizer, template: ChatTemplate | None, eos_text: str
    ) -> frozenset[int]:
        """Return all tokens that end an answer.

        An id that is an ordinary word of the vocabulary, and that only `config.json` names while
        `generation_config.json` names others, is taken for one of another vocabulary and left out.

        Args:
            template: Of the model; its closing token ends an answer.
            eos_text: `eos_token` of `tokenizer_config.json`; empty: none.

        Raises:
            InvalidRequest: The model has no token of such an id.
        """
        size = self.num_rows or tokenizer.vocab_size
        for name, ids in self.named.items():
            for token_id in ids:
                if not 0 <= token_id < size:
                    raise InvalidRequest(
                        f"{self.path / name}: `eos_token_id` must be the id of one of the {size} tokens, got "
                        f"{shown(token_id)}",
                        param="model",
                    )
        ends, added = set(self.named.get(_GENERATION, ())), tokenizer.added_ids
        own = frozenset(added.values()) if ends else None
        ends.update(one for one in self.named.get(_CONFIG, ()) if own is None or one in own)
        closing = tokenizer.token_id(eos_text), turn_end(template, added) if template else None
        return frozenset(ends.union(one for one in closing if one is not None))


def _ids(path: Path, value: object) -> list[int]:
    ids: list[Any] = value if isinstance(value, list) else [value]
    if len(ids) > MAX_EOS_IDS or not all(type(item) is int for item in ids):
        raise InvalidRequest(
            f"{path}: `eos_token_id` must be a token id, or a list of at most {MAX_EOS_IDS}, got "
            f"{shown(value)}",
            param="model",
        )
    return ids
