"""The gateway's settings, those of files and batches among them, read from `RYZ_...` once at the start."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from annotated_types import Interval
from pydantic import BaseModel, SecretStr

from services.gateway.constants import GatewayConstants, constant_settings
from shared.setting_types import (
    From1MiB,
    PerSecond,
    Port,
    SecondToTenYears,
    Share,
    UpToDay,
    UpToHour,
    UpToMillion,
    UpToMinute,
    UpToTenThousand,
    ZeroToHour,
    ZeroToMillion,
)
from shared.settings import CommonSettings, SessionSizeSettings
from shared.web.http_limits import HttpConnections

SessionFrom = Literal["conversation", "cache_key", "user"]


class FileSettings(BaseModel, use_attribute_docstrings=True):
    """Where files are, how many a tenant may have, and how much of a batch is done at a time."""

    files_store: Literal["directory", "nats"] = "directory"
    """Where files are: in `RYZ_FILES_DIR`, which gateways on several hosts must share, or in the object store
    of the broker's JetStream."""
    files_dir: str = ".ryz/files"
    """The directory of files; it is made when the first one comes."""
    file_max_bytes: From1MiB = 200 * 2**20
    """Largest file."""
    files_max_per_tenant: UpToMillion = 1000
    """Files of one tenant, results of batches included."""
    files_bytes_per_tenant: From1MiB = 10 * 2**30
    """Bytes of a tenant's files together."""
    batch_ttl_s: SecondToTenYears = 30 * 86_400.0
    """How long a batch is kept after its end; its files stay."""
    batch_share: Share = 0.5
    """Share of the groups' running places that batches may take, while no interactive request waits."""
    batch_max_running: UpToTenThousand = 64
    """Requests of batches that this gateway runs at a time; with `RYZ_BATCH_SHARE` the lower one holds."""
    batch_lease_s: Annotated[float, Interval(ge=1, le=600)] = 10.0
    """How long after the last sign of life of a gateway others take over its batches and their requests."""


