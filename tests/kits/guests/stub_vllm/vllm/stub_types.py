"""Types of the stand-in for vLLM that do nothing but have names."""

import enum

from .stub_grammar import check


class RequestOutputKind(enum.Enum):
    DELTA = 1


class EngineDeadError(Exception):
    """The engine's process is gone."""


class StructuredOutputsParams:
    def __init__(self, *, grammar: str) -> None:
        check(grammar)
        self.grammar = grammar


class UsageContext(enum.Enum):
    ENGINE_CONTEXT = 1
