"""Finds out which parameters of sampling have the effect that they should have.

What cannot be seen from outside (an answer may be the same by chance) is believed if the server takes it, but
for what only known servers do as ours does.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import msgspec

from services.worker.guests.port import Ability
from services.worker.guests.remote.probing.server_facts import Kind
from services.worker.guests.remote.probing.small_answers import GREEDY, SmallAnswer, SmallAnswers
from services.worker.guests.remote.wire.dialect import Dialect
from services.worker.guests.remote.wire.server_error import ServerError
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.text.tokenizer import Tokenizer

_PROMPT = "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy"
_TOKENS = 6
_SEED = 7
_HOT = EngineSampling(temperature=2.0)
_FORCED = 100.0  # a bias that no logit is beyond
# these count the tokens of the answer alone, as ours do; llama.cpp's count those of the prompt as well
_SAME_PENALTIES: Final[frozenset[Kind]] = frozenset({"vllm", "sglang"})
_IGNORE_EOS: Final[frozenset[Kind]] = frozenset({"vllm", "sglang", "llama.cpp"})
_MIN_TOKENS: Final[frozenset[Kind]] = frozenset({"vllm", "sglang"})
# fields of the API that must be taken, one of each group
_FIELDS: Final[Mapping[Ability, tuple[tuple[str, ...], ...]]] = {
    "ignore_eos": (("ignore_eos",),),
    "logit_bias": (("logit_bias",),),
    "logprobs": (("logprobs",), ("return_tokens_as_token_ids",)),
    "min_p": (("min_p",),),
    "min_tokens": (("min_tokens",),),
    "penalties": (("presence_penalty",), ("frequency_penalty",)),
    "repetition_penalty": (("repetition_penalty", "repeat_penalty"),),
    "seed": (("seed",),),
    "top_k": (("top_k",),),
}


class SamplingProbe:
    """The probe of one server's sampling."""

    def __init__(self, answers: SmallAnswers, dialect: Dialect, kind: Kind, tokenizer: Tokenizer) -> None:
        self._answers = answers
        self._dialect = dialect
        self._kind = kind
        self._tokenizer = tokenizer
        self._prompt: list[int] | str = _PROMPT

    async def run(self, takes_ids: bool, fields: frozenset[str] | None) -> set[Ability]:
        """Return the abilities.

        Args:
            fields: Those that the server takes; None: it is known to take all.

        Raises:
            ServerError: It does not answer.
        """
        if takes_ids:
            self._prompt = self._tokenizer.encode(_PROMPT, add_special_tokens=True)
        greedy = await self._ask(GREEDY)
        checks: dict[Ability, Coroutine[Any, Any, bool]] = {
            "ignore_eos": _known(self._kind in _IGNORE_EOS),
            "logit_bias": self._biased(greedy),
            "logprobs": self._logprobs(),
            "min_p": self._likeliest(greedy, "min_p", 1.0),
            "min_tokens": _known(self._kind in _MIN_TOKENS),
            "penalties": self._penalised(greedy),
            "repetition_penalty": self._repeats_less(greedy),
            "seed": self._seeded(),
            "top_k": self._likeliest(greedy, "top_k", 1),
        }
        asked = {name: check for name, check in checks.items() if _taken(name, fields)}
        for name in checks.keys() - asked.keys():
            checks[name].close()
        shown = await asyncio.gather(*(_shown(check) for check in asked.values()))
        return {name for name, has in zip(asked, shown, strict=True) if has}

    async def _ask(self, sampling: EngineSampling, seed: int | None = None) -> SmallAnswer:
        return await self._answers.ask(
            self._dialect, self._prompt, max_tokens=_TOKENS, sampling=sampling, seed=seed
        )

    async def _likeliest(self, greedy: SmallAnswer, field: str, value: float) -> bool:
        hot = msgspec.structs.replace(_HOT, **{field: value})
        return (await self._ask(hot)).says_the_same(greedy)

    async def _seeded(self) -> bool:
        first, second = await asyncio.gather(self._ask(_HOT, _SEED), self._ask(_HOT, _SEED))
        return first.says_the_same(second)

    async def _biased(self, greedy: SmallAnswer) -> bool:
        token_id = next(
            found[0]
            for text in (" zebra", " seven", "Q")
            if (found := self._tokenizer.encode(text, add_special_tokens=False))
            and not greedy.text.startswith(self._tokenizer.token_text(found[0]))
        )
        forced = EngineSampling(temperature=0.0, logit_bias={token_id: _FORCED})
        answer = await self._answers.ask(self._dialect, self._prompt, max_tokens=1, sampling=forced)
        if answer.token_ids:
            return answer.token_ids[0] == token_id
        return answer.text.strip() == self._tokenizer.token_text(token_id).strip()

    async def _logprobs(self) -> bool:
        answer = await self._ask(msgspec.structs.replace(GREEDY, logprobs=2))
        return answer.has_logprobs

    async def _penalised(self, greedy: SmallAnswer) -> bool:
        if self._kind != "openai":
            return self._kind in _SAME_PENALTIES
        penalised = msgspec.structs.replace(GREEDY, presence_penalty=2.0, frequency_penalty=2.0)
        answer = await self._ask(penalised)
        return not answer.says_the_same(greedy) and _first(answer) == _first(greedy)

    async def _repeats_less(self, greedy: SmallAnswer) -> bool:
        answer = await self._ask(msgspec.structs.replace(GREEDY, repetition_penalty=10.0))
        return not answer.says_the_same(greedy)


def _first(answer: SmallAnswer) -> object:
    return answer.token_ids[:1] or answer.text[:2]


def _taken(name: Ability, fields: frozenset[str] | None) -> bool:
    return fields is None or all(fields.intersection(group) for group in _FIELDS[name])


async def _known(value: bool) -> bool:
    return value


async def _shown(check: Coroutine[Any, Any, bool]) -> bool:
    try:
        return await check
    except ServerError as error:
        if error.gone:
            raise
        return False
