"""Remembers of each session where its KV is, for how many tokens, and how much a turn adds.

It learns from the requests that this router sends and from leaders' `SessionTurns`, which all routers get, so
routers know nearly the same. What is missing costs little: the session counts as new, and goes home.
"""

import msgspec
from msgspec.structs import replace

from services.router.domain.decision import RequestFacts
from services.router.domain.expiring import ExpiringMap

_SMOOTHING = 0.05  # weight of the newest turn in the mean of all


class Asker(msgspec.Struct, frozen=True, gc=False):
    """The tenant and session of a request.

    Attributes:
        session_id: Empty: none. One that was made for this request is not known yet.
        whole: The request holds the whole conversation, not only what is new.
        continues: The request holds an answer.
    """

    tenant: str
    session_id: str
    whole: bool = True
    continues: bool = False


class KnownSession(msgspec.Struct, frozen=True, gc=False):
    """A session that is known.

    Attributes:
        group: The group of the last turn.
        tokens: Tokens with KV there.
        turn_tokens: Tokens that the last turn added; 0: unknown.
    """

    group: str
    tokens: int = 0
    turn_tokens: int = 0


class SessionMemory:
    """The known sessions, bounded in entries and in time, each under its id and its routing key.

    The key finds it for a client that sends no id and the whole conversation with every turn. Conversations
    with the same root share it; the newest counts.
    """

    def __init__(self, *, ttl_s: float, max_entries: int) -> None:
        self._known: ExpiringMap[tuple[str, str], KnownSession] = ExpiringMap(
            ttl_s=ttl_s, max_entries=max_entries
        )
        self._mean_turn = 0.0

    def __len__(self) -> int:
        return len(self._known)

    def find(self, tenant: str, session_id: str, routing_key: str, now: float) -> KnownSession | None:
        """The session of that id, or else the newest with that key."""
        found = self._known.get((tenant, session_id), now) if session_id else None
        return found or self._known.get((tenant, routing_key), now)

    def complete_facts(self, facts: RequestFacts, asker: Asker, now: float) -> tuple[RequestFacts, int]:
        """The facts completed with what is known of the session, and the tokens that the turn may add to it.

        Tokens that a request repeats of its conversation count as the session's, as far as that is known. A
        `last_group` in the facts stands.
        """
        known = self.find(asker.tenant, asker.session_id, facts.routing_key, now)
        tokens, new = known.tokens if known else 0, facts.prompt_tokens
        if asker.whole:
            if not tokens and asker.continues:
                tokens = new
            tokens = min(tokens, new)
            new -= tokens
        last = facts.last_group or (known.group if known else "")
        turn = (known.turn_tokens if known else 0) or round(self._mean_turn)
        if known is not None or tokens or facts.session_tokens:  # else they are complete
            facts = replace(facts, last_group=last, session_tokens=tokens, prompt_tokens=new)
        return facts, max(turn, new)

    def note_sent(self, facts: RequestFacts, asker: Asker, group: str, now: float) -> None:
        """A request of the session went to `group`."""
        session_id, routing_key = asker.session_id, facts.routing_key
        self._note_group((asker.tenant, routing_key), group, now)
        if session_id and session_id != routing_key:
            self._note_group((asker.tenant, session_id), group, now)

    def note_turn(
        self, tenant: str, session_id: str, routing_key: str, reported: KnownSession, now: float
    ) -> None:
        """A leader has announced where the session is; the tokens that the turn added follow from it."""
        before = self.find(tenant, session_id, routing_key, now) or KnownSession(reported.group)
        added = reported.tokens - before.tokens
        if added > 0:
            self._mean_turn += (_SMOOTHING if self._mean_turn else 1.0) * (added - self._mean_turn)
        turn_tokens = added if added > 0 else before.turn_tokens
        found = KnownSession(reported.group, reported.tokens or before.tokens, turn_tokens)
        self._known.put((tenant, routing_key), found, now)
        if session_id != routing_key:
            self._known.put((tenant, session_id), found, now)

    def forget_session(self, tenant: str, session_id: str, routing_key: str, now: float) -> None:
        """The session was deleted."""
        for key in {session_id, routing_key}:
            self._known.pop((tenant, key), now)

    def _note_group(self, key: tuple[str, str], group: str, now: float) -> None:
        known = self._known.get(key, now)
        if known is None:
            known = KnownSession(group)
        elif known.group != group:
            known = KnownSession(group, known.tokens, known.turn_tokens)
        self._known.put(key, known, now)

    def expire(self, now: float) -> None:
        """Drops what is too old, also when no requests come."""
        self._known.expire(now)
