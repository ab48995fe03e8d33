"""Compiles grammars on the vocabularies of real models, and walks through them as a model at random would."""

import functools
import json
import random
from pathlib import Path
from typing import Any, Literal

import numpy as np

from services.worker.domain.generation.token_constraint import ConstraintFactory, TokenConstraint
from services.worker.model_files.load_model import load_model
from services.worker.null.model import null_model
from services.worker.text.grammars.limits import GrammarLimits
from services.worker.text.grammars.structured_grammar import check_structured, compile_structured
from services.worker.text.grammars.token_vocabulary import TokenVocabulary
from shared.messages import StructuredOutput

DEMO = Path("models/demo")
SMOLLM2 = Path.home() / ".cache/ryzanstein/models/smollm2-135m.gguf"
LIMITS = GrammarLimits()
Kind = Literal["json_object", "json_schema", "regex", "choice", "grammar"]


@functools.cache
def vocabulary(name: str = "demo") -> TokenVocabulary:
    """Returns the vocabulary of the demo model, of SmolLM2 (`smollm2`), or of bytes (`null`)."""
    model = null_model("null", 64) if name == "null" else load_model(DEMO if name == "demo" else SMOLLM2)
    return TokenVocabulary(model.tokenizer, model.eos_ids, model.tokenizer.vocab_size, model.control_texts)


def compiled(kind: Kind, definition: str = "", *choices: str, on: str = "demo") -> ConstraintFactory:
    """Compiles one demand."""
    structured = StructuredOutput(kind=kind, definition=definition, choices=list(choices))
    check_structured(structured, LIMITS)
    return compile_structured(structured, vocabulary(on), LIMITS)


def compiled_schema(schema: Any, on: str = "demo") -> ConstraintFactory:
    """Compiles a JSON schema."""
    return compiled("json_schema", json.dumps(schema), on=on)


def allowed(mask: bytes | None) -> list[int]:
    """Returns the tokens of a mask, in order."""
    bits = np.unpackbits(np.frombuffer(mask or b"", np.uint8), bitorder="little")
    return [int(token_id) for token_id in np.flatnonzero(bits)]


def takes(grammar: ConstraintFactory, text: str, on: str = "demo") -> bool:
    """Whether an answer may be this text, in the tokens that are longest first, and end there."""
    known, constraint = vocabulary(on), grammar()
    for token_id in known.tokens_of(text.encode()):
        if token_id not in allowed(constraint.mask()):
            return False
        constraint.accept([token_id])
    return any(token_id in known.ends for token_id in allowed(constraint.mask()))


def walk(
    grammar: ConstraintFactory, seed: int, *, on: str = "demo", ends_after: int = 20, most: int = 400
) -> tuple[list[int], str] | None:
    """Draws allowed tokens until the answer ends; after `ends_after` tokens it prefers what closes something.

    Returns:
        Its tokens and its text; None if it did not end within `most` tokens.
    """
    known, constraint, draw = vocabulary(on), grammar(), random.Random(seed)
    tokens: list[int] = []
    while len(tokens) < most:
        choices = allowed(constraint.mask())
        ends = [token_id for token_id in choices if token_id in known.ends]
        if ends and (len(ends) == len(choices) or len(tokens) >= ends_after or draw.random() < 0.1):
            constraint.accept(ends[:1])
            return tokens, b"".join(map(known.token_bytes, tokens)).decode()
        choices = [token_id for token_id in choices if token_id not in known.ends]
        if len(tokens) >= ends_after:
            closing = [t for t in choices if known.token_bytes(t)[:1] in (b'"', b"}", b"]")]
            choices = closing or choices
        token_id = draw.choice(choices)
        constraint.accept([token_id])
        tokens.append(token_id)
    return None


def state(constraint: TokenConstraint) -> tuple[bytes | None, list[int], bool]:
    """Returns all that a constraint says."""
    return constraint.mask(), constraint.forced(), constraint.ended
