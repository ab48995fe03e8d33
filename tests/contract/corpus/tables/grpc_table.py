"""The Open Inference Protocol: whole answers, streams, sessions, refusals, and what is told of models."""

import json
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tests.contract.corpus.exchange import table
from tests.contract.corpus.senders.grpc_calls import Grpc, Infer
from tests.contract.corpus.tables.bodies import CITY, HELLO, LIMIT_S, TOOLS, Steps

_CHAT = {"messages": json.dumps(HELLO), "max_tokens": 5}
_TEXT = {"text_input": "Once upon", "max_tokens": 5}
_WHOLE: dict[str, Infer] = {
    "a text": Infer(_TEXT),
    "a chat": Infer(_CHAT),
    "an id": Infer(_CHAT, request_id="mine"),
    "two choices": Infer(_CHAT | {"n": 2}),
    "several texts": Infer({"text_input": ["One", "Two"], "max_tokens": 2}),
    "ids as the input": Infer({"input_ids": [5, 6, 7], "max_tokens": 3}),
    "sampling parameters": Infer(
        {
            "text_input": "Once",
            "sampling_parameters": '{"max_tokens": "3", "temperature": 0.5, "stop": ["fox"]}',
        }
    ),
    "Triton's other names": Infer(
        {
            "text_input": "Once",
            "request_output_len": 3,
            "random_seed": 7,
            "runtime_top_k": 2,
            "stop_words": "fox",
        }
    ),
    "parameters": Infer(
        {"text_input": "Once"}, parameters={"max_tokens": 3, "temperature": 0.5, "ignore_eos": True}
    ),
    "the input in the output": Infer(_TEXT | {"exclude_input_in_output": False}),
    "log probabilities": Infer(_TEXT | {"return_log_probs": True}),
    "log probabilities of a chat": Infer(_CHAT | {"return_logprobs": True}),
    "token ids": Infer(_CHAT | {"return_token_ids": True}),
    "some outputs": Infer(_CHAT, outputs=["text_output", "finish_reason"]),
    "the message": Infer(_CHAT, outputs=["message"]),
    "calls": Infer(_CHAT | {"tools": json.dumps(TOOLS)}, model="calls"),
    "reasoning": Infer(_CHAT, model="thinks"),
    "a named tool": Infer(
        {
            "messages": json.dumps(HELLO),
            "max_tokens": 80,
            "tools": json.dumps(TOOLS),
            "tool_choice": '{"type": "function", "function": {"name": "weather"}}',
        }
    ),
    "a schema": Infer({"messages": json.dumps(HELLO), "max_tokens": 40, "guided_json": json.dumps(CITY)}),
    "an answer that goes on": Infer(
        {
            "messages": json.dumps([*HELLO, {"role": "assistant", "content": "The"}]),
            "continue_final_message": True,
            "max_tokens": 3,
        }
    ),
    "fields that are left out": Infer(_CHAT | {"speed": "fast", "frobnicate": 1}),
    "a priority": Infer(_CHAT, parameters={"priority": 3}),
    "another name of the model": Infer(_CHAT, model="gpt-5"),
    "the only version": Infer(_CHAT, version="1"),
    "a session by its sequence": Infer(_CHAT, parameters={"sequence_id": "tea", "sequence_start": True}),
}
_REFUSED: dict[str, Infer] = {
    "an unknown model": Infer(_CHAT, model="nobody"),
    "another version": Infer(_CHAT, version="2"),
    "no input": Infer({"max_tokens": 3}),
    "two inputs": Infer(_CHAT | {"text_input": "x"}),
    "an unknown output": Infer(_CHAT, outputs=["nothing"]),
    "a wrong type": Infer(_CHAT | {"temperature": "hot"}),
    "a misspelt field": Infer(_CHAT | {"temperatur": 1.0}),
    "a field twice": Infer(_CHAT, parameters={"max_tokens": 3}),
    "broken messages": Infer({"messages": "["}),
    "logits": Infer(_TEXT | {"return_context_logits": True}),
    "a late refusal": Infer(_CHAT, model="refuses-late"),
    "a full group": Infer(_CHAT, model="full"),
    "a group that breaks": Infer(_CHAT, model="breaks"),
    "a poisoned request": Infer(_CHAT, model="poisoned"),
    "an id that is too long": Infer(_CHAT, request_id="x" * 1025),
}


def _streamed(infer: Infer) -> Infer:
    return Infer(
        {**infer.inputs, "stream": True}, infer.model, infer.parameters, infer.outputs, infer.request_id
    )


