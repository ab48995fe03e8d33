"""A stack for client libraries, with SmolLM2 if it has been pulled, else with the demo model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cli.console import CommandError
from cli.models.catalogue import DEMO
from cli.models.resolve import resolve_model
from cli.stack.default_model import DEFAULT
from tests.kits.e2e.stack import Stack
from tests.kits.servers import free_port

KEY = "sk-clients"


class Served(NamedTuple):
    """Where a stack answers.

    Attributes:
        url: The gateway, without a path.
        model: The name of the model.
        grpc: Where it answers by gRPC.
    """

    url: str
    model: str
    grpc: str = ""

    @property
    def is_demo(self) -> bool:
        """Whether the model is the demo, which cannot read instructions."""
        return self.model == DEMO


def model_here() -> str:
    """The name of SmolLM2 if it has been pulled, else of the demo model."""
    try:
        resolve_model(DEFAULT, pull=False)
    except CommandError:
        return DEMO
    return DEFAULT


@contextmanager
def serving(folder: Path, model: str = "") -> Iterator[Served]:
    """Runs a stack of one group and one rank while the context is open, by default with `model_here()`."""
    model = model or model_here()
    options: tuple[str, ...] = (
        "--model",
        model,
        "--groups",
        "1",
        "--tensor-parallel",
        "1",
        "--grpc-port",
        str(free_port()),
    )
    if model == DEFAULT:  # whether so small a model fills in a form depends on the last bits
        options += ("--precision", "int8")
    with Stack(folder, *options, env={"RYZ_API_KEYS": f"{KEY}:clients"}) as stack:
        state = stack.await_ready().state
        yield Served(state.url, model, state.grpc_address)
        assert stack.end() == 0
