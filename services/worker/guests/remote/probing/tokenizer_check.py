"""Compares the server's tokenizer with ours, and finds out what it puts before texts."""

from services.worker.guests.remote.options import RemoteOptions
from services.worker.guests.remote.probing.small_answers import SmallAnswers
from services.worker.guests.remote.wire.dialect import Dialect
from services.worker.rank_protocol.failures import EngineRefused
from services.worker.text.tokenizer import Tokenizer

TEXTS = (
    "Hello, world! There are 12345 tokens in 67 boxes.",
    "def area(r):\n    return 3.14159 * r ** 2  # a circle\n",
    "Grüße aus Zürich und 東京, привет \U0001f642",
)


async def first_token_added(
    answers: SmallAnswers, dialect: Dialect, options: RemoteOptions, tokenizer: Tokenizer
) -> int | None:
    """Return the token that the server puts before a prompt that is text; None: it puts none there.

    Raises:
        EngineRefused: Its tokenizer is another one, or it puts more around a text.
        ServerError: It does not answer.
    """
    found = set[int | None]()
    for text in TEXTS:
        plain = tokenizer.encode(text, add_special_tokens=False)
        whole = tokenizer.encode(text, add_special_tokens=True)
        begun = len(whole) == len(plain) + 1 and whole[1:] == plain
        count = await answers.count(dialect, text)
        if count < 0:
            raise EngineRefused(
                f"the server at {options.host} does not say how many tokens a prompt has, so that its "
                "tokenizer cannot be compared with that of the group; use a server that reports `usage`"
            )
        if count == len(plain):
            found.add(None)
        elif begun and count == len(whole):
            found.add(whole[0])
        else:
            raise _other(options, f"counts {count} tokens in a text that has {len(plain)}")
    if len(found) > 1:
        raise _other(options, "counts some texts with and some without a first token")
    return found.pop()


async def check_token_ids(answers: SmallAnswers, options: RemoteOptions, tokenizer: Tokenizer) -> bool:
    """Compare token by token where the server has an endpoint for it.

    Returns:
        False if it has none.

    Raises:
        EngineRefused: Its tokenizer is another one.
    """
    compared = False
    for text in TEXTS:
        theirs = await _tokenized(answers, options, text)
        if theirs is None:
            return compared
        compared = True
        ours = tokenizer.encode(text, add_special_tokens=False)
        # some endpoints put the first token of a sequence before the text, and cannot be asked not to
        if theirs != ours and theirs[1:] != ours:
            at = next((i for i, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]), 0)
            raise _other(options, f"reads {text!r} as other tokens from number {at} on")
    return compared


async def _tokenized(answers: SmallAnswers, options: RemoteOptions, text: str) -> list[int] | None:
    """Return the server's tokens of a text, by the endpoints of llama.cpp, vLLM and llama-cpp-python."""
    body: dict[str, object] = {
        "model": options.model,
        "content": text,  # llama.cpp
        "add_special": False,
        "parse_special": True,
        "prompt": text,  # vLLM
        "add_special_tokens": False,
    }
    found = await answers.tokenized("/tokenize", body)
    if found is None:
        found = await answers.tokenized("/extras/tokenize", {"model": options.model, "input": text})
    return found


def _other(options: RemoteOptions, why: str) -> EngineRefused:
    return EngineRefused(
        f"the server at {options.host} {why} by the group's tokenizer: it has another model, or puts a "
        "template around prompts; give the group the model directory or GGUF file of the model that the "
        "server has loaded, and use a server whose completions are raw"
    )
