"""Options of a supervisor for tests."""

from pathlib import Path

from cli.stack.options import UpOptions


def options(folder: Path, **changes: object) -> UpOptions:
    given: dict[str, object] = {
        "state_dir": folder, "model": None, "model_name": "demo", "engine": "null", "groups": 2,
        "tensor_parallel": 2, "host": "127.0.0.1", "port": 0, "policy": "hybrid", "nats_url": "",
        "redis_url": "", "nats_port": 0, "redis_port": 0, "redis_dir": None, "log_level": "info",
        "start_timeout_s": 30.0, "precision": "int8", "kernels": "plain",
        "threads": 3, "kv_cache_tokens": 4096,
    }  # fmt: skip
    return UpOptions(**{**given, **changes})  # type: ignore[arg-type]
