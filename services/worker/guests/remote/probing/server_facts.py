"""Finds out what kind of server answers: by what it serves beside completions, never by its name alone."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from services.worker.guests.remote.options import RemoteOptions
from services.worker.guests.remote.wire.remote_http import RemoteHttp, Reply
from services.worker.guests.remote.wire.server_error import ServerError
from services.worker.rank_protocol.failures import EngineFailed, EngineRefused

Kind = Literal["vllm", "sglang", "llama.cpp", "llama-cpp-python", "tgi", "ollama", "openai"]
_NAMES: Mapping[Kind, str] = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llama.cpp": "llama.cpp",
    "llama-cpp-python": "llama-cpp-python",
    "tgi": "TGI",
    "ollama": "Ollama",
    "openai": "OpenAI-compatible server",
}
# asking for its models interrupts a stream of llama-cpp-python's server
_HEALTH: Mapping[Kind, str] = {
    "llama-cpp-python": "/openapi.json",
    "ollama": "/api/version",
    "openai": "/v1/models",
}
_ASKED = ("/version", "/props", "/get_server_info", "/info", "/api/version", "/metrics", "/openapi.json")
_MODELS = "/v1/models"
_MAX_NAMED = 10
_CACHE_BLOCKS = re.compile(rb'^vllm:cache_config_info\{[^}]*?num_gpu_blocks="(\d+)"', re.MULTILINE)
_BLOCK_SIZE = re.compile(rb'^vllm:cache_config_info\{[^}]*?block_size="(\d+)"', re.MULTILINE)


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A server as it describes itself; 0 and empty: it does not say.

    Attributes:
        base_model: The model that `model` is an adapter of, or the model itself.
        adapters: Names of the adapters that it has loaded for the same model.
    """

    kind: Kind
    name: str
    base_model: str
    adapters: frozenset[str] = frozenset()
    context_length: int = 0
    max_running: int = 0
    kv_tokens: int = 0
    has_metrics: bool = False

    @property
    def health_path(self) -> str:
        """What is asked for to see whether it answers."""
        return _HEALTH.get(self.kind, "/health")


async def read_facts(http: RemoteHttp, options: RemoteOptions) -> ServerFacts:
    """Ask the server what it is.

    Raises:
        EngineFailed: It does not answer, or has not loaded its model yet.
        EngineRefused: It refuses the key, redirects, or has no such model.
    """
    models = await _get_models(http, options)
    replies = await asyncio.gather(*(_get(http, path, options) for path in _ASKED))
    answers = dict(zip(_ASKED, replies, strict=True))
    found = {path: reply.json() for path, reply in answers.items() if reply is not None}
    objects = {path: value for path, value in found.items() if isinstance(value, dict)}
    listed = _listed(models)
    own = next((one for one in listed if one.get("id") == options.model), {})
    if listed and not own:
        names = [str(one.get("id")) for one in listed]
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        raise EngineRefused(
            f"the server at {options.host} has no model {options.model!r}; it has "
            f"{', '.join(map(repr, names[:_MAX_NAMED]))}{more}"
        )
    kind = _kind(objects, own, models)
    version = _version(kind, objects)
    base = str(own.get("parent") or options.model)
    metrics = answers["/metrics"]
    lines = metrics.body if metrics is not None else b""
    return ServerFacts(
        kind=kind,
        name=f"{_NAMES[kind]} {version}".rstrip(),
        base_model=base,
        adapters=frozenset(
            str(one["id"]) for one in listed if one.get("parent") == base and isinstance(one.get("id"), str)
        ),
        context_length=_context_length(objects, own),
        max_running=_max_running(kind, objects),
        kv_tokens=_kv_tokens(objects, lines),
        has_metrics=bool(lines) and answers["/metrics"] is not None,
    )


