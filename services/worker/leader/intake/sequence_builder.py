"""Makes the sequences of a request from its tokens, and checks that they fit into the context.

Everything that can be refused before a token is computed is refused here, with the field at fault.
"""

import functools

from services.worker.domain.answers.choice_state import ChoiceState
from services.worker.domain.answers.stop_strings import StopMatcher, StopStrings
from services.worker.domain.generation.context_overflow import too_long
from services.worker.domain.generation.generation import Generation
from services.worker.domain.generation.token_constraint import TokenConstraint, TokenRefused
from services.worker.domain.generation.turn_context import TurnContext
from services.worker.domain.scheduling.crash_trials import TRIAL_TOKENS
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.leader.engine_state import EngineFacts, EngineState
from services.worker.leader.intake.answer_forms import AnswerForms
from services.worker.leader.intake.answer_grammars import AnswerGrammars
from services.worker.leader.intake.grammar_compiler import GrammarCompiler
from services.worker.leader.intake.prompt_requests import (
    check_prompt_request,
    has_no_answer,
    prompt_answer,
)
from services.worker.leader.intake.prompt_tokenizer import PromptTokenizer, is_long
from services.worker.leader.intake.tool_checks import check_tools
from services.worker.model import Model
from services.worker.rank_protocol.engine_sampling import engine_sampling
from services.worker.text.grammars.after_reasoning import ReasonedGrammar
from shared.codec import unpack_tokens
from shared.errors import InvalidRequest, Unavailable
from shared.messages import GenerateRequest, ResumePoint


