"""Settings that services share, and how a service reads its own.

A setting comes from the environment variable `RYZ_<NAME>`. Settings are read once, at the start. A wrong
value ends the start with one line that names the variable, the value and what was expected. So does a
variable of an earlier version that is no setting any more (`shared/gone_settings.py`).
"""

import os
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, ClassVar, Literal, NoReturn, TypeVar

from annotated_types import Interval
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.address import check_address, redact
from shared.bus.accounts import caller_by
from shared.gone_settings import describe_gone
from shared.setting_types import Port, ShareOrNone, UpToTenMinutes, ZeroToHour, ZeroToMillion
from shared.subjects import OutsideService
from shared.telemetry.logs.schema import BURST
from shared.tls import with_files

ENV_PREFIX = "RYZ_"
OptionalStoreURL = Annotated[str, Field(pattern=r"^((redis|rediss|unix)://[^\s]+)?$", repr=False)]
Part = TypeVar("Part")


class RyzSettings(BaseSettings):
    """Read from `RYZ_...`; a field's docstring is its description in docs/settings.md."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, frozen=True, extra="forbid", use_attribute_docstrings=True
    )
    gone: ClassVar[Mapping[str, object]] = {}
    """Variables that are refused, as they are no settings any more; see `describe_gone`."""

    def part(self, kind: type[Part]) -> Part:
        """Return a dataclass made of settings: of the groups that it and these settings inherit.

        Its other fields need defaults.
        """
        groups = [base for base in kind.__mro__ if is_dataclass(base) and isinstance(self, base)]
        names = {field.name for group in groups for field in fields(group)}
        return kind(**{name: getattr(self, name) for name in names})


def _default_instance() -> str:
    # a restarted container keeps host name and pid, so the name needs a random part
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


class BusSettings(RyzSettings):
    """How to reach the broker; enough for commands that only send requests."""

    nats_url: Annotated[str, Field(pattern=r"^(nats|tls|ws|wss)://[^\s]+$")] = "nats://127.0.0.1:4222"
    """The broker; commas separate the servers of a cluster."""
    nats_connect_wait_s: UpToTenMinutes = 10.0
    """How long a starting service waits for the broker."""
    nats_inbox: Annotated[str, Field(pattern=r"^([A-Za-z0-9_=-]+(\.[A-Za-z0-9_=-]+)*)?$")] = ""
    """Subject prefix of replies; default: `_INBOX.` and the user in the broker's URL, or `_INBOX`."""
    nats_tenant: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,64}$")] = ""
    """For services outside: the tenant of the broker's user; default: the user's name."""
    nats_ca: str = ""
    """PEM file of authorities for the broker's certificate; it or `tls://` makes TLS a must. Empty: the
    system's."""
    nats_cert: str = ""
    """PEM file of this process's certificate, for a broker that asks for one."""
    nats_key: str = ""
    """Its private key; empty: it is in the certificate's file."""
    nats_local: bool = False
    """Send to a broker on a loopback address only if it is a process of this user or of root, by
    /proc/net/tcp. `ryz up` sets it for its own broker."""

    def caller(self, url: str = "") -> OutsideService | None:
        """Return the bus user that a service outside is, by the broker's URL, or None; see `caller_by`."""
        return caller_by(url or self.nats_url, self.nats_tenant)


class RedisSettings(RyzSettings):
    """Where KV blocks are, and TLS to Redis."""

    kv_redis_url: OptionalStoreURL = ""
    """The store for KV blocks, the same for groups and the KV state service; empty: `RYZ_REDIS_URL`."""
    redis_ca: str = ""
    """PEM file of authorities for Redis's certificate, with a `rediss://` address. Empty: the system's."""
    redis_cert: str = ""
    """PEM file of this process's certificate, for a Redis that asks for one."""
    redis_key: str = ""
    """Its private key; empty: it is in the certificate's file."""

    def redis_address(self, url: str, variable: str = "RYZ_REDIS_URL") -> str:
        """Return a Redis URL with these files in it.

        Raises:
            InvalidRequest: The URL cannot be used; the text names `variable`.
        """
        check_address(url, variable)
        return with_files(url, self.redis_ca, self.redis_cert, self.redis_key, variable)


class SessionSizeSettings(RyzSettings):
    """The size of a session, for the KV state service and for gateways, which refuse larger ones early."""

    session_max_bytes: Annotated[int, Interval(ge=1024, le=8 * 2**20)] = 512 * 1024
    """Largest session record; it has to fit into one message of the broker. Gateways and the KV state service
    need the same value."""


class CommonSettings(BusSettings):
    """Settings of every service."""

    instance_id: str = Field(default_factory=_default_instance, pattern=r"^[A-Za-z0-9_.-]{1,128}$")
    """Name of this process in logs, metrics and status; default: host, pid and a random part."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""
    log_format: Literal["json", "console"] = "json"
    """Format of log lines."""
    log_burst: ZeroToMillion = BURST
    """Log lines of one kind (level, event, type of exception) in ten seconds; further ones are counted and
    left out. 0: all are written."""
    compiled: Literal["auto", "off"] = "auto"
    """`auto`: modules that `make compile` made of these very sources are used; `off`: the sources are, for
    debuggers and profilers."""
    memory_trace: Annotated[int, Interval(ge=0, le=25)] = 0
    """Callers of each allocation that are kept, so that SIGUSR1 makes the service log where it holds memory.
    0: off; on, Python is slower and takes more memory."""
    admin_host: str = "127.0.0.1"
    """Address of /live, /ready and /metrics."""
    admin_port: Port = 0
    """Their port; 0 takes a free one."""
    ports_held: bool = False
    """`ryz up` sets it for its services: a socket of this user holds their HTTP ports while no process
    listens there. Linux only."""
    metrics_key: SecretStr = SecretStr("")
    """/metrics and the details of /ready need it as `Authorization: Bearer <key>`. Empty: both are open."""
    drain_timeout_s: ZeroToHour = 5.0
    """How long a stopping service lets running requests finish."""
    explain_requests: ZeroToMillion = 4096
    """Requests of which each service keeps when they passed its parts, for `ryz explain`; 0: none."""
    trace_ratio: ShareOrNone = 0.0
    """Share of new traces that are recorded. Context is always passed on."""
    trace_export: Literal["none", "console", "otlp"] = "none"
    """Destination of spans."""
    otlp_endpoint: str = ""
    """The OpenTelemetry collector; empty: OTEL_EXPORTER_OTLP_ENDPOINT, else port 4318 of this machine."""


S = TypeVar("S", bound=RyzSettings)


def load(kind: type[S]) -> S:
    """Read settings from the environment; a wrong one ends the process with status 2."""
    if problem := describe_gone(kind.gone, os.environ):
        _refuse(problem)
    try:
        return kind()
    except ValidationError as error:
        _refuse(describe(error, kind.model_config.get("env_prefix", ENV_PREFIX)))


def describe(error: ValidationError, prefix: str = ENV_PREFIX) -> str:
    """Describe all wrong settings in one line: variable, value, what was expected."""
    parts = []
    for item in error.errors():
        name = "".join(f"_{part}" for part in item["loc"])[1:].upper()
        value = f"={redact(repr(item['input']))}" if item["type"] != "missing" else " is not set"
        parts.append(f"{prefix}{name}{value}: {item['msg']}")
    return "; ".join(parts)


def _refuse(problem: str) -> NoReturn:
    print(f"wrong setting: {problem}", file=sys.stderr)
    raise SystemExit(2)
