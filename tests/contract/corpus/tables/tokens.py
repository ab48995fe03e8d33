"""Embeddings, tokens of texts, models, and what the gateway tells of itself."""

from tests.contract.corpus.exchange import table
from tests.contract.corpus.senders.http import Http
from tests.contract.corpus.tables.bodies import EMBEDDINGS, HELLO, JSON, TOOLS, posts


def embed(**fields: object) -> JSON:
    """The body of an embedding, short enough to be read."""
    return {"model": "demo", "input": "Hello", "dimensions": 4} | fields


TABLE = table(
    "tokens",
    {
        **posts(
            EMBEDDINGS,
            {
                "an embedding": embed(),
                "several": embed(input=["Hello", "World"]),
                "of token ids": embed(input=[5, 6, 7]),
                "of several lists of ids": embed(input=[[5], [6, 7]]),
                "as bytes": embed(encoding_format="base64"),
                "the mean": embed(pooling="mean"),
                "not normalized": embed(normalize=False),
                "all dimensions": {"model": "demo", "input": "Hello", "encoding_format": "base64"},
                "truncated": embed(input="one two three four", truncate_prompt_tokens=2),
                "another name of the model": embed(model="nickname"),
                "with an unknown field": embed(frobnicate=1, user="ada"),
                "of nothing": embed(input=[]),
                "of an empty text": embed(input=["Hello", ""]),
                "of a number": embed(input=7.5),
                "too many dimensions": embed(dimensions=4000),
                "an unknown encoding": embed(encoding_format="hex"),
                "by an unknown model": embed(model="nobody"),
                "of a token that is none": embed(input=[999_999]),
                "of a text that is too long": embed(input="word " * 4000),
            },
        ),
        **posts(
            "/tokenize",
            {
                "tokens of a prompt": {"model": "demo", "prompt": "The quick brown fox"},
                "tokens without the tokenizer's own": {
                    "model": "demo",
                    "prompt": "fox",
                    "add_special_tokens": False,
                },
                "tokens with their texts": {"model": "demo", "prompt": "Grüße 🌦", "return_token_strs": True},
                "tokens of messages": {"model": "demo", "messages": HELLO},
                "tokens of messages alone": {
                    "model": "demo",
                    "messages": HELLO,
                    "add_generation_prompt": False,
                },
                "tokens of messages with tools": {"model": "demo", "messages": HELLO, "tools": TOOLS},
                "tokens of an answer that goes on": {
                    "model": "demo",
                    "messages": [*HELLO, {"role": "assistant", "content": "The"}],
                    "continue_final_message": True,
                },
                "tokens of both": {"model": "demo", "messages": HELLO, "prompt": "x"},
                "tokens of neither": {"model": "demo"},
                "tokens by an unknown model": {"model": "nobody", "prompt": "x"},
                "tokens with an unknown field": {"model": "demo", "prompt": "x", "frobnicate": 1},
            },
        ),
        **posts(
            "/detokenize",
            {
                "a text": {"model": "demo", "tokens": [300, 301, 302]},
                "a text with special tokens": {"model": "demo", "tokens": [0, 5, 1]},
                "no text": {"model": "demo", "tokens": []},
                "a text of a token that is none": {"model": "demo", "tokens": [999_999]},
                "a text of a wrong type": {"model": "demo", "tokens": ["x"]},
            },
        ),
        "models": Http("/v1/models"),
        "models with the key of probes": Http("/v1/models", key="key-of-probes"),
        "models without a key": Http("/v1/models", key=""),
        "a model": Http("/v1/models/demo"),
        "a model by another name": Http("/v1/models/gpt-5"),
        "no such model": Http("/v1/models/nobody"),
        "models for Anthropic's clients": Http(
            "/v1/models", key="", headers={"x-api-key": "key-of-tokens", "anthropic-version": "2023-06-01"}
        ),
        "the process": Http("/live", key=""),
        "its health": Http("/health", key=""),
        "its readiness": Http("/ready", key=""),
        "its name, with a key": Http("/", headers={"Accept": "application/json"}),
        "its name, without a key": Http("/", key="", headers={"Accept": "application/json"}),
    },
)
