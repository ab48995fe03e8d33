"""Plans the stores of a stack: one for sessions, which may be kept on disk, and one for KV blocks.

They are separate so that blocks never go to the append-only file, and each has its own limit of memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.stack.options import UpOptions
from cli.stack.servers.redis_server import MIN_MEMORY_BYTES, Store, new_store_passwords, socket_dir

SESSION_USERS, KV_USERS = ("kvstate",), ("kvstate", "worker")
SESSIONS_PART = 0.25  # share of the stores' memory; the rest is for KV blocks


@dataclass(frozen=True, slots=True)
class Stores:
    """The stores to start, and the addresses for services.

    Attributes:
        sessions_url: The session store, for the KV state service.
        kv_url: The KV store, for the KV state service.
        worker_url: The KV store, for ranks.
        run_dir: Directory of the sockets; None if no store is started.
    """

    own: Sequence[Store]
    sessions_url: str
    kv_url: str
    worker_url: str
    run_dir: Path | None = None

    def variables(self, service: str) -> dict[str, str]:
        """Return a service's settings; a worker gets no URL of a separate session store."""
        if not self.own:
            return {"RYZ_REDIS_URL": self.sessions_url}
        if service == "kvstate":
            return {"RYZ_REDIS_URL": self.sessions_url, "RYZ_KV_REDIS_URL": self.kv_url}
        return {"RYZ_REDIS_URL": "", "RYZ_KV_REDIS_URL": self.worker_url}


def plan_stores(options: UpOptions, environ: Mapping[str, str], machine_bytes: int) -> Stores:
    """Plan no store with `--redis-url`, only that of sessions with RYZ_KV_REDIS_URL, else both."""
    given_kv = environ.get("RYZ_KV_REDIS_URL", "")
    if options.redis_url:
        kv_url = given_kv or options.redis_url
        return Stores([], options.redis_url, kv_url, kv_url)
    run_dir, share = socket_dir(options.state_dir), options.redis_memory_share * machine_bytes
    sessions = Store(
        name="redis",
        folder=options.state_dir,
        socket=run_dir / "redis.sock",
        memory_bytes=max(MIN_MEMORY_BYTES, int(share * SESSIONS_PART)),
        persist_dir=options.redis_dir,
        port=options.redis_port,
        passwords=new_store_passwords(SESSION_USERS),
    )
    if given_kv:
        return Stores([sessions], sessions.url("kvstate"), given_kv, given_kv, run_dir)
    kv = Store(
        name="redis-kv",
        folder=options.state_dir,
        socket=run_dir / "redis-kv.sock",
        memory_bytes=max(MIN_MEMORY_BYTES, int(share * (1 - SESSIONS_PART))),
        passwords=new_store_passwords(KV_USERS),
    )
    own = [sessions, kv]
    return Stores(own, sessions.url("kvstate"), kv.url("kvstate"), kv.url("worker"), run_dir)
