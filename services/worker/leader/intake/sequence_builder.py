"""From a request to sequences: history, tokens (`tokenizing.py`), and whether they fit into the context.

Everything here can be checked before any token is computed, and refuses with the field at fault.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from services.worker.domain.generation.context_overflow import too_long
from services.worker.domain.generation.request import ChoiceState, Generation
from services.worker.domain.generation.stop_strings import StopMatcher, StopStrings
from services.worker.domain.generation.turn_context import (
    TurnContext,
    appends,
    check_conditions,
    in_place_of_last,
    repeats,
    turn_of,
)
from services.worker.domain.scheduling.block_names import UNNAMED, BlockNames
from services.worker.domain.scheduling.crash_trials import TRIAL_TOKENS
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.leader.intake.prompt_tokenizer import PromptTokenizer, is_long
from services.worker.leader.sessions.delivery_tracker import DeliveryTracker
from services.worker.leader.sessions.session_records import SessionRecords
from services.worker.model_dir import Model
from shared.codec import unpack_tokens
from shared.errors import InvalidRequest, Unavailable
from shared.messages import ChatMessage, GenerateRequest, ResumePoint, SessionRecord, SessionRef


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a sequence may grow to, in tokens, the ids that the engine knows, what names its weights
    and its KV format, and how its blocks are named.
    """

    context_length: int
    vocab_size: int
    fingerprint: str = ""
    names: BlockNames = UNNAMED


