"""Measures how late the event loop of a service is: what waits for it waits that long.

A timer is due every `INTERVAL_S`; how much later it runs is what the loop was busy with other things. It
costs four wake-ups a second.
"""

import asyncio

from prometheus_client import CollectorRegistry

from shared.telemetry.histograms import HistogramFamily, TokenHistogram

INTERVAL_S = 0.25
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


def lag_histogram(registry: CollectorRegistry) -> TokenHistogram:
    """Return the histogram that `watch_loop_lag` feeds."""
    return HistogramFamily(
        registry,
        "ryz_event_loop_lag_seconds",
        "How late a timer of the service's event loop ran; one is due every quarter of a second.",
        BUCKETS,
    ).series()


async def watch_loop_lag(lag: TokenHistogram) -> None:
    """Feed the histogram until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        lag.observe(max(0.0, loop.time() - due))
