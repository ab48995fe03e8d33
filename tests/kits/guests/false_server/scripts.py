"""What the false server says: the tokens of an answer, and the events of the API that it imitates."""

import codecs
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from services.worker.text.tokenizer import Tokenizer
from tests.kits.guests.false_server.forms import form_of, formed_answer

# vllm: token ids both ways, and a count in each event; llama.cpp: its own API; text: texts only, as
# llama-cpp-python; strict: as text, and fields that are not OpenAI's are refused
Style = Literal["vllm", "llama.cpp", "text", "strict"]
DEFAULT_TEXT = "The quick brown fox (狐) jumps over 12 lazy dogs in Zürich. \U0001f642 "
_FORCED = 50.0  # a bias that no other token is beyond
Object = dict[str, Any]


@dataclass(slots=True)
class Voice:
    """What is the same for all answers.

    Attributes:
        answer: The endless answer, which is repeated.
        end_id: The token that ends an answer.
        num_tokens: Tokens after which answers end by themselves; 0: only at their limit.
        follows: It follows the form that a request asks for; else it says what it always says.
        reply: Returns the whole answer to the text of a prompt; None: the answer is the endless one.
        context_length: What it says of its longest sequence, in tokens.
        kv_blocks: What vLLM says of its KV cache, in blocks of 16 tokens.
    """

    style: Style
    tokenizer: Tokenizer
    answer: list[int]
    end_id: int
    model: str
    num_tokens: int = 0
    follows: bool = True
    reply: Callable[[str], str | None] = lambda _: None
    context_length: int = 4096
    kv_blocks: int = 1000

    def prompt_ids(self, prompt: object) -> list[int]:
        """The tokens of a prompt in either form."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special_tokens=False)
        assert isinstance(prompt, list)
        return prompt

    def next_tokens(self, so_far: int, count: int) -> list[int]:
        """The tokens of a sequence that has so many."""
        return [self.answer[index % len(self.answer)] for index in range(so_far, so_far + count)]


@dataclass(slots=True)
class Script:
    """One answer as it would be if nothing went wrong.

    Attributes:
        events: JSON texts, in order; the last one says why the answer ends, if `finished`.
        after: Number of events before something goes wrong.
    """

    voice: Voice
    body: Object
    events: list[Object] = field(default_factory=list)
    after: int = 3
    prompt_tokens: int = 0

    def frames(self, first: int = 0, last: int | None = None) -> list[bytes]:
        """Events as bytes of the stream."""
        return [frame(event) for event in self.events[first:last]]

    def longer(self, more: int) -> "Script":
        """The script of a request for so many tokens more."""
        limit = limit_field(self.voice)
        return write_script(self.voice, {**self.body, limit: self.body[limit] + more}, self.after)

    @property
    def done(self) -> bytes:
        """What comes behind the last event."""
        return b"" if self.voice.style == "llama.cpp" else b"data: [DONE]\n\n"


def frame(event: object) -> bytes:
    """An event as servers write it."""
    return b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"


def write_script(voice: Voice, body: Object, after: int) -> Script:
    """Makes the script of a request.

    Raises:
        ValueError: The form that it asks for cannot be read.
    """
    prompt = voice.prompt_ids(body["prompt"])
    limit = int(body[limit_field(voice)])
    ends = 0 < voice.num_tokens <= limit
    ids = voice.next_tokens(len(prompt), min(limit, voice.num_tokens) if ends else limit)
    if forced := _forced(body.get("logit_bias")):
        ids = [forced] * limit
        ends = False
    text = voice.reply(voice.tokenizer.decode(prompt))
    if text is not None:
        ids, ends = voice.tokenizer.encode(text, add_special_tokens=False), True
    if ends:
        ids.append(voice.end_id)
        ids = ids[:limit]
        ends = ids[-1] == voice.end_id
    if text is None and voice.follows and (form := form_of(voice.style, body)):
        spaced = "json_schema" in body
        ids = formed_answer(form, voice.tokenizer, voice.end_id, limit, spaced=spaced)
        ends = ids[-1] == voice.end_id
    script = Script(voice, body, after=after, prompt_tokens=len(prompt))
    make = _native_events if voice.style == "llama.cpp" else _openai_events
    script.events = make(voice, body, ids, ends, len(prompt))
    return script


def limit_field(voice: Voice) -> str:
    """The field of a request with the most tokens of the answer."""
    return "n_predict" if voice.style == "llama.cpp" else "max_tokens"


def _forced(biases: object) -> int:
    pairs = biases.items() if isinstance(biases, dict) else biases if isinstance(biases, list) else ()
    return next((int(token_id) for token_id, bias in pairs if float(bias) >= _FORCED), 0)


def _texts(voice: Voice, ids: list[int]) -> list[str]:
    """The text that is complete with each token."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [decoder.decode(voice.tokenizer.token_bytes(token_id)) for token_id in ids]


def _openai_events(voice: Voice, body: Object, ids: list[int], ends: bool, num_prompt: int) -> list[Object]:
    by_ids = voice.style == "vllm"
    events = list[Object]()
    for number, (token_id, text) in enumerate(zip(ids, _texts(voice, ids), strict=True), 1):
        if not by_ids and not text:
            continue
        choice: Object = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
        event: Object = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": voice.model}
        event["choices"] = [choice]
        if by_ids and body.get("return_token_ids"):
            choice["token_ids"] = [token_id]
        if by_ids and body.get("logprobs") is not None:
            choice["logprobs"] = _openai_logprobs(voice, token_id)
        if by_ids and (body.get("stream_options") or {}).get("continuous_usage_stats"):
            event["usage"] = {"prompt_tokens": num_prompt, "completion_tokens": number}
        events.append(event)
    reason = "stop" if ends else "length"
    if by_ids:
        events[-1]["choices"][0]["finish_reason"] = reason
    else:
        last: Object = {"index": 0, "text": "", "logprobs": None, "finish_reason": reason}
        events.append({"id": "cmpl-1", "object": "text_completion", "choices": [last]})
    return events


def _openai_logprobs(voice: Voice, token_id: int) -> Object:
    name, other = f"token_id:{token_id}", f"token_id:{voice.end_id}"
    return {
        "tokens": [name],
        "token_logprobs": [-0.25],
        "top_logprobs": [{name: -0.25, other: -3.0}],
        "text_offset": [0],
    }


def _native_events(voice: Voice, body: Object, ids: list[int], ends: bool, num_prompt: int) -> list[Object]:
    events = list[Object]()
    shown = ids[:-1] if ends else ids
    for number, (token_id, text) in enumerate(zip(shown, _texts(voice, shown), strict=True), 1):
        if not text:
            continue  # the ids of tokens that end within a character are left out
        event = {"index": 0, "content": text, "tokens": [token_id], "stop": False}
        event |= {"tokens_predicted": number, "tokens_evaluated": num_prompt}
        if body.get("n_probs"):
            top = [{"id": token_id, "logprob": -0.25}, {"id": voice.end_id, "logprob": -3.0}]
            event["completion_probabilities"] = [{"id": token_id, "logprob": -0.25, "top_logprobs": top}]
        events.append(event)
    last: Object = {"index": 0, "content": "", "tokens": [], "stop": True, "truncated": False}
    last |= {"stop_type": "eos" if ends else "limit", "tokens_predicted": len(ids)}
    events.append({**last, "tokens_evaluated": num_prompt})
    return events
