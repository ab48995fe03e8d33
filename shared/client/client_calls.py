"""What a client offers beyond streams: whole answers, embeddings, models and tokens."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

import msgspec

from shared.bus import Bus
from shared.client.calls import model_list, token_calls
from shared.client.calls.adapters_client import AdaptersClient
from shared.client.calls.models_client import ModelsClient
from shared.client.generation.generation_stream import GenerationStream
from shared.client.generation.results import Completion, Embedding
from shared.messages import (
    Detokenized,
    DetokenizeQuery,
    EmbeddingOptions,
    GenerateRequest,
    ModelCard,
    ModelList,
    Tokenized,
    TokenizeQuery,
)
from shared.subjects import OutsideService


class ClientCalls(ABC):
    """Calls that need no state of a client but its connection, or are made of `submit`.

    Attributes:
        bus: The connection to the fleet.
        caller: The service outside that the client speaks for, or None.
        wait_s: How long calls wait for a router or a group that is away.
    """

    bus: Bus
    caller: OutsideService | None
    wait_s: float

    @abstractmethod
    def submit(
        self,
        request: GenerateRequest,
        *,
        timeout_s: float,
        headers: Mapping[str, str] | None = None,
        whole: bool = False,
    ) -> GenerationStream:
        """Returns a generation whose tokens arrive as they are made."""

    async def complete(
        self, request: GenerateRequest, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Completion:
        """The whole answer; raises what `submit` and its iteration raise."""
        async with self.submit(request, timeout_s=timeout_s, headers=headers, whole=True) as stream:
            return await stream.completion()

    async def embed(
        self, request: GenerateRequest, *, timeout_s: float, headers: Mapping[str, str] | None = None
    ) -> Embedding:
        """The embedding of a prompt; raises what `submit` and its iteration raise.

        Args:
            request: The prompt; `embedding` says how it is pooled, the default if it has none.
            timeout_s: The deadline from now.
            headers: Travel with the request.
        """
        if request.embedding is None:
            request = msgspec.structs.replace(request, embedding=EmbeddingOptions())
        answer = await self.complete(request, timeout_s=timeout_s, headers=headers)
        return Embedding(answer.request_id, answer.group, answer.choices[0].embedding, answer.usage)

    async def list_models(self, *, timeout_s: float = 2.0) -> list[ModelCard]:
        """The models that can be asked now; raises what `model_list.list_models` raises."""
        return (await self.known_models(timeout_s=timeout_s)).models

    async def known_models(self, *, timeout_s: float = 2.0, tenant: str = "") -> ModelList:
        """The same, and those whose groups are all away; with `tenant` only what that tenant may use."""
        return await model_list.known_models(
            self.bus, timeout_s=timeout_s, caller=self.caller, wait_s=self.wait_s, tenant=tenant
        )

    @property
    def models(self) -> ModelsClient:
        """The models that hosts offer; managing them is for operators and for our services."""
        return ModelsClient(self.bus, caller=self.caller, wait_s=self.wait_s)

    @property
    def adapters(self) -> AdaptersClient:
        """The adapters of models; loading and unloading them is for operators and for our services."""
        return AdaptersClient(self.bus, caller=self.caller)

    async def tokenize(self, query: TokenizeQuery, *, timeout_s: float) -> Tokenized:
        """The tokens of a prompt; raises what `token_calls.tokenize` raises."""
        return await token_calls.tokenize(
            self.bus, query, timeout_s=timeout_s, caller=self.caller, wait_s=min(self.wait_s, timeout_s)
        )

    async def detokenize(self, query: DetokenizeQuery, *, timeout_s: float) -> Detokenized:
        """The text of tokens; raises what `token_calls.detokenize` raises."""
        return await token_calls.detokenize(
            self.bus, query, timeout_s=timeout_s, caller=self.caller, wait_s=min(self.wait_s, timeout_s)
        )
