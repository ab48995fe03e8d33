"""The options of compiling grammars."""

from dataclasses import dataclass, field

from services.worker.text.grammars.limits import GrammarLimits
from shared.setting_types import UpToMinute


@dataclass(frozen=True, kw_only=True)
class GrammarTime:
    """`WorkerSettings` inherits the field, so it is also a setting `RYZ_<NAME>`."""

    grammar_timeout_s: UpToMinute = 2.0
    """CPU time for compiling the grammar of one request's answer, on trial and as much again in a thread; it
    waits three times as long at most."""


@dataclass(frozen=True, kw_only=True)
class GrammarOptions(GrammarTime):
    """Options of the compiler: the setting, and constants.

    Attributes:
        cached: Compiled grammars that are kept for further requests; one can need some MiB.
        max_waiting: Grammars of one tenant that may wait for a thread.
        trial_bytes: Memory that a trial may use; the largest grammars known need 20 MiB.
    """

    cached: int = 64
    max_waiting: int = 64
    limits: GrammarLimits = field(default_factory=GrammarLimits)
    trial_bytes: int = 256 * 2**20