def _stream(*infers: Infer, **options: Any) -> Grpc:
    return Grpc(infers, method="ModelStreamInfer", **options)


def _describe(method: str, message: Any, **options: Any) -> Grpc:
    return Grpc([message], method=method, **options)


def _session(metadata: tuple[tuple[str, str], ...], content: str = "Hello") -> Grpc:
    infer = Infer({"messages": json.dumps([{"role": "user", "content": content}]), "max_tokens": 3})
    return Grpc([infer], metadata=metadata)


_KEYED = (("idempotency-key", "k1"),)
_SINGLE_ONLY = ("several texts",)  # not in pieces with `return`s of their own order
EXCHANGES: dict[str, Steps] = {
    **{name: Grpc([infer]) for name, infer in _WHOLE.items()},
    **{
        f"{name}, streamed": _stream(_streamed(infer), Infer(infer.inputs, infer.model, infer.parameters))
        for name, infer in _WHOLE.items()
        if name not in _SINGLE_ONLY
    },
    **{f"refused: {name}": Grpc([infer]) for name, infer in _REFUSED.items()},
    "refusals on a stream": _stream(*_REFUSED.values()),
    "refusals in pieces": _stream(
        *(
            _streamed(_REFUSED[name])
            for name in ("an unknown model", "a late refusal", "a full group", "a group that breaks")
        )
    ),
    "the first refusal ends the stream": _stream(
        _REFUSED["an unknown model"], metadata=(("triton_grpc_error", "true"),)
    ),
    "a session": [_session((("x-session-id", "a"),)), _session((("x-session-id", "a"),), "And then?")],
    "conditions of a session": [
        _session((("x-session-id", "b"), ("x-session-must-exist", "true"))),
        _session((("x-session-id", "b"), ("if-none-match", "*"))),
        _session((("x-session-id", "b"), ("if-none-match", "*"))),
        _session((("x-session-id", "b"), ("if-match", '"1"'))),
        _session((("x-session-id", "b"), ("x-session-mode", "replace"))),
    ],
    "a sequence on a stream": _stream(
        *(
            Infer(_CHAT, parameters={"sequence_id": "s", "sequence_start": first, "sequence_end": not first})
            for first in (True, False)
        )
    ),
    "repeats": [
        Grpc([_WHOLE["a chat"]], metadata=_KEYED),
        Grpc([_WHOLE["a chat"]], metadata=_KEYED),
        Grpc([Infer(_CHAT | {"n": 2})], metadata=_KEYED),
    ],
    "a time limit": Grpc([Infer(_CHAT, model="stuck", parameters={"timeout": int(LIMIT_S * 1e6)})]),
    "a time limit in the metadata": Grpc(
        [Infer(_CHAT, model="stuck")], metadata=(("x-request-timeout", str(LIMIT_S)),)
    ),
    "a wrong time limit": Grpc([Infer(_CHAT, parameters={"timeout": "soon"})]),
    "a call that is cancelled": _stream(_streamed(Infer(_CHAT, model="slow")), take=3),
    "a name that comes twice": Grpc(
        [_WHOLE["a chat"]], metadata=(("x-session-id", "a"), ("x-session-id", "b"))
    ),
    "no key": Grpc([_WHOLE["a chat"]], key=""),
    "a wrong key": Grpc([_WHOLE["a chat"]], key="key-of-nobody"),
    "a stream without a key": _stream(_WHOLE["a chat"], key=""),
    "the process": _describe("ServerLive", pb.ServerLiveRequest(), key=""),
    "its readiness": _describe("ServerReady", pb.ServerReadyRequest(), key=""),
    "its name": _describe("ServerMetadata", pb.ServerMetadataRequest(), key=""),
    "a model is ready": _describe("ModelReady", pb.ModelReadyRequest(name="demo")),
    "a model is not ready": _describe("ModelReady", pb.ModelReadyRequest(name="nobody")),
    "a model": _describe("ModelMetadata", pb.ModelMetadataRequest(name="demo")),
    "no such model": _describe("ModelMetadata", pb.ModelMetadataRequest(name="nobody")),
    "its configuration": _describe("ModelConfig", pb.ModelConfigRequest(name="demo")),
    "all models": _describe("RepositoryIndex", pb.RepositoryIndexRequest()),
    "a load": _describe("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="demo")),
    "shared memory": _describe("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest()),
    "settings of traces": _describe("TraceSetting", pb.TraceSettingRequest()),
}
TABLE = table("grpc", EXCHANGES, side_by_side=True)
