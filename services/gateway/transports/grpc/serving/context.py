"""The type of what a handler gets of its call beside the messages."""

from typing import Any, TypeAlias

import grpc

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"  # takes arguments in its types only