async def _get_models(http: RemoteHttp, options: RemoteOptions) -> Reply:
    where = f"the server at {options.host}"
    try:
        reply = await http.get(_MODELS, options.probe_timeout_s)
    except ServerError as error:
        raise EngineFailed(f"{where} {error}; start it, or name another address", "start_failed") from error
    if reply.status in (401, 403) or 300 <= reply.status < 400:
        raise EngineRefused(f"{where} {http.refusal(reply)}")
    if reply.status >= 500 or reply.status == 429:
        raise EngineFailed(
            f"{where} {http.refusal(reply)}; it is asked again when it has loaded", "start_failed"
        )
    return reply


async def _get(http: RemoteHttp, path: str, options: RemoteOptions) -> Reply | None:
    """Return what is there; None if there is nothing."""
    try:
        reply = await http.get(path, options.health_timeout_s)
    except ServerError:
        return None
    return reply if reply.status == 200 else None


def _listed(models: Reply) -> list[dict[str, Any]]:
    value = models.json() if models.status == 200 else None
    data = value.get("data") if isinstance(value, dict) else None
    return [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []


def _kind(objects: Mapping[str, dict[str, Any]], own: Mapping[str, Any], models: Reply) -> Kind:
    owner = own.get("owned_by")
    title = str(_path(objects, "/openapi.json", "info", "title") or "")
    native = "default_generation_settings" in objects.get("/props", {})
    signs: Mapping[Kind, bool] = {  # in this order: some servers imitate the paths of others
        "sglang": owner == "sglang" or "/get_server_info" in objects,
        "llama.cpp": owner == "llamacpp" or native or models.headers.get("server") == "llama.cpp",
        "vllm": owner == "vllm",
        "llama-cpp-python": "llama.cpp Python" in title,
        "tgi": "max_total_tokens" in objects.get("/info", {}),
        "ollama": "version" in objects.get("/api/version", {}),
    }
    return next((kind for kind, shown in signs.items() if shown), "openai")


def _version(kind: Kind, objects: Mapping[str, dict[str, Any]]) -> str:
    paths: Mapping[Kind, tuple[str, ...]] = {
        "vllm": ("/version", "version"),
        "sglang": ("/get_server_info", "version"),
        "llama.cpp": ("/props", "build_info"),
        "llama-cpp-python": ("/openapi.json", "info", "version"),
        "tgi": ("/info", "version"),
        "ollama": ("/api/version", "version"),
    }
    found = _path(objects, *paths[kind]) if kind in paths else None
    return found[:40] if isinstance(found, str) and found.isprintable() else ""


def _context_length(objects: Mapping[str, dict[str, Any]], own: Mapping[str, Any]) -> int:
    found = (
        own.get("max_model_len"),
        _path(objects, "/props", "default_generation_settings", "n_ctx"),
        _path(objects, "/get_server_info", "context_length"),
        _path(objects, "/info", "max_total_tokens"),
    )
    return min((size for one in found if (size := _count(one))), default=0)


def _max_running(kind: Kind, objects: Mapping[str, dict[str, Any]]) -> int:
    if kind == "llama-cpp-python":
        return 1  # another request interrupts the running one
    found = (
        _path(objects, "/props", "total_slots"),
        _path(objects, "/get_server_info", "max_running_requests"),
        _path(objects, "/info", "max_concurrent_requests"),
    )
    return max(map(_count, found))


def _kv_tokens(objects: Mapping[str, dict[str, Any]], metrics: bytes) -> int:
    blocks, size = _CACHE_BLOCKS.search(metrics), _BLOCK_SIZE.search(metrics)
    if blocks and size:
        return int(blocks[1]) * int(size[1])
    slots = _count(_path(objects, "/props", "total_slots"))
    per_slot = _count(_path(objects, "/props", "default_generation_settings", "n_ctx"))
    return slots * per_slot or _count(_path(objects, "/get_server_info", "max_total_num_tokens"))


def _path(objects: Mapping[str, dict[str, Any]], path: str, *names: str) -> object:
    value: object = objects.get(path)
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _count(value: object) -> int:
    return value if type(value) is int and value > 0 else 0
