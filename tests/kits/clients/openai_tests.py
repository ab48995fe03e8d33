"""What tests with OpenAI's SDK share."""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.kits.clients.served import KEY, Served


class OpenAITests:
    """Tests with OpenAI's SDK."""

    @pytest.fixture
    def openai(self, served: Served) -> Iterator[OpenAI]:
        with OpenAI(base_url=f"{served.url}/v1", api_key=KEY, max_retries=0, timeout=60) as client:
            yield client
