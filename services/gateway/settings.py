"""The gateway's settings, read from `RYZ_...` once at the start."""

from pydantic import Field, SecretStr

from services.gateway.bodies.json_shape import MAX_VALUES
from shared.settings import CommonSettings, SessionSizeSettings
from shared.web.limits import HttpLimits


class GatewaySettings(CommonSettings, SessionSizeSettings, HttpLimits):
    """Where it listens, who may ask, and the limits of every request."""

    http_host: str = Field(default="127.0.0.1", description="Where the API is served.")
    http_port: int = Field(default=8000, ge=0, le=65535, description="Its port; 0 takes a free one.")
    http_cert: str = Field(
        default="", description="A PEM file with the API's certificate: it is served by HTTPS only."
    )
    http_key: str = Field(default="", description="Its private key; empty: it is in the certificate's file.")
    http_allowed_hosts: str = Field(
        default="",
        description="Names that `Host` may have, separated by commas, without ports; `*.example.com`: all "
        "below it, `*`: any. Empty: addresses and loopback names; on an address that others reach also any "
        "with `RYZ_API_KEYS`, and without them names without a dot.",
    )
    http_allowed_origins: str = Field(
        default="",
        description="Origins of web pages that may use the API and read its answers, separated by commas, "
        "such as `https://chat.example`; `*`: any. Empty: none.",
    )
    api_keys: SecretStr = Field(
        default=SecretStr(""), description="`key:tenant,key:tenant`; empty: open to everybody, as `default`."
    )
    probe_key: SecretStr = Field(
        default=SecretStr(""),
        description="`GET /v1/models` takes it in place of an API key, and nothing else does. `ryz up` makes "
        "one for its own questions.",
    )
    open_to_network: bool = Field(
        default=False,
        description="Serve without API keys although other machines reach `RYZ_HTTP_HOST`.",
    )
    http_published: str = Field(
        default="",
        description="The address at which others reach the API where `RYZ_HTTP_HOST` does not tell, such as "
        "that of a container's published port; it is what counts for serving without API keys.",
    )
    session_key: SecretStr = Field(
        default=SecretStr(""),
        description="A secret of 16 characters or more, the same for all gateways: with it the id of "
        "a session does not tell what it begins with. Empty: made of the password in `RYZ_NATS_URL`.",
    )
    max_body_bytes: int = Field(
        default=4 * 1024 * 1024, ge=1024, le=2**30, description="The largest body of a request."
    )
    max_body_values: int = Field(
        default=MAX_VALUES,
        ge=4096,
        le=2**26,
        description="Fields, list entries, objects and lists in one body, token ids included.",
    )
    body_timeout_s: float = Field(
        default=30.0, gt=0, le=3600, description="How long a body may take to arrive."
    )
    body_min_rate: int = Field(
        default=4096,
        ge=0,
        le=2**30,
        description="Bytes a second that a body must bring after its first five seconds; 0: any.",
    )
    max_bodies: int = Field(
        default=1024, ge=1, le=1_000_000, description="Bodies that may be on their way at the same time."
    )
    max_held_bytes: int = Field(
        default=512 * 2**20,
        ge=2**20,
        le=2**40,
        description="Bytes of bodies that are on their way or whose requests run.",
    )
    max_unread_bytes: int = Field(
        default=512 * 2**20,
        ge=2**20,
        le=2**40,
        description="Memory of answers that wait for their readers or for their ends; beyond it the largest "
        "are cut off.",
    )
    write_timeout_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="How long a reader may take over the next 64 KiB of an answer before it is cut off.",
    )
    max_answer_entries: int = Field(
        default=524_288,
        ge=1024,
        le=2**31,
        description="The most that a request may ask for: choices times tokens of each, times the log "
        "probabilities at each token and one more.",
    )
    max_concurrent: int = Field(
        default=1024, ge=1, le=1_000_000, description="Generations that may run at the same time."
    )
    tenant_share: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="The part of places, bodies, bytes and parked streams that one tenant may have where "
        "keys name several; without keys, the part of RYZ_MAX_BODIES that one address may have.",
    )
    max_prompts: int = Field(default=64, ge=1, le=999, description="Prompts in one completion call.")
    keep_alive_s: int = Field(
        default=75, ge=1, le=3600, description="How long an idle connection stays open."
    )
    default_timeout_s: float = Field(
        default=300.0, gt=0, le=86_400, description="Time for a request that does not say."
    )
    max_timeout_s: float = Field(
        default=600.0, gt=0, le=86_400, description="The most a request may ask for."
    )
    models_timeout_s: float = Field(
        default=2.0, gt=0, le=60, description="How long a list of models may take to arrive."
    )
    sessions_timeout_s: float = Field(
        default=5.0, gt=0, le=60, description="How long a service may take over a call about a session."
    )
    holders_wait_s: float = Field(
        default=0.1,
        gt=0,
        le=10,
        description="How long groups may take to say what they hold of a session.",
    )
    header_wait_s: float = Field(
        default=2.0,
        gt=0,
        le=600,
        description="How long a stream's status waits for the first text or a failure.",
    )
    stream_grace_s: float = Field(
        default=0.0,
        ge=0,
        le=3600,
        description="How long a stream goes on whose client went away and did not say; 0: not at all.",
    )
    stream_max_grace_s: float = Field(
        default=60.0, ge=0, le=3600, description="The most that a client may ask for in `X-Stream-Grace`."
    )
    stream_max_parked: int = Field(
        default=256,
        ge=0,
        le=1_000_000,
        description="Streams that may go on without their clients; beyond that they are cancelled at once.",
    )
    stream_attach_timeout_s: float = Field(
        default=2.0, gt=0, le=60, description="How long leaders may take to say that they have a stream."
    )
    idempotency_find_ms: int = Field(
        default=50,
        ge=1,
        le=10_000,
        description="How long leaders may take to say that they have a call with that Idempotency-Key.",
    )
    rate_limit_rps: float = Field(
        default=0.0,
        ge=0,
        le=1e6,
        description="Requests a second of one tenant, in the long run; 0: no limit.",
    )
    rate_limit_burst: int = Field(
        default=20, ge=1, le=1_000_000, description="Requests of one tenant at once."
    )
    request_log: bool = Field(default=False, description="One line for every request, at level info.")