class GatewaySettings(CommonSettings, SessionSizeSettings, HttpConnections, FileSettings):
    """Where it listens, who may ask, and the limits of every request."""

    gone: ClassVar[Mapping[str, object]] = constant_settings()
    constants: ClassVar[GatewayConstants] = GatewayConstants()

    http_host: str = "127.0.0.1"
    """Address of the API."""
    http_port: Port = 8000
    """Its port; 0 takes a free one."""
    http_cert: str = ""
    """PEM file of the API's certificate; with it the API is served by HTTPS only."""
    http_key: str = ""
    """Its private key; empty: it is in the certificate's file."""
    grpc_port: Port = 0
    """Port of gRPC ([grpc.md](grpc.md)); 0: no gRPC. It has the certificate of HTTP."""
    grpc_host: str = ""
    """Address of gRPC; empty: `RYZ_HTTP_HOST`."""
    http_allowed_hosts: str = ""
    """Allowed names in `Host`, separated by commas, without ports; `*.example.com`: all below it, `*`: any.
    Empty: addresses and loopback names; on an address that other machines reach also any with `RYZ_API_KEYS`,
    and without them names without a dot."""
    http_allowed_origins: str = ""
    """Origins of web pages that may use the API, separated by commas, such as `https://chat.example`; `*`:
    any. Empty: none."""
    pages: bool = True
    """Serve the [pages](pages.md): the chat at `/` and the live view at `/cluster`."""
    api_keys: SecretStr = SecretStr("")
    """`key:tenant,key:tenant`; empty: no key is needed, and the tenant is `default`."""
    admin_keys: SecretStr = SecretStr("")
    """Keys that may manage models (`/v1/manage/models`), separated by commas, or `@FILE`, which has one in
    each line. Empty: callers on this machine may, and no others."""
    oidc_issuer: str = ""
    """Address of an identity provider whose tokens (OpenID Connect) are valid beside API keys, such as
    `https://id.example/realms/llm`; it needs the extra `oidc`. Empty: none."""
    oidc_audience: str = ""
    """For whom tokens have to be (`aud`); needed with `RYZ_OIDC_ISSUER`."""
    oidc_claims: str = "tenant=tenant"
    """Claims of a token that say what its holder may do, such as
    `tenant=org,models=llm_models,apis=llm_apis,admin=groups:llm-admins,read_only=groups:readers`. Each that
    is named here has to be in the token, `admin` and `read_only` apart."""
    probe_key: SecretStr = SecretStr("")
    """Accepted by `GET /v1/models` in place of an API key, and nowhere else. `ryz up` makes one for its own
    probes."""
    open_to_network: bool = False
    """Serve without API keys although other machines reach `RYZ_HTTP_HOST`."""
    http_published: str = ""
    """The address at which other machines reach the API where `RYZ_HTTP_HOST` does not show it, such as that
    of a container's published port; it decides whether API keys are needed."""
    session_key: SecretStr = SecretStr("")
    """A secret of 16 characters or more, the same for all gateways; it hides in a session's id what the
    session begins with. Empty: derived from the password in `RYZ_NATS_URL`."""
    session_from: SessionFrom = "cache_key"
    """What decides on the group of a request that names no session. `cache_key`: its `prompt_cache_key`, else
    how the conversation begins; `user`: its `prompt_cache_key`, else its `user` (`metadata.user_id` of
    Messages), else how it begins; `conversation`: always that. Equal keys of two tenants have nothing in
    common."""
    max_body_bytes: Annotated[int, Interval(ge=1024, le=2**30)] = 4 * 1024 * 1024
    """Largest body of a request."""
    body_timeout_s: UpToHour = 30.0
    """How long a body may take to arrive."""
    max_held_bytes: From1MiB = 512 * 2**20
    """Bytes of bodies that are arriving or whose requests run."""
    max_unread_bytes: From1MiB = 512 * 2**20
    """Memory of answers that wait for their readers or their ends; beyond it the largest are cut off."""
    write_timeout_s: UpToHour = 30.0
    """How long a reader may take for the next 64 KiB of an answer before it is cut off."""
    max_concurrent: UpToMillion = 1024
    """Generations that may run at the same time."""
    tenant_share: Share = 0.5
    """Share of places, bodies, bytes and parked streams that one tenant may have where keys name several;
    without keys, the share of the bodies on their way (1024) of one address, which may have 7/8 of everything
    else."""
    keep_alive_s: Annotated[int, Interval(ge=1, le=3600)] = 75
    """How long an idle connection stays open."""
    default_timeout_s: UpToDay = 300.0
    """Time limit of a request that gives none."""
    max_timeout_s: UpToDay = 600.0
    """Longest time limit that a request may ask for."""
    stream_grace_s: ZeroToHour = 0.0
    """How long a stream goes on after its client went away, unless the client asks otherwise; 0: not at all.
    """
    stream_max_grace_s: ZeroToHour = 60.0
    """Longest time that a client may ask for in `X-Stream-Grace`."""
    realtime_grace_s: ZeroToHour = 10.0
    """How long a stream goes on after its WebSocket of `/v1/realtime` was lost, to be resumed;
    `X-Stream-Grace` of the request comes before it, and `RYZ_STREAM_MAX_GRACE_S` bounds it. 0: not at all."""
    stream_max_parked: ZeroToMillion = 256
    """Streams that may go on without their clients; others are cancelled at once."""
    stream_attach_timeout_s: UpToMinute = 2.0
    """How long leaders may take to tell that they have a stream."""
    response_background_max: UpToMillion = 128
    """Responses that may run in the background at the same time; their events are kept in memory."""
    sockets_max: UpToMillion = 1024
    """Open WebSockets of `/v1/realtime`, and as many of the Responses API."""
    response_lease_s: Annotated[float, Interval(ge=0.1, le=600)] = 15.0
    """How long after the last sign of life of a gateway others take over its background responses."""
    rate_limit_rps: PerSecond = 0.0
    """Requests per second of one tenant, in the long run; 0: no limit."""
    rate_limit_burst: UpToMillion = 20
    """Requests that one tenant may send at once."""
    rate_limit_tpm: Annotated[int, Interval(ge=0, le=10**12)] = 0
    """Tokens per minute of one tenant, of prompts and answers; 0: no limit. A request counts for a quarter of
    its bytes while it runs, and for its tokens at its end, also if it is cut off."""
    outside_rps: PerSecond = 500.0
    """Requests per second for whole answers (`ryz.v1.complete`) from each bus user outside; 0: no limit."""
    model_aliases: str = ""
    """Other names of models, `name=model,name=model`, such as `gpt-4o=smollm2-135m,*=smollm2-135m`. A name
    with `*` is a pattern, for names that no group serves. Empty: none."""
    leave_out_changing_blocks: bool = True
    """Leave blocks out of prompts that clients are known to change with each request, such as Claude Code's
    `x-anthropic-billing-header`: they would end the reuse of KV at the first token."""
    max_priority: Annotated[int, Interval(ge=0, le=10)] = 0
    """How far a body's `priority` may put a request before others: -5 needs 5. 0: behind others only."""
    strict_fields: bool = False
    """Refuse a body with a field or tool that is not known or not served, also inside messages and options;
    else it is left out, told in the header `X-Ryz-Ignored`, and logged as a warning, once for each name."""
    request_log: bool = False
    """Log one line for every request, at level info."""
