"""Plans the processes of a stack: commands, environment, probes, and the order in which they end.

Pure but for finding the servers. `stack.py` starts and watches the processes.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from cli.bus_users.store import NATS_USERS_FILE, bus_users, users_file
from cli.models.catalogue import known_file
from cli.models.store import packed_dir
from cli.stack.host.naming import group_name
from cli.stack.host.ports import pick_ports, require_free
from cli.stack.options import UpOptions
from cli.stack.probes import Probes
from cli.stack.process import ServiceSpec
from cli.stack.servers.broker import find_nats, nats_answers, nats_command, nats_threads, new_passwords
from cli.stack.servers.redis_server import find_redis
from cli.stack.servers.stores import Stores, plan_stores
from services.gateway.admission.auth import parse_keys
from services.gateway.admission.parties import ADDRESS_SHARE
from shared.bus import nats_conf
from shared.bus.accounts import ACCOUNTS
from shared.host.cores_and_memory import total_bytes, usable_cores
from shared.host.own_python import module_command

# settings of a given broker or store; empty for the services of our own
OF_OTHER_BROKERS = ("RYZ_NATS_CA", "RYZ_NATS_CERT", "RYZ_NATS_KEY", "RYZ_NATS_INBOX")
OF_OTHER_STORES = ("RYZ_REDIS_CA", "RYZ_REDIS_CERT", "RYZ_REDIS_KEY")

# Fork servers, and what they import. Those of the control plane have no torch in their memory; the two import
# side by side.
CONTROL_FORKS, WORKER_FORKS = "control", "worker"
CONTROL_MODULES = tuple(f"services.{kind}.__main__" for kind in ("gateway", "router", "kvstate"))
LEADER_MODULES = ("services.worker.__main__",)
RANK_MODULES = ("services.worker.engine.rank.fork_server", "services.worker.engine.rank.rank_process")

STREAMS, FILES = "jetstream", "files"  # directories of the state: of batches, and of their files
STREAMS_BYTES = 10 * 2**30  # that batches may have on disk; nothing is reserved

TENANT_SHARE = "RYZ_MAX_RUNNING_PER_TENANT"

# Phases of the end, at most nine seconds in all: seconds that a service may drain, and until it is killed.
# A worker needs time for its ranks after the drain; it has little to drain once the gateway has ended.
# RYZ_DRAIN_TIMEOUT_S replaces the drain of gateways and workers.
GATEWAY, ROUTER, WORKERS, KVSTATE, SERVERS = range(5)
DRAIN_S = {GATEWAY: 2.5, ROUTER: 0.4, WORKERS: 1.2, KVSTATE: 0.4}
GRACE_S = {GATEWAY: 3.2, ROUTER: 0.8, WORKERS: 3.2, KVSTATE: 0.8, SERVERS: 1.0}


@dataclass(frozen=True, slots=True)
class StackPlan:
    """The processes, and where the stack is reached.

    Attributes:
        nats_url: The broker for callers outside.
        nats_urls: Our own broker by user; empty with a given one.
        files: Files to write before the start, readable by this user only.
        run_dir: Directory of `sockets`, for this user only.
        sockets: Unix sockets of our own stores.
        http_addresses: Where services listen for HTTP or gRPC; the supervisor holds these ports, see
            `held_ports`. At that of the API it listens itself, see `ServiceSpec.listens_at`.
        grpc_address: Where the gateway is reached by gRPC; empty: nowhere.
        imports: Modules that fork servers import, by the server's name.
    """

    specs: list[ServiceSpec]
    url: str
    nats_url: str
    redis_url: str
    kv_redis_url: str
    nats_urls: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[Path, str] = field(default_factory=dict)
    run_dir: Path | None = None
    sockets: Sequence[Path] = ()
    http_addresses: list[tuple[str, int]] = field(default_factory=list)
    grpc_address: str = ""
    imports: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def drain_s(self) -> str:
        """Seconds that running requests have to finish when the stack ends, as text."""
        return next(spec.env["RYZ_DRAIN_TIMEOUT_S"] for spec in self.specs if spec.name == "gateway")


def plan_stack(
    options: UpOptions,
    probes: Probes,
    environ: Mapping[str, str],
    kv_pool: Mapping[str, str] = MappingProxyType({}),
) -> StackPlan:
    """Decide ports and processes; fail when a wanted port is taken or a server cannot be found.

    Args:
        probes: Ask services whether they are ready.
        kv_pool: Settings of the workers for KV blocks in the memory of the host.
    """
    grpc_host = environ.get("RYZ_GRPC_HOST") or options.host
    _check_ports(options, grpc_host)
    routers = ["router", *(f"router-{number}" for number in range(2, options.routers + 1))]
    names = ["kvstate", *routers, *(f"worker-g{number}" for number in range(options.groups))]
    # one call, so that all are different: the admin ports, then those that were given as 0
    free = pick_ports(len(names) + 2)
    http_port = options.port or free.pop()
    nats_port = options.nats_port or free.pop()
    passwords = {} if options.nats_url else new_passwords()
    nats_urls = {user: f"nats://{user}:{word}@127.0.0.1:{nats_port}" for user, word in passwords.items()}
    stores = plan_stores(options, environ, total_bytes())
    specs, files = list[ServiceSpec](), dict[Path, str]()
    common = {"RYZ_LOG_LEVEL": options.log_level, "RYZ_PORTS_HELD": "true"}
    if not options.nats_url:
        users, config = options.state_dir / NATS_USERS_FILE, options.state_dir / "nats.conf"
        files[users] = nats_conf.render(bus_users(options.state_dir).hashes())
        files[config] = nats_conf.with_streams(users.name, options.state_dir / STREAMS, STREAMS_BYTES)
        command = nats_command(find_nats(), nats_port, config)
        env = {ACCOUNTS[user].password_variable: word for user, word in passwords.items()}
        env |= nats_threads(environ, usable_cores())
        specs.append(_server("nats", command, lambda: nats_answers("127.0.0.1", nats_port), env))
        common |= dict.fromkeys(OF_OTHER_BROKERS, "") | {"RYZ_NATS_LOCAL": "true"}
    if stores.own:
        common |= dict.fromkeys(OF_OTHER_STORES, "")
        binary = find_redis()
    for store in stores.own:
        files |= store.files()
        specs.append(_server(store.name, [binary, str(store.config)], store.answers))

    def shared_by(name: str) -> dict[str, str]:
        return common | {"RYZ_NATS_URL": options.nats_url or nats_urls[name.partition("-")[0]]}

    drain = environ.get("RYZ_DRAIN_TIMEOUT_S", "")
    for name, port in zip(names, free, strict=False):
        own = {"RYZ_ADMIN_PORT": str(port), "RYZ_ADMIN_HOST": "127.0.0.1"}
        specs.append(
            _service(
                name,
                shared_by(name) | own | _own_settings(name, options, stores, environ, kv_pool),
                probes.admin(port),
                drain,
            )
        )
    scheme = "https" if environ.get("RYZ_HTTP_CERT") else "http"
    url = f"{scheme}://{_reachable(options.host)}:{http_port}"
    probe_key = secrets.token_hex(16)
    api = {"RYZ_HTTP_HOST": options.host, "RYZ_HTTP_PORT": str(http_port), "RYZ_PROBE_KEY": probe_key}
    if not environ.get("RYZ_FILES_DIR"):
        api["RYZ_FILES_DIR"] = str(options.state_dir / FILES)
    addresses = [("127.0.0.1", port) for port in free[: len(names)]]
    if options.grpc_port:
        api["RYZ_GRPC_PORT"] = str(options.grpc_port)
        addresses.append((grpc_host, options.grpc_port))
    if options.open_to_network:
        api["RYZ_OPEN_TO_NETWORK"] = "true"
    model = options.model_name
    gateway = _service("gateway", shared_by("gateway") | api, probes.gateway(url, model, probe_key), drain)
    specs.append(replace(gateway, listens_at=(options.host, http_port)))
    return StackPlan(
        specs=specs,
        url=url,
        nats_url=options.nats_url or nats_urls["outside"],
        redis_url=stores.sessions_url,
        kv_redis_url=stores.kv_url,
        nats_urls=nats_urls,
        files=files,
        run_dir=stores.run_dir,
        sockets=[store.socket for store in stores.own],
        http_addresses=addresses,
        grpc_address=f"{_reachable(grpc_host)}:{options.grpc_port}" if options.grpc_port else "",
        imports=_imports(options),
    )


def _own_settings(
    name: str,
    options: UpOptions,
    stores: Stores,
    environ: Mapping[str, str],
    kv_pool: Mapping[str, str],
) -> dict[str, str]:
    if name == "kvstate":
        return stores.variables(name)
    if name.partition("-")[0] == "router":
        users = {} if options.nats_url else {"RYZ_ROUTER_BUS_USERS": str(users_file(options.state_dir))}
        return {"RYZ_ROUTER_POLICY": options.policy} | users
    own = {
        "RYZ_GROUP": group_name(options.stack, int(name.removeprefix("worker-g"))),
        **stores.variables("worker"),
        **kv_pool,
        "RYZ_ENGINE": options.engine,
        "RYZ_MODEL_NAME": options.model_name,
        "RYZ_TOOL_FORMAT": options.tool_format,
        "RYZ_TENSOR_PARALLEL": str(options.tensor_parallel),
        "RYZ_PRECISION": options.precision,
        "RYZ_KERNELS": options.kernels,
        "RYZ_THREADS": str(options.threads),
    }
    if "RYZ_PACKED_DIR" not in environ and options.engine == "torch":
        own["RYZ_PACKED_DIR"] = str(packed_dir())
    if not environ.get("RYZ_SAMPLING_FALLBACK") and options.model is not None:
        known = known_file(options.model)
        own["RYZ_SAMPLING_FALLBACK"] = known.sampling if known else ""
    if options.kv_cache_tokens is not None:
        own["RYZ_KV_CACHE_TOKENS"] = str(options.kv_cache_tokens)
    if options.draft_model is not None:
        own["RYZ_DRAFT_MODEL"] = str(options.draft_model)
        own["RYZ_SPECULATION"] = environ.get("RYZ_SPECULATION") or "draft"
    own |= _memory_share(options.groups, environ) | _tenant_share(environ)
    return own if options.model is None else own | {"RYZ_MODEL": str(options.model)}


def _memory_share(groups: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Divide the share of free memory by the groups, which all read the free memory at the same time."""
    try:
        share = float(environ.get("RYZ_KV_MEMORY_SHARE", "0.5"))
    except ValueError:
        return {}  # the workers refuse it and name the variable
    return {"RYZ_KV_MEMORY_SHARE": repr(share / groups)}


