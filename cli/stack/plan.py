"""Plans the processes of a stack: commands, environment, probes, and the order in which they end.

Pure but for finding the servers. `stack.py` starts and watches the processes.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import MappingProxyType

from cli.bus_users.store import NATS_USERS_FILE, bus_users
from cli.stack.fleet.core_sets import CoreSets
from cli.stack.fleet.declare import ALIASES
from cli.stack.fleet.entry import FoundModel
from cli.stack.group_plan import GroupPlanner, group_number
from cli.stack.host.ports import pick_ports, require_free
from cli.stack.options import UpOptions
from cli.stack.probes import Probes
from cli.stack.servers.broker import find_nats, nats_answers, nats_command, nats_threads, new_passwords
from cli.stack.servers.redis_server import find_redis
from cli.stack.servers.stores import Stores, plan_stores
from cli.stack.service_plan import CONTROL_FORKS, GRACE_S, SERVERS, WORKER_FORKS, admin_address, plan_service
from cli.stack.supervision.process import ServiceSpec
from shared.bus import nats_conf
from shared.bus.accounts import ACCOUNTS
from shared.host.cores_and_memory import total_bytes, usable_cores

# settings of a given broker or store; empty for the services of our own
OF_OTHER_BROKERS = ("RYZ_NATS_CA", "RYZ_NATS_CERT", "RYZ_NATS_KEY", "RYZ_NATS_INBOX")
OF_OTHER_STORES = ("RYZ_REDIS_CA", "RYZ_REDIS_CERT", "RYZ_REDIS_KEY")

# what fork servers import
CONTROL_MODULES = tuple(f"services.{kind}.__main__" for kind in ("gateway", "router", "kvstate"))
LEADER_MODULES = ("services.worker.__main__",)
RANK_MODULES = ("services.worker.engine.rank.fork_server", "services.worker.engine.rank.rank_process")

STREAMS, FILES = "jetstream", "files"  # directories of the state: of batches, and of their files
STREAMS_BYTES = 10 * 2**30  # that batches may have on disk; nothing is reserved


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
        sleeping: Leaders that the host's agent starts, beside those of `specs`.
        more_leaders: Plans those of a model that is added while the stack runs.
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
    sleeping: Sequence[ServiceSpec] = ()
    more_leaders: Callable[[FoundModel], list[ServiceSpec]] = lambda _: []

    @property
    def drain_s(self) -> str:
        """Seconds that running requests have to finish when the stack ends, as text."""
        return next(spec.env["RYZ_DRAIN_TIMEOUT_S"] for spec in self.specs if spec.name == "gateway")

    def on_cores(self, cores: CoreSets) -> "StackPlan":
        """Return this plan with every process on its cores."""

        def on_its_cores(spec: ServiceSpec) -> ServiceSpec:
            number = group_number(spec.name)
            return replace(spec, cores=cores.others if number is None else cores.of_group(number))

        return replace(
            self,
            specs=[on_its_cores(spec) for spec in self.specs],
            sleeping=[on_its_cores(spec) for spec in self.sleeping],
            more_leaders=lambda model: [on_its_cores(spec) for spec in self.more_leaders(model)],
        )


def plan_stack(
    options: UpOptions,
    models: Sequence[FoundModel],
    probes: Probes,
    environ: Mapping[str, str],
    kv_pool: Mapping[str, str] = MappingProxyType({}),
) -> StackPlan:
    """Decide ports and processes; fail when a wanted port is taken or a server cannot be found.

    Args:
        models: What is served, with all that was left open; groups are numbered in this order.
        probes: Ask services whether they are ready.
        kv_pool: Settings of the workers for KV blocks in the memory of the host.
    """
    check_ports(options, environ)
    grpc_host = _grpc_host(options, environ)
    names = ["kvstate", "router", *(f"router-{number}" for number in range(2, options.routers + 1))]
    groups = [model for model in models for _ in range(model.entry.groups)]
    # one call, so that all are different: the admin ports, then those that were given as 0
    free = pick_ports(len(names) + len(groups) + 2)
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
    admin_ports = free[: len(names) + len(groups)]
    for name, port in zip(names, admin_ports, strict=False):
        env = shared_by(name) | admin_address(port) | _own_settings(name, options, stores)
        specs.append(plan_service(name, env, probes.admin(port), drain))
    of_workers = shared_by("worker") | stores.variables("worker") | dict(kv_pool)
    top_priority = max((model.entry.priority for model in models), default=0)
    planner = GroupPlanner(options, of_workers, environ, len(groups), top_priority)
    numbered = enumerate(zip(groups, admin_ports[len(names) :], strict=True))
    leaders = [planner.plan(model, n, port, probes.admin(port)) for n, (model, port) in numbered]
    starting, sleeping = _parted(leaders, models)
    specs += starting
    url = f"{_scheme(environ)}://{_reachable(options.host)}:{http_port}"
    probe_key = secrets.token_hex(16)
    api = _api_settings(options, http_port, environ) | {"RYZ_PROBE_KEY": probe_key}
    addresses = [("127.0.0.1", port) for port in admin_ports]
    if options.grpc_port:
        addresses.append((grpc_host, options.grpc_port))
    probe = probes.gateway(url, sorted(model.name for model in models), probe_key)
    if aliases := aliases_of(models):  # without any the gateway inherits `RYZ_MODEL_ALIASES`
        api[ALIASES] = aliases
    gateway = plan_service("gateway", shared_by("gateway") | api, probe, drain)
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
        sleeping=sleeping,
        more_leaders=_planner_of_more(planner, len(leaders), probes),
    )


def _parted(
    leaders: Sequence[ServiceSpec], models: Sequence[FoundModel]
) -> tuple[list[ServiceSpec], list[ServiceSpec]]:
    """Return the leaders that are started with the stack, and the others."""
    left = {model.name: model.entry.groups_at_start for model in models}
    starting, sleeping = list[ServiceSpec](), list[ServiceSpec]()
    for leader in leaders:
        left[leader.model] -= 1
        (starting if left[leader.model] >= 0 else sleeping).append(leader)
    return starting, sleeping


def _planner_of_more(
    planner: GroupPlanner, first: int, probes: Probes
) -> Callable[[FoundModel], list[ServiceSpec]]:
    """Return what plans the leaders of added models, whose groups are numbered from `first` on."""
    numbers = count(first)

    def plan_leaders(model: FoundModel) -> list[ServiceSpec]:
        ports = pick_ports(model.entry.groups)
        return [planner.plan(model, next(numbers), port, probes.admin(port)) for port in ports]

    return plan_leaders


def _own_settings(name: str, options: UpOptions, stores: Stores) -> dict[str, str]:
    """Settings of the KV state service or of a router."""
    if name == "kvstate":
        return stores.variables(name)
    return {"RYZ_ROUTER_POLICY": options.policy}


def _api_settings(options: UpOptions, http_port: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Settings of the gateway's doors."""
    api = {"RYZ_HTTP_HOST": options.host, "RYZ_HTTP_PORT": str(http_port)}
    if not environ.get("RYZ_FILES_DIR"):
        api["RYZ_FILES_DIR"] = str(options.state_dir / FILES)
    if options.grpc_port:
        api["RYZ_GRPC_PORT"] = str(options.grpc_port)
    if options.open_to_network:
        api["RYZ_OPEN_TO_NETWORK"] = "true"
    return api


