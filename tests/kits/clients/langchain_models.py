"""LangChain's standard tests of chat models, with its OpenAI and Anthropic classes pointed at a stack.

What the model has no input for (images, audio, PDF files) LangChain's own flags skip, with a reason.
"""

from typing import Any, cast

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

from tests.kits.clients.served import KEY, Served

_MAX_TOKENS = 96
# each asynchronous test has its own event loop, but LangChain keeps its connections for the whole process
_ONE_SHOT = {"Connection": "close"}


class StrictChatOpenAI(ChatOpenAI):  # type: ignore[misc]  # not followed by mypy
    """Binds tools strictly and one call at a time: a small model ignores a wish."""

    def bind_tools(self, *args: Any, **kwargs: Any) -> Any:
        return super().bind_tools(*args, **{"strict": True, "parallel_tool_calls": False, **kwargs})


class StrictChatAnthropic(ChatAnthropic):  # type: ignore[misc]  # not followed by mypy
    """The same for Anthropic's class."""

    def bind_tools(self, *args: Any, **kwargs: Any) -> Any:
        return super().bind_tools(*args, **{"strict": True, "parallel_tool_calls": False, **kwargs})


class _TextModelTests(ChatModelIntegrationTests):  # type: ignore[misc]  # not followed by mypy
    """The standard tests, with the address of the stack in the parameters of the model."""

    served: Served

    @property
    def model_override_value(self) -> str:
        return self.served.model

    @pytest.mark.xfail(reason="a model of 135 M parameters does not choose a tool by itself")
    def test_agent_loop(self, model: BaseChatModel) -> None:
        super().test_agent_loop(model)

    @pytest.fixture(autouse=True)
    def _stack(self, served: Served) -> None:
        self.served = served


@pytest.mark.filterwarnings("ignore:Received a Pydantic BaseModel V1 schema:UserWarning")
class LangChainOpenAITests(_TextModelTests):
    """`ChatOpenAI` on chat completions."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return cast(type[BaseChatModel], StrictChatOpenAI)

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": self.served.model, "base_url": f"{self.served.url}/v1", "api_key": KEY, "temperature": 0,
            "max_tokens": _MAX_TOKENS, "max_retries": 0, "default_headers": _ONE_SHOT, "stream_usage": True,
        }  # fmt: skip

    @property
    def supports_json_mode(self) -> bool:
        return True


class LangChainAnthropicTests(_TextModelTests):
    """`ChatAnthropic` on messages."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return cast(type[BaseChatModel], StrictChatAnthropic)

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": self.served.model, "base_url": self.served.url, "api_key": KEY, "temperature": 0,
            "max_tokens": _MAX_TOKENS, "max_retries": 0, "default_headers": _ONE_SHOT,
        }  # fmt: skip
