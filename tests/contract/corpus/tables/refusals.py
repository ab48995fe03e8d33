"""What is refused over HTTP: demands, bodies, keys, methods, hosts and origins."""

from tests.contract.corpus.exchange import table
from tests.contract.corpus.senders.http import Http
from tests.contract.corpus.tables.bodies import CHAT, HELLO, RESPONSES, TEXT, TOOLS, chat, posts, text
from tests.kits.clients.bad_demands import BAD_DEMANDS

_MAX = 4 * 1024 * 1024  # `RYZ_MAX_BODY_BYTES`


def raw(content: str, more: str = '"max_tokens": 3') -> bytes:
    """A body that no encoder would write; `content` is JSON."""
    return f'{{"model": "demo", "messages": [{{"role": "user", "content": {content}}}], {more}}}'.encode()


DEMANDS = table("demands", {one.name: Http(one.path, {"model": "demo", **one.body}) for one in BAD_DEMANDS})
TABLE = table(
    "refusals",
    {
        **posts(
            CHAT,
            {
                "an unknown model": chat(model="nobody"),
                "an unknown model, streamed": chat(model="nobody", stream=True),
                "no model": {"messages": HELLO},
                "a model of a wrong type": chat(model=7),
                "a model with a control character": chat(model="a\nb"),
                "no messages": {"model": "demo"},
                "an empty list of messages": chat(messages=[]),
                "an unknown role": chat(messages=[{"role": "wizard", "content": "x"}]),
                "a message without content": chat(messages=[{"role": "user"}]),
                "a message of a wrong type": chat(messages=["Hello"]),
                "a wrong type": chat(temperature="hot"),
                "a number that is too large": chat(temperature=3),
                "a limit of zero": chat(max_tokens=0),
                "a limit that is negative": chat(max_tokens=-1),
                "a limit of a wrong type": chat(max_tokens=1.5),
                "too many choices": chat(n=17),
                "too many stop strings": chat(stop=["x"] * 17),
                "an empty stop string": chat(stop=""),
                "a bias of a wrong key": chat(logit_bias={"a": 1}),
                "a bias that is too large": chat(logit_bias={"5": 101}),
                "a bias of a token that is none": chat(logit_bias={"999999": 1}),
                "a seed of a wrong type": chat(seed="7"),
                "several wrong fields": chat(temperature="hot", n=0, stop=7),
                "a misspelt field": chat(temperatur=1),
                "a refused field": chat(modalities=["audio"]),
                "older functions": chat(functions=[{"name": "f"}]),
                "a wrong choice of tools": chat(tools=TOOLS, tool_choice="sometimes"),
                "a wrong form of a choice": chat(tools=TOOLS, tool_choice={"type": "function"}),
                "tools of a wrong type": chat(tools={"a": 1}),
                "too many tokens": chat(messages=[{"role": "user", "content": "word " * 4000}]),
                "too many tokens, streamed": chat(
                    messages=[{"role": "user", "content": "word " * 4000}], stream=True
                ),
                "a limit beyond the context": chat(max_tokens=100_000),
                "a prompt of ids beside messages": chat(prompt_token_ids=[5]),
                "a token that is none": {"model": "demo", "prompt_token_ids": [999_999]},
                "continued without an answer": chat(continue_final_message=True),
                "continued and begun": chat(
                    messages=[*HELLO, {"role": "assistant", "content": "x"}],
                    continue_final_message=True,
                    add_generation_prompt=True,
                ),
                "a continued form that does not fit": chat(
                    messages=[*HELLO, {"role": "assistant", "content": "no"}],
                    continue_final_message=True,
                    guided_choice=["yes"],
                ),
                "options without a stream": chat(stream_options={"include_usage": True}),
                "a service tier that is none": chat(service_tier="golden"),
                "a time limit of zero": chat(timeout=0),
                "log probabilities of too many": chat(logprobs=True, top_logprobs=21),
                "ends ignored under a form": chat(guided_choice=["a"], ignore_eos=True),
                "broken JSON": b'{"model": "demo", "messages": [',
                "no JSON": b"\xff\xfe",
                "an empty body": b"",
                "a list": b"[]",
                "a number": b"7",
                "a field twice": raw('"x"', '"model": "words"'),
                "no number": b'{"model": "demo", "messages": [], "temperature": NaN}',
                "nested deeply": b'{"model": "demo", "messages": ' + b"[" * 3000,
                "half a pair of surrogates": raw(r'"\ud83c"'),
                "a null character": raw(r'"a\u0000b"'),
                "too many values": b'{"model": "demo", "messages": [' + b"0," * 2_000_000 + b"0]}",
            },
        ),
        **posts(
            TEXT,
            {
                "a text without a prompt": {"model": "demo"},
                "a prompt of a wrong type": text(prompt=7),
                "prompts that are too many": text(prompt=["x"] * 65),
                "a text that is too long": text(prompt="word " * 4000),
                "log probabilities of a wrong type": text(logprobs=True),
                "a text by an unknown model": text(model="nobody"),
            },
        ),
        "a body that is too large": Http(CHAT, b"x", headers={"Content-Length": str(_MAX + 1)}),
        "a wrong length": Http(CHAT, b"x", headers={"Content-Length": "many"}),
        "another type": Http(CHAT, b"{}", headers={"Content-Type": "text/plain"}),
        "no type": Http(CHAT, chat(), headers={"Content-Type": None}),
        "a type with parameters": Http(
            CHAT, chat(), headers={"Content-Type": "application/json; charset=utf-8"}
        ),
        "an encoding of the body": Http(CHAT, chat(), headers={"Content-Encoding": "gzip"}),
        "the body is awaited": Http(CHAT, chat(max_tokens=1), headers={"Expect": "something"}),
        "no key": Http(CHAT, chat(), key=""),
        "a wrong key": Http(CHAT, chat(), key="key-of-nobody"),
        "another scheme": Http(CHAT, chat(), key="", headers={"Authorization": "Basic YTpi"}),
        "the header of Anthropic's clients": Http(
            CHAT, chat(), key="", headers={"x-api-key": "key-of-refusals"}
        ),
        "the key twice": Http(CHAT, chat(), headers={"authorization": "Bearer key-of-chat"}),
        "no key for responses": Http(RESPONSES, {"model": "demo", "input": "x"}, key=""),
        "no key for files": Http("/v1/files", key=""),
        "no key for batches": Http("/v1/batches", key=""),
        "no key for tokens": Http("/tokenize", {"model": "demo", "prompt": "x"}, key=""),
        "no key for embeddings": Http("/v1/embeddings", {"model": "demo", "input": "x"}, key=""),
        "an id of the request": Http(CHAT, chat(max_tokens=1), headers={"X-Request-Id": "mine-1"}),
        "an id of a refused request": Http(CHAT, chat(max_tokens=0), headers={"X-Request-Id": "mine-2"}),
        "an id that is none": Http(CHAT, chat(max_tokens=1), headers={"X-Request-Id": "two words"}),
        "a trace": Http(
            CHAT,
            chat(max_tokens=1),
            headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        ),
        "GET where POST is meant": Http(CHAT),
        "DELETE where POST is meant": Http(CHAT, method="DELETE"),
        "PUT of a file": Http("/v1/files", b"", method="PUT"),
        "HEAD of the models": Http("/v1/models", method="HEAD"),
        "OPTIONS": Http(CHAT, method="OPTIONS"),
        "no such path": Http("/v1/nothing"),
        "a path nearly right": Http("/v1/chat/completion", chat()),
        "a path of OpenAI's that is not served": Http("/v1/images/generations", {"prompt": "x"}),
        "a path with a slash behind": Http(f"{CHAT}/", chat()),
        "a path without its version": Http("/chat/completions", chat()),
        "another host": Http("/v1/models", headers={"Host": "evil.example"}),
        "a page of another site": Http(CHAT, chat(), headers={"Origin": "https://evil.example"}),
        "a page of another site, without a key": Http(
            CHAT, chat(), key="", headers={"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
        ),
    },
)
