"""What became of a call, for the headers of its answer, metrics, the log and the trace."""

from dataclasses import dataclass, field

from services.gateway.admission.errors.refusals import Headers, header_value
from shared.messages import Accepted, SessionOutcome, Usage


@dataclass(slots=True)
class CallOutcome:
    """The course of a call, for headers, metrics and the log.

    Attributes:
        group: The group of the call's first generation.
        accepted: The acceptance of the call's first generation.
        usages: One for each generation, known at the end.
        session: What became of the turn, known at its end.
        first_text_s: When the first text came, on the loop's clock; 0 if none came.
    """

    group: str = ""
    accepted: Accepted | None = None
    usages: list[Usage] = field(default_factory=list)
    session: SessionOutcome | None = None
    first_text_s: float = 0.0

    def headers(self) -> Headers:
        """Headers that name the group, why it was chosen, and where the prompt's KV came from.

        What is not known is left out. A group that fetches for long accepts before it has decided whether to
        fetch; then the usage tells, once it is there.
        """
        headers = [(b"x-ryz-group", self.group.encode())] if self.group else []
        if self.accepted is not None and self.accepted.reason:
            headers.append((b"x-ryz-route", header_value(self.accepted.reason)))
        kv = self.accepted.kv if self.accepted is not None else ""
        if not kv and any(usage.fetched_tokens for usage in self.usages):
            kv = "fetch"
        if kv:
            headers.append((b"x-ryz-kv", kv.encode()))
        if session := self._session():
            headers.append((b"x-ryz-session", session.encode()))
        return headers

    def _session(self) -> str:
        """The value of `X-Ryz-Session`; empty if nothing is known of the session yet.

        It says whether the session is new, and after the end of the turn what became of it.
        """
        ended = self.session
        if ended is not None:
            reason = f"; reason={ended.reason}" if ended.reason else ""
            replaced = "; replaced" if ended.replaced else ""
            text = f"{ended.state}; turns={ended.turns}; version={ended.version}; {ended.stored}"
            return f"{text}{reason}{replaced}"
        accepted = self.accepted
        if accepted is None or accepted.session_version < 0:
            return ""
        state = "continued" if accepted.session_version else "new"
        return f"{state}; turns={accepted.session_turns + 1}"
