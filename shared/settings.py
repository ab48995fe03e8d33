"""Settings that all services share, and how a service reads its own.

A setting comes from the environment variable `RYZ_<NAME>`; settings are read once, at the start, and do not
change. A wrong value ends the start with one line that names the variable, the value and what was expected.
"""

import os
import secrets
import socket
import sys
from typing import Literal, NoReturn, TypeVar

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.address import check_address
from shared.bus.accounts import caller_by
from shared.redact import redact
from shared.subjects import Caller
from shared.tls import with_files

ENV_PREFIX = "RYZ_"
STORE_URL = r"^((redis|rediss|unix)://[^\s]+)?$"  # of a setting that may be empty


def _default_instance() -> str:
    # a restarted container keeps host name and pid, so they alone do not tell two lives apart
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


class BusSettings(BaseSettings):
    """How the broker is reached; commands that only ask something need no more."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    nats_url: str = Field(default="nats://127.0.0.1:4222", pattern=r"^(nats|tls|ws|wss)://[^\s]+$",
                          description="The broker; commas separate the servers of a cluster.")  # fmt: skip
    nats_connect_wait_s: float = Field(
        default=10.0, gt=0, le=600, description="How long a start waits for the broker."
    )
    nats_inbox: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9_=-]+(\.[A-Za-z0-9_=-]+)*)?$",
        description="Where answers come; default: `_INBOX.` and the user in the broker's URL, or `_INBOX`.",
    )
    nats_tenant: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9_-]{0,64}$",
        description="For services outside: the tenant of the broker's user; default: the user's name.",
    )
    nats_ca: str = Field(
        default="",
        description="A PEM file with the authorities that may have signed the broker's certificate; with "
        "it, or with `tls://`, there is no connection without TLS. Empty: those of the system.",
    )
    nats_cert: str = Field(
        default="", description="A PEM file with our certificate, for a broker that asks for one."
    )
    nats_key: str = Field(default="", description="Its private key; empty: it is in the certificate's file.")
    nats_local: bool = Field(
        default=False,
        description="Nothing is sent to a broker on a loopback address unless it is a process of this user "
        "or of root, by /proc/net/tcp. `ryz up` sets it for its own broker.",
    )

    def caller(self, url: str = "") -> Caller | None:
        """Who a service outside is by the broker's URL; None: none of those. See `caller_by`."""
        return caller_by(url or self.nats_url, self.nats_tenant)


class RedisTlsSettings(BaseSettings):
    """TLS to Redis, for those who have a `redis_url`; `redis_address` joins them."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    redis_ca: str = Field(
        default="",
        description="A PEM file with the authorities that may have signed Redis's certificate, for a "
        "`rediss://` address. Empty: those of the system.",
    )
    redis_cert: str = Field(
        default="", description="A PEM file with our certificate, for a Redis that asks for one."
    )
    redis_key: str = Field(default="", description="Its private key; empty: it is in the certificate's file.")

    def redis_address(self, url: str, variable: str = "RYZ_REDIS_URL") -> str:
        """The URL with these files in it; raises `InvalidRequest`, with the variable, for one of no use."""
        check_address(url, variable)
        return with_files(url, self.redis_ca, self.redis_cert, self.redis_key, variable)


class SessionSizeSettings(BaseSettings):
    """How large a session may be, for the store of them and for who refuses one before it gets there."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    session_max_bytes: int = Field(
        default=512 * 1024,
        ge=1024,
        le=8 * 1024 * 1024,
        description="The largest session record; it has to fit into one message of the broker. The same for "
        "KV state services and gateways.",
    )


class CommonSettings(BusSettings):
    """What every service needs. Services derive their own from it."""

    instance_id: str = Field(
        default_factory=_default_instance,
        pattern=r"^[A-Za-z0-9_.-]{1,128}$",
        description="Names this process in logs, metrics and status; default: host, pid and a random part.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least to log."
    )
    log_format: Literal["json", "console"] = Field(default="json", description="How log lines look.")
    admin_host: str = Field(default="127.0.0.1", description="Where /live, /ready and /metrics are served.")
    admin_port: int = Field(default=0, ge=0, le=65535, description="Their port; 0 takes a free one.")
    ports_held: bool = Field(
        default=False,
        description="`ryz up` sets it for its services: a socket of this user holds their HTTP ports, the "
        "gateway's too, also while no process listens there. Linux only.",
    )
    metrics_key: SecretStr = Field(
        default=SecretStr(""),
        description="/metrics asks for it as `Authorization: Bearer <key>`, and /ready gives no details "
        "without it. Empty: both are open.",
    )
    drain_timeout_s: float = Field(
        default=5.0, ge=0, le=3600, description="How long a stopping service lets requests finish."
    )
    trace_ratio: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of new traces that are recorded. Context is passed on always.",
    )
    trace_export: Literal["none", "console", "otlp"] = Field(default="none", description="Where spans go.")
    otlp_endpoint: str = Field(
        default="", description="The OpenTelemetry collector; empty: the exporter's default."
    )


S = TypeVar("S", bound=BaseSettings)


def load(kind: type[S]) -> S:
    """The settings of that kind from the environment; ends the process with status 2 if one is wrong."""
    try:
        return kind()
    except ValidationError as error:
        _refuse(error, kind.model_config.get("env_prefix", ENV_PREFIX))


def describe(error: ValidationError, prefix: str = ENV_PREFIX) -> str:
    """One line for all wrong settings: variable, value, what was expected."""
    parts = []
    for item in error.errors():
        name = "".join(f"_{part}" for part in item["loc"])[1:].upper()
        value = f"={redact(repr(item['input']))}" if item["type"] != "missing" else " is not set"
        parts.append(f"{prefix}{name}{value}: {item['msg']}")
    return "; ".join(parts)


def _refuse(error: ValidationError, prefix: str) -> NoReturn:
    print(f"wrong setting: {describe(error, prefix)}", file=sys.stderr)
    raise SystemExit(2)
