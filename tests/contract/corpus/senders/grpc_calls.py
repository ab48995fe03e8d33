"""gRPC: the messages of the Open Inference Protocol, as Triton's own classes have them."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as pb

from tests.contract.corpus.exchange import Address, Heard
from tests.kits.waiting import PATIENCE_S

SERVICE = "inference.GRPCInferenceService"


@dataclass(frozen=True)
class Infer:
    """One request for an inference.

    Attributes:
        inputs: Texts become BYTES, numbers INT32 or FP32, flags BOOL.
        model: Its name.
        parameters: Of the request.
        outputs: That are asked for; empty: all.
        request_id: The caller's.
        version: Of the model.
    """

    inputs: Mapping[str, Any]
    model: str = "demo"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    request_id: str = ""
    version: str = ""

    def message(self) -> Any:
        """The message of the protocol."""
        made = pb.ModelInferRequest(model_name=self.model, model_version=self.version, id=self.request_id)
        for name, value in self.inputs.items():
            values: list[Any] = value if isinstance(value, list) else [value]
            tensor = made.inputs.add(name=name, shape=[len(values)])
            if isinstance(values[0], bool):
                tensor.datatype = "BOOL"
                tensor.contents.bool_contents.extend(values)
            elif isinstance(values[0], int):
                tensor.datatype = "INT32"
                tensor.contents.int_contents.extend(values)
            elif isinstance(values[0], float):
                tensor.datatype = "FP32"
                tensor.contents.fp32_contents.extend(values)
            else:
                tensor.datatype = "BYTES"
                tensor.contents.bytes_contents.extend(one.encode() for one in values)
        for name, value in self.parameters.items():
            kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
            setattr(made.parameters[name], kind[type(value)], value)
        for name in self.outputs:
            made.outputs.add(name=name)
        return made


@dataclass(frozen=True)
class Grpc:
    """A call.

    Attributes:
        requests: Of a stream any number, each sent when the one before it has its final response; else one.
            An `Infer`, or a message of the protocol.
        method: Its name.
        metadata: Beside the key.
        timeout_s: The deadline of the call.
        take: The call is cancelled after so many responses; 0: it is read to its end.
        key: The API key; None: the key of the table's tenant; empty: no key.
        service: The service that has the method.
        gateway: `main` or `tight`.
    """

    requests: Sequence[Any]
    method: str = "ModelInfer"
    metadata: Sequence[tuple[str, str]] = ()
    timeout_s: float = PATIENCE_S
    take: int = 0
    key: str | None = None
    service: str = SERVICE
    gateway: str = "main"

    async def send(self, address: Address, key: str) -> Heard:
        """See `Request`."""
        bearer = key if self.key is None else self.key
        metadata = [("authorization", f"Bearer {bearer}")] if bearer else []
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.primary_user_agent", "corpus")]
        heard = Heard([f"> {self.service}/{self.method}"])
        async with grpc.aio.insecure_channel(f"127.0.0.1:{address.grpc_port}", options=options) as channel:
            messages = [one.message() if isinstance(one, Infer) else one for one in self.requests]
            answer = getattr(pb, "ModelStreamInferResponse" if self._streams else f"{self.method}Response")
            kind: Any = channel.stream_stream if self._streams else channel.unary_unary
            call = kind(
                f"/{self.service}/{self.method}", lambda one: one.SerializeToString(), answer.FromString
            )
            given = {"metadata": (*metadata, *self.metadata), "timeout": self.timeout_s}
            made: Any = call(**given) if self._streams else call(messages[0], **given)
            try:
                if self._streams:
                    await self._stream(made, messages, heard)
                else:
                    note(heard, await made)
            except grpc.aio.AioRpcError:
                pass  # its status is written down below
            if not self.take:
                heard.lines += await _ending(made)
        return heard

    @property
    def _streams(self) -> bool:
        return self.method == "ModelStreamInfer"

    async def _stream(self, call: Any, messages: list[Any], heard: Heard) -> None:
        responses = aiter(call)
        if self.key is None:
            for message in messages:
                await call.write(message)
                if await self._read_one(responses, call, heard):
                    return
            await call.done_writing()
        # With a wrong key nothing is written: the call is refused before, and a client that writes to a call
        # that has just ended loses its status ("Internal error from Core" of grpcio).
        async for response in responses:
            note(heard, response)

    async def _read_one(self, responses: AsyncIterator[Any], call: Any, heard: Heard) -> bool:
        """Reads the responses to one request; returns whether the call was left."""
        count = 0
        async for response in responses:
            note(heard, response)
            count += 1
            if self.take and count >= self.take:
                call.cancel()
                return True
            inferred = response.infer_response
            if response.error_message or inferred.parameters["triton_final_response"].bool_param:
                return False
        return True


def note(heard: Heard, message: Any) -> None:
    """Writes down a message: as JSON with sorted keys, bytes of tensors as text of single bytes."""
    inferred = getattr(message, "infer_response", message)
    fields = json_format.MessageToDict(message, preserving_proto_field_name=True)
    raw = [one.decode("latin-1") for one in getattr(inferred, "raw_output_contents", ())]
    if raw:
        (fields.get("infer_response") or fields)["raw_output_contents"] = raw
    line = json.dumps(fields, sort_keys=True, ensure_ascii=False)
    heard.lines.append(f"< {line}")
    heard.body += line.encode() + b"\n"


async def _ending(call: Any) -> list[str]:
    code, details = await call.code(), await call.details()
    initial, trailing = await call.initial_metadata(), await call.trailing_metadata()
    lines = [f"< initial {name}: {value}" for name, value in initial or ()]
    lines += [f"< status {code.name}: {details or ''}"]
    return lines + [f"< trailing {name}: {value}" for name, value in trailing or ()]
