"""Speaks as much of the Hugging Face Hub's protocol as a pull needs, with large files behind a redirection.

The protocol: https://huggingface.co/docs/hub/api, and the headers that `huggingface_hub` reads.
"""

import hashlib
import json

from cli.stack.model_dir import demo_model
from tests.kits.models.file_server import Answer, FileServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".gguf", ".bin")


def demo_files() -> dict[str, bytes]:
    """Return the demo model's files, and some that a repository has beside them and no pull takes."""
    wanted = (
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    )
    files = {name: (demo_model() / name).read_bytes() for name in wanted}
    return files | {
        "pytorch_model.bin": b"pickle",
        "modeling.py": b"raise SystemExit",
        "README.md": b"# Model",
    }


def add_model(server: FileServer, name: str, files: dict[str, bytes], revision: str = "main") -> None:
    """Let the server have a repository with these files at one commit."""
    siblings = []
    for path, content in files.items():
        position, lfs = f"/{name}/resolve/{COMMIT}/{path}", path.endswith(LARGE)
        sha256 = hashlib.sha256(content).hexdigest()
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        about: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": git}
        if lfs:
            about["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
            server.answers[cdn_path(path)] = Answer(content)
            server.answers[position] = Answer(status=302, headers={"Location": server.url + cdn_path(path)})
        else:
            server.answers[position] = Answer(content, headers={"ETag": f'"{git}"'})
        server.answers[position].headers["X-Repo-Commit"] = COMMIT
        siblings.append(about)
    info = {"id": name, "sha": COMMIT, "siblings": siblings, "cardData": {"license": "apache-2.0"}}
    answer = Answer(json.dumps(info).encode(), headers={"Content-Type": "application/json"})
    server.answers[f"/api/models/{name}"] = answer
    server.answers[f"/api/models/{name}/revision/{revision}"] = answer


def refuse(server: FileServer, name: str, status: int, code: str) -> None:
    """Let the server refuse a repository as the Hub does."""
    server.answers[f"/api/models/{name}"] = Answer(b"{}", status, {"X-Error-Code": code} if code else {})


def cdn_path(path: str) -> str:
    """Return where the content of a large file is."""
    return f"/cdn/{path.replace('/', '-')}"
