"""Makes the sequences of a request from its tokens, and checks that they fit into the context.

Everything that can be refused before a token is computed is refused here or in `request_checks.py`, with the
field at fault.
"""

import functools
from typing import NamedTuple

from services.worker.domain.adapters.sequence_adapter import sequence_adapter
from services.worker.domain.answers.choice_state import ChoiceState, Detokenizer
from services.worker.domain.answers.stop_strings import StopMatcher, StopStrings
from services.worker.domain.constraints.forced_text import RepeatedText
from services.worker.domain.generation.context_overflow import too_long
from services.worker.domain.generation.generation import Generation
from services.worker.domain.generation.turn_context import TurnContext
from services.worker.domain.scheduling.crash_trials import TRIAL_TOKENS
from services.worker.domain.scheduling.sequence import Sequence
from services.worker.leader.engine_state import EngineFacts, EngineState
from services.worker.leader.intake.answer_forms import AnswerForms, AnswerReading
from services.worker.leader.intake.answer_grammars import AnswerGrammars
from services.worker.leader.intake.continued_prompts import GivenAnswer
from services.worker.leader.intake.grammar_compiler import GrammarCompiler
from services.worker.leader.intake.grammar_states import GrammarStates
from services.worker.leader.intake.prompt_requests import (
    check_prompt_request,
    has_no_answer,
    prompt_answer,
)
from services.worker.leader.intake.prompt_tokenizer import PromptTokenizer, is_long
from services.worker.leader.intake.request_checks import (
    check_adapter,
    check_continued,
    check_ids,
    check_prompt_fields,
    check_resume,
    check_resume_length,
    resumed_tokens,
)
from services.worker.leader.intake.tool_checks import check_tools
from services.worker.model_files.model import Model
from services.worker.rank_protocol.engine_sampling import engine_sampling
from services.worker.text.answers.continued_text import continued_detokenizer
from services.worker.text.token_speller import MAX_TAKEN_BACK
from services.worker.text.tokenizer import Tokenizer
from shared.errors import InvalidRequest
from shared.messages import Adapter, GenerateRequest


class FittedPrompt(NamedTuple):
    """A prompt that fits into the context with its answer.

    Attributes:
        given: The beginning of the answer, if that is continued.
    """

    tokens: list[int]
    max_tokens: int
    facts: EngineFacts
    given: GivenAnswer | None


