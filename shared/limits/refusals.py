"""Refusals of requests over a limit. Pure."""

from shared.errors import QuotaUsedUp, RateLimited, RyzError, Unavailable
from shared.limits.pools import Pool

RUNNING_RETRY_S = 1.0
AWAY_RETRY_S = 5.0
_WORDS = {"requests": "requests", "tokens": "tokens", "money": "millionths of the currency"}


def over_limit(pool: Pool, retry_after_s: float) -> RyzError:
    """Returns the refusal of a request for which a limit has not enough left.

    Args:
        pool: The limit.
        retry_after_s: Seconds until its window ends.
    """
    name = pool.name
    who = f"key {name.key_id}" if name.key_id else f"tenant {name.tenant!r}"
    if name.window == "running":
        return RateLimited(
            f"{who} has {pool.limit} requests under way, as many as it may have; retry in a moment",
            reason=name.reason,
            retry_after_s=RUNNING_RETRY_S,
        )
    kind = QuotaUsedUp if name.measure == "money" else RateLimited
    return kind(
        f"{who} has used its {pool.limit} {_WORDS[name.measure]} of this {name.window}; "
        f"the next one begins in {max(0.0, retry_after_s):.0f} s",
        reason=name.reason,
        retry_after_s=max(0.0, retry_after_s),
    )


def limits_away(pool: Pool) -> RyzError:
    """Returns the refusal of a request whose limit cannot be counted now."""
    name = pool.name
    return Unavailable(
        f"{name.measure} of this {name.window} cannot be counted now: the KV state service or its store does "
        "not answer, and what was leased is used up",
        reason="limits_away",
        retry_after_s=AWAY_RETRY_S,
    )
