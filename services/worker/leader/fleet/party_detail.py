"""Tells the parties of a group, for the live view of operators: who has what credit, and who waits."""

import msgspec

from services.worker.domain.scheduling.background import is_background
from services.worker.domain.scheduling.scheduler import Scheduler
from services.worker.domain.scheduling.sequence import Sequence
from shared.accounts.live_shares import GroupParties, PartyCounts

MAX_PARTIES = 16


def party_detail(scheduler: Scheduler | None) -> object:
    """Returns `GroupParties` as plain values; None while the engine is down."""
    if scheduler is None:
        return None
    fair = scheduler.queues.fair
    found: dict[tuple[str, bool], list[Sequence]] = {}
    running: dict[tuple[str, bool], int] = {}
    for queue, runs in ((scheduler.running, 1), (scheduler.waiting, 0)):
        for sequence in queue:
            key = sequence.party, is_background(sequence)
            found.setdefault(key, []).append(sequence)
            running[key] = running.get(key, 0) + runs
    largest = sorted(found, key=lambda key: (-len(found[key]), key))
    rows = []
    for party, background in largest[:MAX_PARTIES]:
        sequences = found[party, background]
        deficits = fair.of(sequences[0])
        rows.append(
            PartyCounts(
                party=party,
                running=running[party, background],
                waiting=len(sequences) - running[party, background],
                weight=deficits.weight(party),
                credit=round(deficits.credit(party) * deficits.weight(party), 1),
                charged=round(deficits.charged(party), 1),
                background=background,
            )
        )
    told = GroupParties(
        quantum=float(scheduler.limits.token_budget),
        decode_tokens=round(scheduler.throttle.pace.decode_tokens(len(scheduler.running)), 3),
        rows=rows,
        others=max(0, len(largest) - MAX_PARTIES),
    )
    return msgspec.to_builtins(told)
