"""`/v1/embeddings` over real HTTP with a whole leader behind it, and the errors that it gives."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, BadRequestError

from services.worker.null.prompts import HIDDEN_SIZE, null_embedding
from shared.messages import EmbeddingOptions
from tests.kits.gateway.gateway import Gateway
from tests.kits.gateway.with_leader import gateway_with_leader
from tests.kits.worker.leader import null_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATH = "/v1/embeddings"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway() -> AsyncIterator[Gateway]:
    async with gateway_with_leader(max_embedding_inputs=100) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def sdk(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    gateway.fleet.requests.clear()
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def vector_of(text: str | list[int], **options: Any) -> list[float]:
    ids = list(text.encode()) if isinstance(text, str) else text
    vector: list[float] = np.frombuffer(null_embedding(ids, EmbeddingOptions(**options)), "<f4").tolist()
    return vector


async def test_one_text(gateway: Gateway, sdk: AsyncOpenAI) -> None:
    answer = await sdk.embeddings.create(model="demo", input="Grüße", user="me")  # base64 on the way
    (one,) = answer.data
    assert (one.embedding, one.index, one.object) == (vector_of("Grüße"), 0, "embedding")
    assert (answer.object, answer.model) == ("list", "demo")
    assert answer.usage.model_dump() == {"prompt_tokens": 7, "total_tokens": 7}
    (request,) = gateway.fleet.requests
    assert request.session is None


async def test_many_inputs_keep_their_order(gateway: Gateway, sdk: AsyncOpenAI) -> None:
    texts = [f"text {i} " * (1 + i % 7) for i in range(100)]
    answer = await sdk.embeddings.create(model="demo", input=texts, encoding_format="float", dimensions=5)
    assert [one.embedding for one in answer.data] == [vector_of(text, dimensions=5) for text in texts]
    assert [one.index for one in answer.data] == list(range(100))
    assert answer.usage.prompt_tokens == sum(map(len, texts))
    assert len({request.request_id for request in gateway.fleet.requests}) == 100


async def test_tokens_and_the_fields_that_others_added(sdk: AsyncOpenAI) -> None:
    one = await sdk.embeddings.create(model="demo", input=[5, 6, 7])
    assert one.data[0].embedding == vector_of([5, 6, 7])
    several = await sdk.embeddings.create(
        model="demo",
        input=[[5, 6, 7], [8] * 300],
        extra_body={"pooling": "mean", "normalize": False, "truncate_prompt_tokens": 2},
    )
    options = {"pooling": "mean", "normalize": False}
    assert [each.embedding for each in several.data] == [
        vector_of(ids, **options) for ids in ([6, 7], [8, 8])
    ]
    assert np.linalg.norm(several.data[0].embedding) > 2 > np.linalg.norm(one.data[0].embedding)
    assert several.usage.prompt_tokens == 4


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"input": ""}, "input", "must not be empty"),
        ({"input": []}, "input", "must not be empty"),
        ({"input": ["a", "b", "c", ""]}, "input[3]", "must not be empty"),
        ({"input": [[1], []]}, "input[1]", "must not be empty"),
        ({"input": ["a", 3]}, "input[1]", "a string or a list"),
        ({"input": [1, -1]}, "input", "a string or a list"),
        ({"input": {}}, "input", "must be a string"),
        ({"input": ["a"] * 101}, "input", "100 inputs"),
        ({"input": "a", "dimensions": HIDDEN_SIZE + 1}, "dimensions", "at most 64"),
        ({"input": "a", "dimensions": 0}, "dimensions", "1"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "base64"),
        ({"input": ["a", "b", "x" * 3000]}, "input[2]", "2048 tokens"),
        ({"input": [[1], [1, 257]]}, "input[1]", "vocabulary"),
        ({"input": "x" * 3000}, "input", "2048 tokens"),
    ],
)
async def test_errors_name_the_input(
    gateway: Gateway, fields: dict[str, Any], param: str, words: str
) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        answer = await http.post(PATH, json={"model": "demo", **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert words in error["message"]


async def test_a_body_of_floats_is_the_same_as_base64(gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        body = {"model": "demo", "input": "hello"}
        plain = (await http.post(PATH, json=body)).json()["data"][0]["embedding"]
        packed = (await http.post(PATH, json=body | {"encoding_format": "base64"})).json()["data"][0]
        document = json.loads((await http.get("/openapi.json")).content)
    assert np.frombuffer(base64.b64decode(packed["embedding"]), "<f4").tolist() == plain
    assert np.linalg.norm(plain) == pytest.approx(1)
    assert PATH in document["paths"]


async def test_the_sdk_raises_its_own_error(sdk: AsyncOpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        await sdk.embeddings.create(model="demo", input=["a", ""])
    assert caught.value.param == "input[1]"


async def test_a_caller_that_leaves_ends_all_inputs() -> None:
    async with gateway_with_leader(leader={"engine": null_engine(delay_s=0.02)}) as slow:
        async with httpx.AsyncClient(base_url=slow.url) as http:
            # the mean takes nothing from the cache: sixteen at a time take seconds
            body = {"model": "demo", "input": ["x" * 2000] * 50, "pooling": "mean"}
            with pytest.raises(httpx.ReadTimeout):
                await http.post(PATH, json=body, timeout=0.3)
        await slow.wait_idle()
        assert len(slow.fleet.requests) < 50, "the rest was not begun"
