"""Asks services over HTTP whether they are ready, on connections that are kept."""

from collections.abc import Awaitable, Callable

import httpx

Probe = Callable[[], Awaitable[bool]]


class Probes:
    """Makes the probes of a stack. One event loop only."""

    def __init__(self, timeout_s: float = 2.0) -> None:
        # no proxy of the environment may come between the supervisor and its own services; the gateway's
        # certificate is made out to a name that clients use, not to this address
        self._client = httpx.AsyncClient(timeout=timeout_s, trust_env=False, verify=False)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def admin(self, port: int) -> Probe:
        """Return a probe of a service's admin endpoint."""
        return lambda: self._is_ok(f"http://127.0.0.1:{port}/ready")

    def gateway(self, url: str, model: str, key: str) -> Probe:
        """Ready when the gateway says so and lists the model: then the whole path is there.

        key: the gateway's `RYZ_PROBE_KEY`, good for this list only. Never a caller's key: something else may
        listen at the address while the gateway is down.
        """
        headers = {"Authorization": f"Bearer {key}"}

        async def probe() -> bool:
            return await self._is_ok(f"{url}/ready") and await self._lists(f"{url}/v1/models", model, headers)

        return probe

    async def _is_ok(self, url: str) -> bool:
        try:
            return (await self._client.get(url)).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    async def _lists(self, url: str, model: str, headers: dict[str, str]) -> bool:
        try:
            answer = await self._client.get(url, headers=headers)
            listed = answer.json()["data"] if answer.is_success else []
        except (httpx.TransportError, ValueError, KeyError):
            return False
        return any(entry.get("id") == model for entry in listed)
