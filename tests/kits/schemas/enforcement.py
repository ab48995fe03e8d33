"""What grammars make of the set of schemas: enforced, refused with a reason, or wrong."""

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from services.worker.domain.generation.token_constraint import (
    ConstraintFactory,
    TokenConstraint,
    TokenRefused,
)
from shared.errors import InvalidRequest
from tests.kits.schemas.misspelt import MisspeltText
from tests.kits.schemas.schema_case import Schema, SchemaCase, spellings, validator

Compile = Callable[[Schema], ConstraintFactory]
Encode = Callable[[str], list[int]]


@dataclass(slots=True)
class Enforcement:
    """Counts over a set of schemas.

    Attributes:
        enforced: Schemas whose valid instances are all accepted, and whose invalid ones are not.
        refused: The reason by the name of each refused case.
        wrong: What was wrong, in words.
    """

    enforced: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Judge:
    """Compiles schemas and feeds instances to their grammars.

    Attributes:
        compile: Compiles a schema; raises `InvalidRequest` for one that is refused.
        encode: Returns the tokens of a text.
        token_bytes: Returns the bytes of a token.
        eos: The token that ends an answer.
    """

    compile: Compile
    encode: Encode
    token_bytes: Callable[[int], bytes]
    eos: int

    def accepts(self, factory: ConstraintFactory, text: str) -> bool:
        """Returns whether the grammar takes all tokens of a text and lets it end there."""
        constraint = factory()
        try:
            constraint.accept([*self.encode(text), self.eos])
        except TokenRefused:
            return False
        return True

    def judge(self, cases: Iterable[SchemaCase]) -> Enforcement:
        """Feeds all instances of all cases to their grammars."""
        found = Enforcement()
        for case in cases:
            try:
                factory = self.compile(case.schema)
            except InvalidRequest as error:
                found.refused[case.name] = f"{error.data.get('keyword')}: {error.message}"
                continue
            wrong = [
                f"{case.name}: {instance!r} is refused"
                for instance in case.valid
                if not any(self.accepts(factory, text) for text in spellings(instance))
            ]
            wrong += [
                f"{case.name}: {instance!r} is accepted"
                for instance in case.invalid
                if any(self.accepts(factory, text) for text in spellings(instance))
            ]
            found.wrong += wrong
            found.enforced += not wrong
        return found

    def misread(self, texts: Iterable[MisspeltText]) -> list[str]:
        """Returns the texts that a grammar accepts although they do not fit once parsed."""
        accepted = []
        for one in texts:
            try:
                factory = self.compile(one.schema)
            except InvalidRequest:
                continue
            if self.accepts(factory, one.text):
                accepted.append(f"{one.text} for {one.schema}")
        return accepted

    def stray(self, case: SchemaCase, walks: int, most_tokens: int = 200) -> list[str]:
        """Answers a schema at random, token by token, within the masks.

        Returns:
            Finished answers that do not fit the schema; those that ran out of tokens are left out.
        """
        try:
            factory = self.compile(case.schema)
        except InvalidRequest:
            return []
        # decimal: as floats, 9.7 is no multiple of 0.01
        valid = validator(json.loads(json.dumps(case.schema), parse_float=Decimal))
        bad = []
        for number in range(walks):
            text = self._walk(factory(), random.Random(f"{case.name} {number}"), most_tokens)
            if text is not None and not _fits(valid, text):
                bad.append(f"{case.name}: {text!r}")
        return bad

    def _walk(self, constraint: TokenConstraint, chance: random.Random, most_tokens: int) -> bytes | None:
        written: list[int] = []
        while len(written) < most_tokens:
            chosen = constraint.forced() or [self._choose(constraint, chance, late=len(written) > 25)]
            constraint.accept(chosen)
            if chosen[-1] == self.eos:
                return b"".join(map(self.token_bytes, written))
            written += chosen
        return None

    def _choose(self, constraint: TokenConstraint, chance: random.Random, *, late: bool) -> int:
        mask = constraint.mask()
        assert mask is not None
        allowed = [
            byte * 8 + bit for byte, bits in enumerate(mask) if bits for bit in range(8) if bits >> bit & 1
        ]
        if self.eos in allowed and (late or len(allowed) == 1 or chance.random() < 0.3):
            return self.eos
        open_ends = [token for token in allowed if token != self.eos]
        closing = [token for token in open_ends if self.token_bytes(token).strip()[:1] in {b'"', b"]", b"}"}]
        return chance.choice(closing if late and closing else open_ends)


def _fits(valid: Any, text: bytes) -> bool:
    try:
        return bool(valid.is_valid(json.loads(text, parse_float=Decimal)))
    except ValueError:
        return False
