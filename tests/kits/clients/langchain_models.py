"""LangChain's standard tests of chat models, with its OpenAI and Anthropic classes pointed at a stack.

What the model has no input for (images, audio, PDF files) LangChain's own flags skip, with a reason.
"""

from collections.abc import Sequence
from typing import Any, cast

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from tests.kits.clients.served import KEY, Served

_MOST_TOKENS = 512  # of answers whose end the model finds by itself; the others need few
_FEW_TOKENS = 64
_SEED = 5  # without one, a string in fifty goes on to the limit and the answer is cut
_OF_INSTRUCTIONS = ("tool", "structured", "json_mode", "agent")
# each asynchronous test has its own event loop, but LangChain keeps its connections for the whole process
_ONE_SHOT = {"Connection": "close"}


class SerialChatOpenAI(ChatOpenAI):  # type: ignore[misc]  # not followed by mypy
    """Binds tools for one call an answer: a small model repeats its call."""

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any) -> Any:
        return super().bind_tools(tools, tool_choice=tool_choice, **{"parallel_tool_calls": False, **kwargs})


class SerialChatAnthropic(ChatAnthropic):  # type: ignore[misc]  # not followed by mypy
    """The same for Anthropic's class."""

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any) -> Any:
        return super().bind_tools(tools, tool_choice=tool_choice, **{"parallel_tool_calls": False, **kwargs})


class _TextModelTests(ChatModelIntegrationTests):  # type: ignore[misc]  # not followed by mypy
    """The standard tests, with the address of the stack in the parameters of the model."""

    served: Served
    has_strings: bool  # that the model has to end; at temperature 0 a small one repeats itself without end

    @property
    def model_override_value(self) -> str:
        return self.served.model

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def max_tokens(self) -> int:
        return _MOST_TOKENS if self.has_strings else _FEW_TOKENS

    @pytest.mark.xfail(
        reason="with the choice its own, SmolLM2 of 135 M parameters calls no tool but answers"
    )
    def test_agent_loop(self, model: BaseChatModel) -> None:
        super().test_agent_loop(model)

    @pytest.fixture(autouse=True)
    def _stack(self, served: Served, request: pytest.FixtureRequest) -> None:
        self.served, name = served, request.node.name
        self.has_strings = "structured" in name or "json_mode" in name
        if served.is_demo and any(part in name for part in _OF_INSTRUCTIONS):
            pytest.skip("the demo model reads no instructions; pull one: ryz models pull smollm2-135m")

    @pytest.fixture
    def benchmark(self) -> None:
        """A fixture of a plugin, which `test_stream_time` names before it looks whether it is to run."""

    @pytest.fixture
    def vcr(self) -> None:
        """Likewise."""


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")  # LangChain's own types
@pytest.mark.filterwarnings("ignore:Received a Pydantic BaseModel V1 schema:UserWarning")
class LangChainOpenAITests(_TextModelTests):
    """`ChatOpenAI` on chat completions."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return cast(type[BaseChatModel], SerialChatOpenAI)

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": self.served.model, "base_url": f"{self.served.url}/v1", "api_key": KEY, "temperature": 0,
            "frequency_penalty": 1, "max_tokens": self.max_tokens, "max_retries": 0, "stream_usage": True,
            "default_headers": _ONE_SHOT,
        }  # fmt: skip

    @property
    def supports_json_mode(self) -> bool:
        return True


class LangChainAnthropicTests(_TextModelTests):
    """`ChatAnthropic` on messages."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return cast(type[BaseChatModel], SerialChatAnthropic)

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": self.served.model, "base_url": self.served.url, "api_key": KEY,
            "temperature": 1 if self.has_strings else 0, "max_tokens": self.max_tokens, "max_retries": 0,
            "default_headers": _ONE_SHOT, "model_kwargs": {"extra_body": {"seed": _SEED}},
        }  # fmt: skip
