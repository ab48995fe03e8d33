"""The thresholds of the policy `hybrid`, which are settings."""

from dataclasses import dataclass

from shared.setting_types import UpToMillion, ZeroToHour, ZeroToMinute


@dataclass(frozen=True, kw_only=True)
class HybridLimits:
    """The thresholds above which `Hybrid` compares costs instead of leaving a session where it is.

    `RouterSettings` inherits these fields, so each of them is also a setting `RYZ_<NAME>`.
    """

    router_threshold: UpToMillion = 2
    """Waiting requests from which `hybrid` considers other groups."""
    router_threshold_s: ZeroToMinute = 0.02
    """Seconds until a prompt is begun, from which `hybrid` considers other groups."""
    router_lead_s: ZeroToHour = 0.1
    """Seconds of work above its share, from which `hybrid` considers other groups than a busy one."""
