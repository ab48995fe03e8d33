"""The options of compiling grammars."""

from dataclasses import dataclass, field

from services.worker.text.grammars.grammar_limits import GrammarLimits


@dataclass(frozen=True, slots=True)
class GrammarOptions:
    """Options of the compiler.

    Attributes:
        timeout_s: For one grammar: CPU time on trial, and as much in a thread.
        cached: Compiled grammars that are kept.
        max_waiting: Grammars of one tenant that may wait for a thread.
        trial_bytes: Memory that a trial may use; the largest grammars known need 20 MiB.
    """

    timeout_s: float = 2.0
    cached: int = 64
    max_waiting: int = 64
    limits: GrammarLimits = field(default_factory=GrammarLimits)
    trial_bytes: int = 256 * 2**20
