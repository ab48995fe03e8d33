"""Asks services over HTTP whether they are ready, on connections that are kept."""

from collections.abc import Awaitable, Callable, Sequence

import httpx

Probe = Callable[[], Awaitable[bool]]


class Probes:
    """Makes the probes of a stack. One event loop only."""

    def __init__(self, timeout_s: float = 2.0) -> None:
        # No proxy between the supervisor and its services. The gateway's certificate is for the name that
        # clients use, not for this address.
        self._client = httpx.AsyncClient(timeout=timeout_s, trust_env=False, verify=False)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def admin(self, port: int) -> Probe:
        """Return a probe of a service's admin endpoint."""
        return lambda: self._is_ok(f"http://127.0.0.1:{port}/ready")

    def gateway(self, url: str, models: Sequence[str], key: str) -> Probe:
        """Return a probe of the gateway and of the whole path: it is ready and lists all these models.

        Args:
            key: The gateway's `RYZ_PROBE_KEY`, good for this list only. A caller's key must not be sent:
                another program may listen at the address while the gateway is down.
        """
        headers = {"Authorization": f"Bearer {key}"}

        async def probe() -> bool:
            return await self._is_ok(f"{url}/ready") and await self._list(f"{url}/v1/models", models, headers)

        return probe

    async def _is_ok(self, url: str) -> bool:
        try:
            return (await self._client.get(url)).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    async def _list(self, url: str, models: Sequence[str], headers: dict[str, str]) -> bool:
        try:
            answer = await self._client.get(url, headers=headers)
            listed = answer.json()["data"] if answer.is_success else []
        except (httpx.TransportError, ValueError, KeyError):
            return False
        return {entry.get("id") for entry in listed} >= set(models)
