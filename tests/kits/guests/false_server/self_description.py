"""How the false server describes itself, as the servers do that it imitates."""

from typing import Any

from tests.kits.guests.false_server.scripts import Object, Voice

SLOTS = 8
_OWNERS = {"vllm": "vllm", "llama.cpp": "llamacpp", "text": "me", "strict": "someone"}
_VLLM_METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="demo"} 3.0
vllm:num_requests_waiting{engine="0",model_name="demo"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="demo"} 0.25
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="%d"} 1.0
"""
_LLAMA_METRICS = """\
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
llamacpp:requests_deferred 0
"""


def describe(voice: Voice, path: str, body: Object) -> object:
    """What a path of the server says; None: there is nothing."""
    own: Object = {"id": voice.model, "object": "model", "owned_by": _OWNERS[voice.style]}
    if path == "/v1/models":
        if voice.style == "vllm":
            own["max_model_len"] = voice.context_length
            adapter = {"id": "an-adapter", "parent": voice.model, "owned_by": "vllm"}
            return {"object": "list", "data": [own, adapter]}
        return {"object": "list", "data": [own]}
    found: dict[str, Any] = {}
    match voice.style:
        case "vllm":
            found = {
                "/version": {"version": "0.99.0"},
                "/health": "",
                "/metrics": _VLLM_METRICS % voice.kv_blocks,
            }
            found["/tokenize"] = {"tokens": _tokens(voice, body.get("prompt"))}
        case "llama.cpp":
            settings = {"n_ctx": voice.context_length}
            props = {"default_generation_settings": settings, "total_slots": SLOTS, "build_info": "b1-x"}
            found = {"/props": props, "/health": {"status": "ok"}, "/metrics": _LLAMA_METRICS}
            found["/tokenize"] = {"tokens": _tokens(voice, body.get("content"))}
        case "text":
            found = {"/openapi.json": {"info": {"title": "llama.cpp Python API", "version": "0.0.1"}}}
    return found.get(path)


def _tokens(voice: Voice, text: object) -> list[int]:
    return voice.prompt_ids(text) if isinstance(text, str) else []