def _tenant_share(environ: Mapping[str, str]) -> dict[str, str]:
    """Limit what one tenant, or one address without keys, may have of the running slots."""
    if environ.get(TENANT_SHARE):
        return {}
    try:
        tenants = set(parse_keys(environ.get("RYZ_API_KEYS", "")).values())
    except ValueError:
        return {}  # the gateway refuses it and names the variable
    if not tenants:
        return {TENANT_SHARE: str(ADDRESS_SHARE)}
    return {TENANT_SHARE: "0.5"} if len(tenants) > 1 else {}


def _service(name: str, env: dict[str, str], probe: Callable[[], Awaitable[bool]], drain: str) -> ServiceSpec:
    """Return a service's process; `drain` is the given drain time as text, empty for the phase's."""
    kind = name.partition("-")[0]
    phase = {"gateway": GATEWAY, "router": ROUTER, "worker": WORKERS, "kvstate": KVSTATE}[kind]
    drain_s, grace_s = DRAIN_S[phase], GRACE_S[phase]
    if drain and phase in {GATEWAY, WORKERS}:
        with suppress(ValueError):  # the service refuses it and names the variable
            grace_s += max(0.0, float(drain)) - drain_s
    else:
        drain = str(drain_s)
    return ServiceSpec(
        name,
        module_command(f"services.{kind}"),
        probe,
        phase,
        grace_s,
        env | {"RYZ_DRAIN_TIMEOUT_S": drain},
        module=f"services.{kind}.__main__",
        forked_from=WORKER_FORKS if kind == "worker" else CONTROL_FORKS,
    )


def _imports(options: UpOptions) -> dict[str, Sequence[str]]:
    ranks = RANK_MODULES if options.engine == "torch" else ()
    return {CONTROL_FORKS: CONTROL_MODULES, WORKER_FORKS: LEADER_MODULES + ranks}


def _server(
    name: str, command: list[str], probe: Callable[[], Awaitable[bool]], env: Mapping[str, str] | None = None
) -> ServiceSpec:
    return ServiceSpec(name, command, probe, SERVERS, GRACE_S[SERVERS], env or {})


def _check_ports(options: UpOptions, grpc_host: str) -> None:
    find, without = "let one be found", "do without"
    wanted = [
        (options.host, options.port, "--port", find),
        (grpc_host, options.grpc_port, "--grpc-port", without),
        ("127.0.0.1", 0 if options.nats_url else options.nats_port, "--nats-port", find),
        ("127.0.0.1", 0 if options.redis_url else options.redis_port, "--redis-port", without),
    ]
    for host, port, option, zero in wanted:
        if port:
            require_free(host, port, option, zero)


def _reachable(host: str) -> str:
    """Return the address at which this machine reaches a server that listens on `host`."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{shown}]" if ":" in shown else shown
