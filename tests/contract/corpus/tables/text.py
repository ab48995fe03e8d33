"""Text completions."""

from tests.contract.corpus.exchange import table
from tests.contract.corpus.senders.http import Http
from tests.contract.corpus.tables.bodies import IDS, TEXT, USAGE, VARIANTS, posts, streamed_and_whole, text

TABLE = table(
    "text",
    {
        **streamed_and_whole(TEXT, {name: text(**fields) for name, fields in VARIANTS.items()}),
        **streamed_and_whole(
            TEXT,
            {
                "several prompts": text(prompt=["One", "Two", "Three"], max_tokens=2),
                "token ids as the prompt": text(prompt=[5, 6, 7, 8]),
                "prompts of both kinds": text(prompt=["One", [5, 6]], max_tokens=2),
                "an echo": text(echo=True),
                "an echo with log probabilities": text(echo=True, logprobs=1),
                "an echo alone": text(echo=True, max_tokens=0, logprobs=0),
                "log probabilities": text(logprobs=2),
                "log probabilities of two choices": text(logprobs=0, n=2),
                "prompts and choices": text(prompt=["One", "Two"], n=2, max_tokens=2),
                "the best of as many": text(n=2, best_of=2),
                "another name of the model": text(model="gpt-3.5-turbo-instruct"),
                "other words": text(model="words"),
                "a length": text(model="cut"),
            },
        ),
        **posts(
            TEXT,
            {
                "usage in the stream": text(**USAGE),
                "event ids": text(**IDS),
                "log probabilities of the prompt": text(prompt_logprobs=1),
                "the default of the limit": {"model": "demo", "prompt": "Once"},
                "an empty prompt": text(prompt=""),
                "no prompts": text(prompt=[]),
                "best of more": text(n=1, best_of=3),
                "a suffix": text(suffix="end"),
                "event ids of several prompts": text(prompt=["One", "Two"], **IDS),
            },
        ),
        "usage of several prompts in the stream": Http(
            TEXT, text(prompt=["One", "Two"], max_tokens=2, **USAGE), by_choice=True
        ),
    },
)
