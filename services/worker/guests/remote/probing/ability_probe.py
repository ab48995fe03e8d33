"""Finds out by tiny requests what a server can do: what it refuses or ignores, it cannot."""

import asyncio
from dataclasses import dataclass

from services.worker.guests.port import Ability
from services.worker.guests.remote.options import RemoteOptions
from services.worker.guests.remote.probing.form_probe import FormProbe
from services.worker.guests.remote.probing.sampling_probe import SamplingProbe
from services.worker.guests.remote.probing.server_facts import ServerFacts
from services.worker.guests.remote.probing.small_answers import GREEDY, SmallAnswers
from services.worker.guests.remote.probing.tokenizer_check import TEXTS, check_token_ids, first_token_added
from services.worker.guests.remote.tokens.prompt_text import PromptText
from services.worker.guests.remote.wire.dialect import Dialect
from services.worker.guests.remote.wire.native_dialect import NativeDialect
from services.worker.guests.remote.wire.openai_dialect import FIELDS, OpenAIDialect
from services.worker.guests.remote.wire.remote_http import RemoteHttp
from services.worker.guests.remote.wire.server_error import ServerError
from services.worker.rank_protocol.engine_sampling import EngineSampling
from services.worker.rank_protocol.failures import EngineFailed, EngineRefused
from services.worker.text.tokenizer import Tokenizer

_AT_ONCE = 4
_NO_TOP_K = {"vllm": -1, "sglang": -1}
_REFUSED = frozenset({404, 405, 501})


@dataclass(frozen=True, slots=True)
class Probed:
    """What the probe found.

    Attributes:
        prompts: Spells prompts; None: the server takes token ids.
    """

    dialect: Dialect
    prompts: PromptText | None
    abilities: frozenset[Ability]


class AbilityProbe:
    """The probe of one server."""

    def __init__(
        self, http: RemoteHttp, options: RemoteOptions, facts: ServerFacts, tokenizer: Tokenizer
    ) -> None:
        self._http = http
        self._options = options
        self._facts = facts
        self._tokenizer = tokenizer
        at_once = min(_AT_ONCE, facts.max_running or _AT_ONCE)
        self._answers = SmallAnswers(http, options.model, at_once=at_once, timeout_s=options.probe_timeout_s)
        self._text = TEXTS[0]
        self._ids = tokenizer.encode(self._text, add_special_tokens=True)

    async def run(self) -> Probed:
        """Ask everything.

        Raises:
            EngineFailed: The server does not answer.
            EngineRefused: It answers, and cannot serve this model to this group.
        """
        where = f"the server at {self._options.host}"
        try:
            compared = await check_token_ids(self._answers, self._options, self._tokenizer)
            native = await self._native() if compared and self._facts.kind == "llama.cpp" else None
            return await self._abilities(native or await self._openai(), native is not None)
        except ServerError as error:
            if 400 <= error.status < 500 and error.status not in (408, 429):
                raise EngineRefused(f"{where} {error}") from error
            raise EngineFailed(f"{where} {error}; see whether it runs", "start_failed") from error

    async def _native(self) -> Dialect | None:
        """Return llama.cpp's own API if it takes and brings token ids here."""
        dialect = NativeDialect(self._facts.context_length, self._http.quoted_error)
        try:
            answer = await self._answers.ask(dialect, self._ids)
        except ServerError as error:
            if error.status not in _REFUSED:
                raise
            return None
        return dialect if answer.token_ids and answer.prompt_tokens == len(self._ids) else None

    async def _openai(self) -> Dialect:
        await self._answers.ask(self._make(frozenset(), token_ids=False), self._text)
        wanted = frozenset(FIELDS) - self._other_names()
        if await self._takes(wanted):
            fields = wanted
        else:
            names = sorted(wanted)
            taken = await asyncio.gather(*(self._takes(frozenset({name})) for name in names))
            fields = frozenset(name for name, takes in zip(names, taken, strict=True) if takes)
        return self._make(fields, token_ids=await self._brings_ids(fields))

    async def _brings_ids(self, fields: frozenset[str]) -> bool:
        try:
            answer = await self._answers.ask(self._make(fields, token_ids=True), self._text)
        except ServerError as error:
            if error.gone or error.lost or error.status:
                raise
            return False  # it brings text alone
        return bool(answer.token_ids)

    def _other_names(self) -> frozenset[str]:
        """Return fields that this kind of server knows by another name."""
        match self._facts.kind:
            case "openai":
                return frozenset()
            case "llama.cpp" | "llama-cpp-python":
                return frozenset({"repetition_penalty"})
            case _:
                return frozenset({"repeat_penalty"})

    async def _takes(self, fields: frozenset[str]) -> bool:
        """Return True if the server does not refuse these fields."""
        sampling = EngineSampling(
            temperature=0.0,
            logprobs=1 if fields & {"logprobs", "return_tokens_as_token_ids"} else -1,
            min_tokens=1,
            ignore_eos=True,
            logit_bias={self._ids[0]: 0.0},
        )
        try:
            await self._answers.ask(
                self._make(fields, token_ids=False), self._text, sampling=sampling, seed=1
            )
        except ServerError as error:
            if error.gone or error.status in (401, 403, 404, 429):
                raise
            return False
        return True

    def _make(self, fields: frozenset[str], *, token_ids: bool) -> OpenAIDialect:
        return OpenAIDialect(
            fields=fields,
            no_top_k=_NO_TOP_K.get(self._facts.kind, 0),
            token_ids=token_ids,
            report=self._http.quoted_error,
        )

    async def _abilities(self, dialect: Dialect, native: bool) -> Probed:
        abilities = set[Ability]({"continuation"})
        begins = None
        if not native:
            begins = await first_token_added(self._answers, dialect, self._options, self._tokenizer)
        takes_ids = native or await self._takes_ids(dialect, begins)
        prompt: list[int] | str = self._ids
        prompts = None
        if takes_ids:
            abilities.add("token_ids_in")
        else:
            prompts = PromptText(self._tokenizer, begins)
            prompt = self._text
        greedy = await self._answers.ask(dialect, prompt, max_tokens=2)
        if greedy.token_ids:
            abilities.add("token_ids_out")
        elif not self._tokenizer.has_token_bytes:
            raise EngineRefused(
                f"the server at {self._options.host} brings text only, and the tokenizer of this model does "
                "not say the bytes of its tokens; use a server that brings token ids, such as vLLM"
            )
        sampling = SamplingProbe(self._answers, dialect, self._facts.kind, self._tokenizer)
        fields = None if not isinstance(dialect, OpenAIDialect) else dialect.fields
        abilities |= await sampling.run(takes_ids, fields)
        dialect, forms = await FormProbe(self._answers, prompt).run(dialect)
        abilities |= forms
        if self._facts.adapters:
            abilities.add("adapters")
        return Probed(dialect, prompts, frozenset(abilities))

    async def _takes_ids(self, dialect: Dialect, begins: int | None) -> bool:
        """Return True if token ids are taken, and mean what they mean here."""
        plain = self._tokenizer.encode(self._text, add_special_tokens=False)
        ids = plain if begins is None else [begins, *plain]
        try:
            by_ids = await self._answers.ask(dialect, ids, max_tokens=4, sampling=GREEDY)
            count = by_ids.prompt_tokens
            if count < 0:
                count = await self._answers.count(dialect, ids)
        except ServerError as error:
            if error.gone:
                raise
            return False
        by_text = await self._answers.ask(dialect, self._text, max_tokens=4, sampling=GREEDY)
        return count == len(ids) and by_ids.says_the_same(by_text)