class SequenceBuilder:
    """Checks requests and makes their sequences.

    Args:
        model: Whose tokens they are.
        engine: What sequences are made for.
        tokenizer: Has the threads in which long sequences are made.
        grammars: Compiles the grammars of answers.
    """

    def __init__(
        self, model: Model, engine: EngineState, tokenizer: PromptTokenizer, grammars: GrammarCompiler
    ) -> None:
        self._model = model
        self._engine = engine
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._forms = AnswerForms(model)
        self._answer_grammars = AnswerGrammars(model, self._forms)

    @property
    def fingerprint(self) -> str:
        """Names the weights and the KV format that answers are computed with now."""
        return self._engine.facts.fingerprint

    def check_request(self, request: GenerateRequest) -> None:
        """Checks what does not depend on the history.

        Raises:
            InvalidRequest: The request is wrong.
            Unavailable: It resumes an answer of other weights.
        """
        self._grammars.check(request)
        check_tools(request, self._model.template)
        check_prompt_request(request, self._engine.facts.hidden_size)
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
        holds = self._engine.facts.context_length
        _check_length(resume, min(request.sampling.max_tokens or holds, holds))

    def has_grammar(self, generation: Generation) -> bool:
        """Gives a generation its grammar if that is at hand; returns whether nothing is left to compile."""
        grammar = self._answer_grammars.grammar_of(generation.request)
        generation.constraint = None if grammar is None else self._grammars.kept(grammar.digest)
        return grammar is None or generation.constraint is not None

    async def compile_grammar(self, generation: Generation) -> None:
        """Gives a generation its grammar, if its answer is to have one.

        Raises:
            InvalidRequest: The grammar is wrong, is not enforced, or takes too long to compile.
            RateLimited: Too many grammars of the tenant are compiled or wait.
            Overloaded: Those of other tenants have all threads.
        """
        party = generation.request.party_or_tenant
        grammar = self._answer_grammars.grammar_of(generation.request)
        if grammar is None:
            return
        try:
            generation.constraint = await self._grammars.compile(
                party, grammar.digest, grammar.work, grammar.param, grammar.trial
            )
        except InvalidRequest as error:
            if not grammar.optional:
                raise InvalidRequest(error.message, **{"param": grammar.param, **error.data}) from error

    def build_choices(self, generation: Generation, tokens: list[int], turn: TurnContext | None) -> None:
        """Gives a generation its choices; for prompts that `PromptTokenizer.is_short` calls short.

        Raises:
            ContextLengthExceeded: The prompt, or the prompt and the answer asked for, do not fit.
            InvalidRequest: The model does not have all of the token ids.
        """
        facts, max_tokens = self._fit(generation, tokens, turn)
        generation.choices = self._choices(generation, tokens, max_tokens, facts)

    async def build_long_choices(
        self, generation: Generation, tokens: list[int], turn: TurnContext | None
    ) -> None:
        """Gives a generation its choices, made in a thread if they are long.

        Raises:
            ContextLengthExceeded: The prompt, or the prompt and the answer asked for, do not fit.
            InvalidRequest: The model does not have all of the token ids.
            DeadlineExceeded: The thread took too long.
        """
        if not is_long(generation.request, len(tokens)):
            self.build_choices(generation, tokens, turn)
            return
        facts, max_tokens = self._fit(generation, tokens, turn)
        make = functools.partial(self._named_choices, generation, tokens, max_tokens, facts)
        # assigned here and not in the thread, since the generation may have ended meanwhile
        generation.choices = await self._tokenizer.run_in_thread(
            generation.request.party_or_tenant, make, "the choices were not made"
        )

    def _fit(
        self, generation: Generation, tokens: list[int], turn: TurnContext | None
    ) -> tuple[EngineFacts, int]:
        """Returns the engine's facts, and how many tokens the answer may have."""
        request, facts = generation.request, self._engine.facts
        self._check_ids(request, tokens, facts)
        max_tokens = request.sampling.max_tokens or max(1, facts.context_length - len(tokens))
        if has_no_answer(request):
            max_tokens = 0
        if len(tokens) + max_tokens > facts.context_length:
            raise too_long(self._model.name, request, turn, len(tokens), facts.context_length)
        if request.sampling.min_tokens > max_tokens:
            raise InvalidRequest(
                f"min_tokens is {request.sampling.min_tokens}, and the answer may have {max_tokens} tokens",
                param="min_tokens",
            )
        if request.resume is not None:
            _check_length(request.resume, max_tokens)
        generation.turn, generation.prompt_tokens = turn, len(tokens)
        return facts, max_tokens

    def _named_choices(
        self, generation: Generation, tokens: list[int], max_tokens: int, facts: EngineFacts
    ) -> list[ChoiceState]:
        """Makes the choices, and names the blocks of the first one, of which a long prompt has many."""
        choices = self._choices(generation, tokens, max_tokens, facts)
        facts.names.of(choices[0].sequence)
        return choices

    def _choices(
        self, generation: Generation, tokens: list[int], max_tokens: int, facts: EngineFacts
    ) -> list[ChoiceState]:
        """Makes the choices of a request. Changes nothing else, so that it may be called in a thread."""
        request, sampling = generation.request, engine_sampling(generation.request.sampling)
        tokenizer, stops = self._model.tokenizer, StopStrings(sampling.stop) if sampling.stop else None
        form = self._forms.form_of(request, tokens)
        choices: list[ChoiceState] = []
        for index, before in enumerate(self._before(request, facts)):
            sequence = Sequence(
                request_id=generation.key,
                choice=index,
                tokens=tokens + before,
                prompt_len=len(tokens),
                max_tokens=max_tokens,
                sampling=sampling,
                eos_ids=self._model.eos_ids,
                tenant=request.tenant,
                party=request.party,
                priority=request.priority,
                deadline=generation.deadline,
                stored=-1 if request.kv == "recompute" else 0,
                always_fetch=request.kv == "fetch",
                trial_tokens=TRIAL_TOKENS if request.crashes else 0,
                first=choices[0].sequence if choices else None,
                timeline=generation.timeline,
                constraint=_constraint(
                    generation, before, in_reasoning=form is not None and form.in_reasoning
                ),
            )
            choice = ChoiceState(
                sequence=sequence,
                detokenizer=form.detokenizer(tokenizer.detokenizer()) if form else tokenizer.detokenizer(),
                stops=StopMatcher(stops) if stops is not None else None,
                spell_token=tokenizer.spelling,
                answer=form.reader(index) if form else None,
            )
            if not index:
                choice.prompt = prompt_answer(request, sequence, tokenizer)
            if before:
                choice.prime()
            choice.begin()
            choices.append(choice)
        return choices

    @staticmethod
    def _before(request: GenerateRequest, facts: EngineFacts) -> list[list[int]]:
        """Returns the tokens that earlier attempts have generated, for each choice."""
        if request.resume is None:
            return [[] for _ in range(request.sampling.n)]
        choices = [unpack_tokens(packed) for packed in request.resume.token_ids]
        highest = max((max(tokens) for tokens in choices if tokens), default=0)
        if highest >= facts.vocab_size:
            raise InvalidRequest(
                f"resume.token_ids has token {highest}, the vocabulary ends at {facts.vocab_size - 1}",
                param="resume",
            )
        return choices

    @staticmethod
    def _check_ids(request: GenerateRequest, tokens: list[int], facts: EngineFacts) -> None:
        given = ("messages", "prompt", "prompt_token_ids")
        prompt = next((name for name in given if getattr(request, name) is not None), "prompt")
        for param, ids in (
            (prompt, tokens),
            ("logit_bias", request.sampling.logit_bias),
            ("stop_token_ids", request.sampling.stop_token_ids),
        ):
            if ids and max(ids) >= facts.vocab_size:
                raise InvalidRequest(
                    f"{param} has token {max(ids)}, the vocabulary ends at {facts.vocab_size - 1}",
                    param=param,
                )


def _constraint(generation: Generation, before: list[int], *, in_reasoning: bool) -> TokenConstraint | None:
    """Returns the constraint of a choice, after the tokens that earlier attempts have generated."""
    grammar = generation.constraint
    if grammar is None:
        return None
    constraint = grammar.begun() if in_reasoning and isinstance(grammar, ReasonedGrammar) else grammar()
    try:
        constraint.accept(before)
    except TokenRefused as error:
        raise InvalidRequest(
            f"resume.token_ids does not follow the form that the answer is to have: {error}", param="resume"
        ) from error
    return constraint


def _check_length(resume: ResumePoint, max_tokens: int) -> None:
    """Refuses a resume point with more tokens than an answer may have, by the number of its bytes."""
    longest = max(map(len, resume.token_ids)) // 4
    if longest > max_tokens:
        raise InvalidRequest(
            f"resume.token_ids has {longest} tokens of a choice, which may have {max_tokens}", param="resume"
        )
