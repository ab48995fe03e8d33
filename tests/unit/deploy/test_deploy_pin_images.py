"""`deploy/pin_images.py` as a script: images are pinned by digest."""

import stat
from pathlib import Path

import pytest

from deploy.pin_images import with_values
from tests.kits.deploy.script import run_pin_images as run
from tests.kits.deploy.script import stand_in_docker

OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def test_other_lines_stay() -> None:
    text = "# ours\nA=1 # note\n\n# B=old\nB=\nexport C=3"
    assert with_values(text, {"B": "2", "D": "4"}) == "# ours\nA=1 # note\n\n# B=old\nB=2\nexport C=3\nD=4\n"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / ".env"
    real.write_text("A=1\n")
    link.symlink_to(real)
    assert run(link, stand_in_docker(tmp_path, BUILDX)).returncode == 0
    assert link.is_symlink()
    assert "RYZ_REDIS_IMAGE=" in real.read_text()


BUILDX = f"""[ "$1" = buildx ] && echo '{{"mediaType":"x","digest":"{NEW}"}}' || exit 1"""
PULL = f"""case "$1 $2" in
  "pull --quiet") ;;
  "image inspect") echo '["redis@{NEW}"]' ;;
  *) echo "unknown command: buildx" >&2; exit 1 ;;
esac"""


@pytest.mark.parametrize("script", [BUILDX, PULL], ids=["buildx", "pull"])
def test_images_are_pinned_and_renewed(tmp_path: Path, script: str) -> None:
    file = tmp_path / ".env"
    file.write_text(f"RYZ_REDIS_IMAGE=redis:7-alpine@{OLD}\nRYZ_NATS_CLI_PASSWORD=mine\n")
    done = run(file, stand_in_docker(tmp_path, script))
    assert done.returncode == 0, done.stderr
    assert dict(line.split("=", 1) for line in file.read_text().splitlines()) == {
        "RYZ_REDIS_IMAGE": f"redis:7-alpine@{NEW}",
        "RYZ_NATS_IMAGE": f"nats:2.12-alpine@{NEW}",
        "RYZ_PYTHON_IMAGE": f"python:3.11-slim@{NEW}",
        "RYZ_PROMETHEUS_IMAGE": f"prom/prometheus:v3.4.0@{NEW}",
        "RYZ_COLLECTOR_IMAGE": f"otel/opentelemetry-collector-contrib:0.123.0@{NEW}",
        "RYZ_LOKI_IMAGE": f"grafana/loki:3.5.1@{NEW}",
        "RYZ_JAEGER_IMAGE": f"jaegertracing/jaeger:2.12.0@{NEW}",
        "RYZ_GRAFANA_IMAGE": f"grafana/grafana:12.0.1@{NEW}",
        "RYZ_NATS_CLI_PASSWORD": "mine",
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "redis:7-alpine" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo 'no such host' >&2; exit 1", "no such host"),
        ("""[ "$1" = buildx ] && echo '{"digest":"latest"}'""", "no digest in a registry"),
        ("""case "$1" in buildx) exit 1 ;; image) echo '[]' ;; esac""", "no digest in a registry"),
    ],
)
def test_an_image_without_a_digest_changes_nothing(tmp_path: Path, script: str, says: str) -> None:
    file = tmp_path / ".env"
    file.write_text("A=1\n")
    done = run(file, stand_in_docker(tmp_path, script))
    assert done.returncode == 1
    assert says in done.stderr
    assert file.read_text() == "A=1\n"


def test_without_docker_it_says_so(tmp_path: Path) -> None:
    done = run(tmp_path / ".env", str(tmp_path))
    assert done.returncode == 1
    assert "no `docker` on PATH" in done.stderr
