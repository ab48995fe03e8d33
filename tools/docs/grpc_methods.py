"""Lists the gRPC methods for docs/compatibility.md, from its `.proto` file and its handlers."""

import re
from pathlib import Path

from services.gateway.grpc.protocol import inference_pb2
from services.gateway.grpc.serving.method_handlers import ELSEWHERE, INFERENCE

_SOURCE = Path(inference_pb2.__file__).with_name("inference.proto")
_METHOD = re.compile(r"^  // (.+)\n  rpc (\w+)\(", re.MULTILINE)


def grpc_methods() -> str:
    """Return the section of the page."""
    rows = [f"| `{name}` | {about} |" for about, name in _METHOD.findall(_SOURCE.read_text())]
    by_remedy: dict[str, list[str]] = {}
    for name, remedy in ELSEWHERE.items():
        by_remedy.setdefault(remedy, []).append(f"`{name}`")
    refused = [f"| {', '.join(names)} | UNIMPLEMENTED: {remedy} |" for remedy, names in by_remedy.items()]
    head = f"## gRPC\n\nMethods of `{INFERENCE}` ([grpc.md](grpc.md)), beside health checks and reflection.\n"
    return "\n".join([head, "| method | what it does |", "| --- | --- |", *rows, *refused, ""])