class SequenceBuilder:
    """Makes the sequences of a request.

    room: of the engine that runs now.
    """

    def __init__(
        self,
        model: Model,
        sessions: SessionRecords,
        deliveries: DeliveryTracker,
        tokenizing: PromptTokenizer,
        room: Callable[[], EngineFacts],
    ) -> None:
        self._model = model
        self._tokenizing = tokenizing
        self._sessions = sessions
        self._deliveries = deliveries
        self._room = room

    @property
    def fingerprint(self) -> str:
        """Of the weights and the KV format that answers are computed with now."""
        return self._room().fingerprint

    def check(self, request: GenerateRequest) -> None:
        """Checks what does not depend on the history.

        Raises:
            InvalidRequest: something is wrong with it.
            Unavailable: it is to go on from tokens of other weights.
        """
        given = [
            name for name in ("messages", "prompt", "prompt_token_ids") if getattr(request, name) is not None
        ]
        if len(given) != 1:
            raise InvalidRequest(
                f"give one of messages, prompt and prompt_token_ids, not {' and '.join(given) or 'none'}",
                param=given[1] if given else "messages",
            )
        if request.messages is not None and self._model.template is None:
            raise InvalidRequest(
                f"model {self._model.name} has no chat template; send a prompt instead of messages",
                param="messages",
            )
        if request.resume is not None:
            self._check_resume(request, request.resume)

    def _check_resume(self, request: GenerateRequest, resume: ResumePoint) -> None:
        if len(resume.token_ids) != request.sampling.n:
            raise InvalidRequest(
                f"resume.token_ids needs one entry per choice, {request.sampling.n}, "
                f"got {len(resume.token_ids)}",
                param="resume",
            )
        if resume.fingerprint and resume.fingerprint != self.fingerprint:
            raise Unavailable(
                f"model {self._model.name} has other weights here than the group that began with the answer",
                reason="other_weights",
                retry_after_s=1.0,
            )
        holds = self._room().context_length
        _check_length(resume, min(request.sampling.max_tokens or holds, holds))

    @staticmethod
    def needs_lookup(request: GenerateRequest) -> bool:
        """Whether a session record has to be looked up first."""
        return request.messages is not None and request.session is not None and request.session.given

    async def turn(self, request: GenerateRequest, last_group: str = "") -> TurnContext:
        """The turn of a session whose id the caller gave, with its history.

        last_group: who served the last turn, as far as the router knew.

        Raises:
            Unavailable: the request goes on from a record that nobody can give now.
        """
        session, messages = _session_of(request)
        record: SessionRecord | None = None
        try:
            record = await self._sessions.lookup(request.tenant, session.session_id, last_group)
        except Unavailable:
            if appends(messages, session) or session.must_exist or session.if_version >= 0:
                raise
            return TurnContext(session, messages, commits=False)
        resumed_at = request.resume.session_version if request.resume is not None else -1
        turn = turn_of(
            messages,
            session,
            record,
            request.request_id,
            resumed_at,
            call_key=request.call_key,
            call_digest=request.call_digest,
        )
        if resumed_at >= 0 or turn.stored:
            return turn
        check_conditions(session, record)
        if record is None or request.call_key or not repeats(messages, session, record):
            return turn
        lost = await self._deliveries.was_lost(request.tenant, session.session_id, record.last_request)
        return (in_place_of_last(messages, session, record) or turn) if lost else turn

    def is_short(self, request: GenerateRequest) -> bool:
        """Whether `tokenize` and `build` may be called without a thread."""
        return self._tokenizing.is_short(request)

    def tokenize(self, request: GenerateRequest, turn: TurnContext | None) -> list[int] | None:
        """The prompt as tokens; None: it takes longer than it should and needs a thread."""
        return self._tokenizing.at_once(request, turn)

    async def tokenize_in_thread(self, request: GenerateRequest, turn: TurnContext | None) -> list[int]:
        """The prompt as tokens, however long it takes within the limit; raises `DeadlineExceeded` beyond."""
        return await self._tokenizing.in_thread(request, turn)

    def build(self, generation: Generation, tokens: list[int], turn: TurnContext | None) -> None:
        """Gives the generation its choices. Not if they are long (`is_short`).

        Raises:
            ContextLengthExceeded: the prompt, or the prompt and the answer asked for, do not fit.
            InvalidRequest: token ids that the model does not have.
        """
        room, max_tokens = self._fit(generation, tokens, turn)
        generation.choices = self._choices(generation, tokens, max_tokens, room)

    async def build_later(self, generation: Generation, tokens: list[int], turn: TurnContext | None) -> None:
        """The same, however long the choices are: then they are made in a thread.

        Raises:
            DeadlineExceeded: that takes too long.
        """
        if not is_long(generation.request, len(tokens)):
            self.build(generation, tokens, turn)
            return
        room, max_tokens = self._fit(generation, tokens, turn)
        make = functools.partial(self._named_choices, generation, tokens, max_tokens, room)
        # given to the generation here, so that none that is over meanwhile gets any
        generation.choices = await self._tokenizing.run(
            generation.request.tenant, make, "the choices were not made"
        )

    def _fit(
        self, generation: Generation, tokens: list[int], turn: TurnContext | None
    ) -> tuple[EngineFacts, int]:
        """The room, and how many tokens an answer may have in it."""
        request, room = generation.request, self._room()
        self._check_ids(request, tokens, room)
        max_tokens = request.sampling.max_tokens or max(1, room.context_length - len(tokens))
        if len(tokens) + max_tokens > room.context_length:
            raise too_long(self._model.name, request, turn, len(tokens), room.context_length)
        if request.resume is not None:
            _check_length(request.resume, max_tokens)
        generation.turn, generation.prompt_tokens = turn, len(tokens)
        return room, max_tokens

    def _named_choices(
        self, generation: Generation, tokens: list[int], max_tokens: int, room: EngineFacts
    ) -> list[ChoiceState]:
        """The choices, and the names of the first one's blocks, of which a long prompt has many."""
        choices = self._choices(generation, tokens, max_tokens, room)
        room.names.of(choices[0].sequence)
        return choices

    def _choices(
        self, generation: Generation, tokens: list[int], max_tokens: int, room: EngineFacts
    ) -> list[ChoiceState]:
        """The choices of a request. Changes nothing else, so that it may be called in a thread."""
        request, sampling = generation.request, generation.request.sampling
        tokenizer, stops = self._model.tokenizer, StopStrings(sampling.stop) if sampling.stop else None
        choices: list[ChoiceState] = []
        for index, before in enumerate(self._before(request, room)):
            sequence = Sequence(
                request_id=generation.key,
                choice=index,
                tokens=tokens + before,
                prompt_len=len(tokens),
                max_tokens=max_tokens,
                sampling=sampling,
                eos_ids=self._model.eos_ids,
                tenant=request.tenant,
                priority=request.priority,
                deadline=generation.deadline,
                stored=-1 if request.kv == "recompute" else 0,
                always_fetch=request.kv == "fetch",
                trial_tokens=TRIAL_TOKENS if request.crashes else 0,
                first=choices[0].sequence if choices else None,
            )
            choice = ChoiceState(
                sequence=sequence,
                detokenizer=tokenizer.detokenizer(),
                stops=StopMatcher(stops) if stops is not None else None,
                token_text=tokenizer.token_text,
            )
            if before:
                choice.prime()
            choices.append(choice)
        return choices

    @staticmethod
    def _before(request: GenerateRequest, room: EngineFacts) -> list[list[int]]:
        """What earlier attempts have generated, for each choice."""
        if request.resume is None:
            return [[] for _ in range(request.sampling.n)]
        choices = [unpack_tokens(packed) for packed in request.resume.token_ids]
        highest = max((max(tokens) for tokens in choices if tokens), default=0)
        if highest >= room.vocab_size:
            raise InvalidRequest(
                f"resume.token_ids has token {highest}, the vocabulary ends at {room.vocab_size - 1}",
                param="resume",
            )
        return choices

    @staticmethod
    def _check_ids(request: GenerateRequest, tokens: list[int], room: EngineFacts) -> None:
        for param, ids in (
            ("prompt_token_ids", tokens if request.prompt_token_ids is not None else ()),
            ("logit_bias", request.sampling.logit_bias),
        ):
            if ids and max(ids) >= room.vocab_size:
                raise InvalidRequest(
                    f"{param} has token {max(ids)}, the vocabulary ends at {room.vocab_size - 1}", param=param
                )


def _check_length(resume: ResumePoint, max_tokens: int) -> None:
    """Refuses by the number of its bytes a resume point that no answer can have come to."""
    longest = max(map(len, resume.token_ids)) // 4
    if longest > max_tokens:
        raise InvalidRequest(
            f"resume.token_ids has {longest} tokens of a choice, which may have {max_tokens}", param="resume"
        )


def _session_of(request: GenerateRequest) -> tuple[SessionRef, list[ChatMessage]]:
    assert request.session is not None
    assert request.messages is not None
    return request.session, request.messages
