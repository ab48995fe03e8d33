"""The gateway's settings, read from `RYZ_...` once at the start."""

from typing import Annotated

from annotated_types import Interval
from pydantic import SecretStr

from services.gateway.admission.json_shape import MAX_VALUES
from services.gateway.file_settings import FileSettings
from services.gateway.realtime_settings import RealtimeSettings
from shared.setting_types import (
    From1MiB,
    PerSecond,
    Port,
    Share,
    UpToDay,
    UpToHour,
    UpToMillion,
    UpToMinute,
    UpToTenMinutes,
    UpToTenSeconds,
    ZeroToHour,
    ZeroToMillion,
)
from shared.settings import CommonSettings, SessionSizeSettings
from shared.web.http_limits import HttpLimits


class GatewaySettings(CommonSettings, SessionSizeSettings, HttpLimits, FileSettings, RealtimeSettings):
    """Where it listens, who may ask, and the limits of every request."""

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
    grpc_max_connections: UpToMillion = 1024
    """Open gRPC connections."""
    grpc_max_requests: UpToMillion = 256
    """Calls that one gRPC connection may have open, and requests that one gRPC stream may have running; more
    wait."""
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
    max_body_bytes: Annotated[int, Interval(ge=1024, le=2**30)] = 4 * 1024 * 1024
    """Largest body of a request."""
    max_body_values: Annotated[int, Interval(ge=4096, le=2**26)] = MAX_VALUES
    """Fields, list entries, objects and lists in one body, token ids included."""
    body_timeout_s: UpToHour = 30.0
    """How long a body may take to arrive."""
    body_min_rate: Annotated[int, Interval(ge=0, le=2**30)] = 4096
    """Bytes per second that a body must bring after its first five seconds; 0: any."""
    max_bodies: UpToMillion = 1024
    """Bodies that may be arriving at the same time."""
    max_held_bytes: From1MiB = 512 * 2**20
    """Bytes of bodies that are arriving or whose requests run."""
    max_unread_bytes: From1MiB = 512 * 2**20
    """Memory of answers that wait for their readers or their ends; beyond it the largest are cut off."""
    write_timeout_s: UpToHour = 30.0
    """How long a reader may take for the next 64 KiB of an answer before it is cut off."""
    max_answer_entries: Annotated[int, Interval(ge=1024, le=2**31)] = 524_288
    """Limit of one request: choices times tokens of each, times its log probabilities per token plus one."""
    max_concurrent: UpToMillion = 1024
    """Generations that may run at the same time."""
    tenant_share: Share = 0.5
    """Share of places, bodies, bytes and parked streams that one tenant may have where keys name several;
    without keys, the share of `RYZ_MAX_BODIES` of one address, which may have 7/8 of everything else."""
    max_prompts: Annotated[int, Interval(ge=1, le=999)] = 64
    """Prompts in one completion call."""
    max_embedding_inputs: Annotated[int, Interval(ge=1, le=4096)] = 2048
    """Inputs of one call of `/v1/embeddings`."""
    keep_alive_s: Annotated[int, Interval(ge=1, le=3600)] = 75
    """How long an idle connection stays open."""
    default_timeout_s: UpToDay = 300.0
    """Time limit of a request that gives none."""
    max_timeout_s: UpToDay = 600.0
    """Longest time limit that a request may ask for."""
    models_timeout_s: UpToMinute = 2.0
    """Time limit for the list of models."""
    sessions_timeout_s: UpToMinute = 5.0
    """Time limit of a call about a session."""
    holders_wait_s: UpToTenSeconds = 0.1
    """How long groups may take to tell what they hold of a session."""
    header_wait_s: UpToTenMinutes = 2.0
    """How long a stream's status waits for the first text or a failure."""
    stream_grace_s: ZeroToHour = 0.0
    """How long a stream goes on after its client went away, unless the client asks otherwise; 0: not at all.
    """
    stream_max_grace_s: ZeroToHour = 60.0
    """Longest time that a client may ask for in `X-Stream-Grace`."""
    stream_max_parked: ZeroToMillion = 256
    """Streams that may go on without their clients; others are cancelled at once."""
    stream_attach_timeout_s: UpToMinute = 2.0
    """How long leaders may take to tell that they have a stream."""
    idempotency_find_ms: Annotated[int, Interval(ge=1, le=10_000)] = 50
    """How long leaders may take to tell that they have a call with that Idempotency-Key."""
    response_background_max: UpToMillion = 128
    """Responses that may run in the background at the same time; their events are kept in memory."""
    response_lease_s: Annotated[float, Interval(ge=0.1, le=600)] = 15.0
    """How long after the last sign of life of a gateway others take over its background responses."""
    response_sockets_max: UpToMillion = 1024
    """Open WebSockets of the Responses API."""
    response_events_bytes: From1MiB = 64 * 2**20
    """Bytes of events of background responses that are kept for readers; beyond it those of ended ones go
    first."""
    response_socket_idle_s: UpToDay = 600.0
    """How long a WebSocket may be open without a request."""
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
