"""SDKs of OpenAI and Anthropic, LangChain's standard tests, Triton's client: one stack with a real model."""

from collections.abc import Iterator

import pytest

from tests.kits.clients.anthropic_messages import AnthropicMessagesTests, AnthropicToolTests
from tests.kits.clients.langchain_models import LangChainAnthropicTests, LangChainOpenAITests
from tests.kits.clients.open_responses import OpenResponsesCases
from tests.kits.clients.open_responses_socket import OpenResponsesSocketCases
from tests.kits.clients.open_responses_tools import OpenResponsesToolCases
from tests.kits.clients.openai_batches import OpenAIBatchTests
from tests.kits.clients.openai_chat import OpenAIChatTests
from tests.kits.clients.openai_responses import OpenAIResponsesTests
from tests.kits.clients.openai_tools import OpenAIResponsesToolTests, OpenAIToolTests
from tests.kits.clients.served import Served, serving
from tests.kits.clients.triton_client import TritonClientTests


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("clients-stack")) as running:
        yield running


class TestOpenAIChat(OpenAIChatTests):
    """See the base class."""


class TestOpenAIBatches(OpenAIBatchTests):
    """See the base class."""


class TestOpenAITools(OpenAIToolTests):
    """See the base class."""


class TestOpenAIResponsesTools(OpenAIResponsesToolTests):
    """See the base class."""


class TestOpenAIResponses(OpenAIResponsesTests):
    """See the base class."""


class TestOpenResponses(OpenResponsesCases):
    """See the base class."""


class TestOpenResponsesTools(OpenResponsesToolCases):
    """See the base class."""


class TestOpenResponsesSocket(OpenResponsesSocketCases):
    """See the base class."""


class TestAnthropicMessages(AnthropicMessagesTests):
    """See the base class."""


class TestAnthropicTools(AnthropicToolTests):
    """See the base class."""


class TestTritonClient(TritonClientTests):
    """See the base class."""


class TestLangChainOpenAI(LangChainOpenAITests):
    """See the base class."""


class TestLangChainAnthropic(LangChainAnthropicTests):
    """See the base class."""