class SequenceBuilder:
    """Checks requests and makes their sequences.

    Args:
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
        self._answer_grammars = AnswerGrammars(model, self._forms, lambda: self.facts.guest)
        self._grammar_states = GrammarStates(model, lambda: self.facts.guest is not None)

    @property
    def facts(self) -> EngineFacts:
        """What sequences are made with now."""
        return self._engine.facts

    def check_request(self, request: GenerateRequest, adapter: Adapter | None = None) -> None:
        """Checks what does not depend on the history.

        Raises:
            InvalidRequest: The request is wrong.
            Unavailable: It resumes an answer of other weights.
        """
        self._grammars.check(request)
        check_tools(request, self._model.template)
        facts = self._engine.facts
        check_prompt_request(request, facts.hidden_size)
        check_prompt_fields(request, self._model)
        check_adapter(adapter, facts)
        if request.continues:
            check_continued(request)
        if request.resume is not None:
            repeated = MAX_TAKEN_BACK if request.continues else 0
            check_resume(request, request.resume, adapter, facts, repeated)

    def has_grammar(self, generation: Generation) -> bool:
        """Gives a generation its grammar if that is compiled; False if it has to be compiled first."""
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
        generation.choices = self._choices(generation, self._fit(generation, tokens, turn, None))

    async def build_long_choices(
        self,
        generation: Generation,
        tokens: list[int],
        turn: TurnContext | None,
        given: GivenAnswer | None = None,
    ) -> None:
        """Gives a generation its choices, made in a thread if they are long.

        Raises:
            ContextLengthExceeded: The prompt, or the prompt and the answer asked for, do not fit.
            InvalidRequest: The model does not have all of the token ids.
            DeadlineExceeded: The thread took too long.
        """
        prompt = self._fit(generation, tokens, turn, given)
        if not is_long(generation.request, len(tokens)):
            generation.choices = self._choices(generation, prompt)
            return
        make = functools.partial(self._named_choices, generation, prompt)
        # assigned here and not in the thread, since the generation may have ended meanwhile
        generation.choices = await self._tokenizer.threads.run_in_thread(
            generation.request.party_or_tenant, make, "the choices were not made"
        )

    def _fit(
        self,
        generation: Generation,
        tokens: list[int],
        turn: TurnContext | None,
        given: GivenAnswer | None,
    ) -> FittedPrompt:
        """Checks that a prompt and its answer fit into the context; see `build_choices` for the errors."""
        request, facts = generation.request, self._engine.facts
        check_ids(request, tokens, facts)
        repeated = len(given.dropped) if given is not None else 0
        prompt_tokens = len(tokens) + repeated
        max_tokens = request.sampling.max_tokens or max(1, facts.context_length - prompt_tokens)
        if has_no_answer(request):
            max_tokens = 0
        if prompt_tokens + max_tokens > facts.context_length:
            full = self._model.context_length
            raise too_long(self._model.name, request, turn, prompt_tokens, facts.context_length, full=full)
        if request.sampling.min_tokens > max_tokens:
            raise InvalidRequest(
                f"min_tokens is {request.sampling.min_tokens}, and the answer may have {max_tokens} tokens",
                param="min_tokens",
            )
        if request.resume is not None:
            check_resume_length(request.resume, max_tokens + repeated)
        generation.turn, generation.prompt_tokens = turn, prompt_tokens
        return FittedPrompt(tokens, max_tokens, facts, given)

    def _named_choices(self, generation: Generation, prompt: FittedPrompt) -> list[ChoiceState]:
        """Makes the choices, and names the blocks of the first one, of which a long prompt has many."""
        choices = self._choices(generation, prompt)
        prompt.facts.names.of(choices[0].sequence)
        return choices

    def _choices(self, generation: Generation, prompt: FittedPrompt) -> list[ChoiceState]:
        """Makes the choices of a request. Changes nothing else, so that it may be called in a thread."""
        tokens, max_tokens, facts, given = prompt
        request, sampling = generation.request, engine_sampling(generation.request.sampling)
        tokenizer, stops = self._model.tokenizer, StopStrings(sampling.stop) if sampling.stop else None
        form = self._forms.form_of(request, tokens[: len(tokens) - len(given.kept)] if given else tokens)
        make = functools.partial(_detokenizer, tokenizer, form)
        choices: list[ChoiceState] = []
        for index, before in enumerate(resumed_tokens(request, facts)):
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
                weight=request.weight,
                priority=request.priority,
                deadline=generation.deadline,
                stored=-1 if request.kv == "recompute" else 0,
                always_fetch=request.kv == "fetch",
                trial_tokens=TRIAL_TOKENS if request.crashes else 0,
                first=choices[0].sequence if choices else None,
                timeline=generation.timeline,
                adapter=sequence_adapter(generation.adapter),
                constraint=self._grammar_states.state_of(
                    generation, before, given, in_reasoning=form is not None and form.in_reasoning
                ),
                form=self._grammar_states.form_for_guest(generation),
            )
            if given is not None and given.speller is not None:
                sequence.repeat_text(RepeatedText(given.speller, given.forced, len(given.dropped)))
            choice = ChoiceState(
                sequence=sequence,
                detokenizer=continued_detokenizer(make, given.kept, given.dropped) if given else make(),
                stops=StopMatcher(stops) if stops is not None else None,
                spell_token=tokenizer.spelling,
                answer=form.reader(index, given) if form else None,
            )
            if given is not None:
                choice.text.append(given.message.content)
            if not index:
                choice.prompt = prompt_answer(request, sequence, tokenizer)
            if before:
                choice.prime()
            choice.begin()
            choices.append(choice)
        return choices


def _detokenizer(tokenizer: Tokenizer, form: AnswerReading | None) -> Detokenizer:
    made = tokenizer.detokenizer()
    return made if form is None else form.detokenizer(made)
