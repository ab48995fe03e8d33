"""Calls about tokens: the tokens of a prompt, and the text of tokens.

Prompts take the way of a generation's prompt, in the tenant's turn and within its limits of time.
"""

from services.worker.domain.answers.token_spelling import TokenSpelling
from services.worker.leader.context import LeaderContext
from services.worker.leader.engine_state import EngineState
from services.worker.leader.intake.prompt_tokenizer import PromptForm, PromptTokenizer
from services.worker.leader.intake.sequence_builder import SequenceBuilder
from services.worker.text.tokenizer import Tokenizer
from shared import codec
from shared.bus.api import Message
from shared.errors import InvalidRequest, ModelNotFound
from shared.messages import Detokenized, DetokenizeQuery, GenerateRequest, Tokenized, TokenizeQuery
from shared.subjects import tenant_of

MAX_AT_ONCE = 16  # calls that are answered at once
MAX_WAITING = 256  # calls that may wait; those above are dropped
INLINE_TOKENS = 256  # the texts of more tokens are made in a thread
_NOT_MADE = "the texts of the tokens were not made"


class TokenCalls:
    """The calls of the tokenize and detokenize subjects.

    Args:
        builder: Checks queries as it checks requests.
        prompts: Makes tokens, and has the threads.
    """

    def __init__(
        self,
        context: LeaderContext,
        engine: EngineState,
        builder: SequenceBuilder,
        prompts: PromptTokenizer,
        vocabulary: Tokenizer,
    ) -> None:
        self._context = context
        self._engine = engine
        self._builder = builder
        self._prompts = prompts
        self._vocabulary = vocabulary

    async def tokenize(self, query: TokenizeQuery, message: Message) -> Tokenized:
        """Returns the tokens of a prompt.

        Raises:
            InvalidRequest: The prompt is wrong.
            ContextLengthExceeded: It is so long that it cannot fit into the context.
            DeadlineExceeded: It took too long.
            ModelNotFound: The tenant may not use the model.
        """
        tenant = self._admitted(query, message)
        request = GenerateRequest(
            request_id="tokenize",
            model=query.model,
            messages=query.messages,
            prompt=query.prompt,
            tools=query.tools,
            template=query.template,
            continues=query.continues,
            tenant=tenant,
        )
        self._builder.check_request(request)
        form = PromptForm(query.special_tokens, query.generation_prompt)
        tokens = None
        if request.continues:
            prompt = await self._prompts.tokenize_continued(request, None)
            tokens = prompt.tokens + prompt.given.dropped
        elif self._prompts.is_short(request):
            tokens = self._prompts.tokenize_inline(request, None, form)
        if tokens is None:
            tokens = await self._prompts.tokenize_in_thread(request, None, form)
        shown = await self._spellings(request.tenant, tokens) if query.texts else []
        return Tokenized(
            count=len(tokens),
            context_length=self._engine.facts.context_length,
            token_ids=codec.pack_tokens(tokens) if query.ids else b"",
            texts=[one.text for one in shown],
            parts={index: one.raw for index, one in enumerate(shown) if one.raw},
        )

    async def detokenize(self, query: DetokenizeQuery, message: Message) -> Detokenized:
        """Returns the text of tokens.

        Raises:
            InvalidRequest: The model does not have all of the token ids.
            DeadlineExceeded: It took too long.
            ModelNotFound: The tenant may not use the model.
        """
        tenant = self._admitted(query, message)
        tokens, size = codec.unpack_tokens(query.token_ids), self._vocabulary.vocab_size
        if tokens and max(tokens) >= size:
            raise InvalidRequest(
                f"token_ids has token {max(tokens)}, the vocabulary ends at {size - 1}", param="token_ids"
            )
        if len(tokens) <= INLINE_TOKENS:
            return Detokenized(text=self._vocabulary.decode(tokens))
        text = await self._prompts.threads.run_in_thread(
            tenant, lambda: self._vocabulary.decode(tokens), _NOT_MADE
        )
        return Detokenized(text=text)

    def _admitted(self, query: TokenizeQuery | DetokenizeQuery, message: Message) -> str:
        """Whose query it is; for a tenant that may not use the model there is none."""
        tenants, tenant = self._context.tenants, tenant_of(message.subject, query.tenant)
        if tenants and tenant not in tenants:
            raise ModelNotFound(f"no group serves model {query.model!r}", param="model")
        return tenant

    async def _spellings(self, tenant: str, tokens: list[int]) -> list[TokenSpelling]:
        def spellings() -> list[TokenSpelling]:
            return [self._vocabulary.spelling(token) for token in tokens]

        if len(tokens) <= INLINE_TOKENS:
            return spellings()
        return await self._prompts.threads.run_in_thread(tenant, spellings, _NOT_MADE)

    def check_model(self, query: TokenizeQuery | DetokenizeQuery, _: Message) -> None:
        """Raises `InvalidRequest` if the query names another model than its subject, or than its adapters.

        These have the tokens of their base, whichever they are.
        """
        if query.model != self._context.model and not query.model.startswith(f"{self._context.model}:"):
            raise InvalidRequest(
                f"this subject is for model {self._context.model}, the query names {query.model}",
                param="model",
            )
