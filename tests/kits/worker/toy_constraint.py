"""A grammar that is a hash of the tokens so far: allowed tokens, forced runs and ends, at random."""

import random
from collections.abc import Sequence

from services.worker.domain.generation.token_constraint import TokenRefused


class ToyConstraint:
    """Allows some tokens, or forces a run of up to five.

    Inside a run it says neither that the rest is forced, nor that another token would be wrong: a tokenizer
    may cut the rest of a forced text in another way than the whole.

    Args:
        vocab: Tokens are below it.
        eos_ids: They end an answer.
        ends: How often it may end.
        seed: Another one is another grammar.
        longest: Tokens after which it must end; 0: never.
        forces: Whether there are runs.
    """

    def __init__(
        self,
        vocab: int,
        eos_ids: Sequence[int],
        seed: int,
        *,
        longest: int = 0,
        ends: float = 0.1,
        forces: bool = True,
    ) -> None:
        self._vocab = vocab
        self._eos_ids = list(eos_ids)
        self._seed = seed
        self._longest = longest
        self._ends = ends
        self._forces = forces
        self.accepted: list[int] = []
        self._run: list[int] = []  # the rest of one that began
        self._draw()

    def accept(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if not self._run and self._forced:
                self._run = self._forced.copy()
            if self._run:
                if token_id != self._run.pop(0):
                    raise TokenRefused(f"{token_id} after {self.accepted}")
            elif token_id not in self._allowed:
                raise TokenRefused(f"{token_id} after {self.accepted}")
            self.accepted.append(token_id)
            self._draw()

    def mask(self) -> bytes | None:
        if self._free:
            return None
        bits = bytearray(-(-self._vocab // 8))
        for token_id in self._allowed:
            bits[token_id // 8] |= 1 << token_id % 8
        return bytes(bits)

    def forced(self) -> list[int]:
        return [] if self._run else self._forced.copy()

    @property
    def ended(self) -> bool:
        return not self._run and not self._free and self._allowed <= set(self._eos_ids)

    def _draw(self) -> None:
        chance = random.Random(f"{self._seed} {self.accepted}")
        tokens = [token_id for token_id in range(self._vocab) if token_id not in self._eos_ids]
        self._free = chance.random() < 0.1
        allowed = chance.sample(tokens, chance.choice([1, 3, 10]))
        if chance.random() < self._ends:
            allowed += self._eos_ids
        self._allowed = set(range(self._vocab) if self._free else allowed)
        self._forced: list[int] = []
        if self._forces and chance.random() < 0.3:
            self._forced = [chance.choice(tokens) for _ in range(chance.randint(1, 5))]
        if self._longest and len(self.accepted) >= self._longest and not self._run:
            self._free, self._forced, self._allowed = False, [], set(self._eos_ids)