def aliases_of(models: Sequence[FoundModel]) -> str:
    """Return other names of models as the gateway's setting."""
    return ",".join(f"{alias}={model.name}" for model in models for alias in model.entry.aliases)


def _scheme(environ: Mapping[str, str]) -> str:
    return "https" if environ.get("RYZ_HTTP_CERT") else "http"


def _imports(options: UpOptions) -> dict[str, Sequence[str]]:
    ranks = RANK_MODULES if options.engine == "torch" else ()
    return {CONTROL_FORKS: CONTROL_MODULES, WORKER_FORKS: LEADER_MODULES + ranks}


def _server(
    name: str, command: list[str], probe: Callable[[], Awaitable[bool]], env: Mapping[str, str] | None = None
) -> ServiceSpec:
    return ServiceSpec(name, command, probe, SERVERS, GRACE_S[SERVERS], env or {})


def _grpc_host(options: UpOptions, environ: Mapping[str, str]) -> str:
    return environ.get("RYZ_GRPC_HOST") or options.host


def check_ports(options: UpOptions, environ: Mapping[str, str]) -> None:
    """Fail, naming the option and the process that has it, when a wanted port is taken."""
    find, without = "let one be found", "do without"
    wanted = [
        (options.host, options.port, "--port", find),
        (_grpc_host(options, environ), options.grpc_port, "--grpc-port", without),
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
