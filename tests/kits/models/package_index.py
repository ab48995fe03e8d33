"""A package index with wheels that hold parts of a model, and the environment in which pip uses only that."""

import hashlib
import io
import random
import zipfile
from pathlib import Path

import pytest

from cli.models.catalogue import CatalogueModel, CatalogueWheel
from tests.kits.models.file_server import Answer, FileServer

SIZE = 600_000  # bytes of a model


def model_in_wheels(server: FileServer, parts: int = 1) -> CatalogueModel:
    """Put a model of random bytes into wheels of the server's index; return its entry of a catalogue."""
    content = random.Random(7).randbytes(SIZE)
    each = -(-SIZE // parts)
    wheels = []
    for number in range(parts):
        part = content[number * each : (number + 1) * each]
        project = f"some-model-part{number}"
        name = f"{project.replace('-', '_')}-1.0-py3-none-any.whl"
        wheel = _wheel(project, part)
        server.answers[f"/simple/{project}/"] = Answer(
            f'<html><a href="/files/{name}">{name}</a></html>'.encode(), headers={"Content-Type": "text/html"}
        )
        server.answers[f"/files/{name}"] = Answer(wheel, headers={"Content-Type": "application/zip"})
        wheels.append(
            CatalogueWheel(
                project=project,
                version="1.0",
                size=len(wheel),
                sha256=hashlib.sha256(wheel).hexdigest(),
                member="data/model.gguf",
                member_size=len(part),
            )
        )
    return CatalogueModel(
        name="some-model",
        title="Some model",
        licence="MIT",
        memory=1,
        notes="",
        file="some-model.gguf",
        size=SIZE,
        sha256=hashlib.sha256(content).hexdigest(),
        wheels=tuple(wheels),
    )


def file_path(model: CatalogueModel) -> str:
    """Return the path of the first wheel's file on the server."""
    wheel = model.wheels[0]
    return f"/files/{wheel.project.replace('-', '_')}-{wheel.version}-py3-none-any.whl"


def use_index(server: FileServer, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip know no other index, and keep models in that directory."""
    for name in (
        "PIP_FIND_LINKS",
        "PIP_EXTRA_INDEX_URL",
        "PIP_NO_INDEX",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    monkeypatch.setenv("RYZ_MODELS_DIR", str(models))


def _wheel(project: str, part: bytes) -> bytes:
    name = project.replace("-", "_")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("data/model.gguf", part)
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('nothing of a wheel is to be executed')\n")
        metadata = f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n"
        archive.writestr(f"{name}-1.0.dist-info/METADATA", metadata)
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return packed.getvalue()
