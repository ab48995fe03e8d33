"""`deploy/configure.py` as a script: passwords are made once, and images are pinned by digest."""

import stat
from pathlib import Path

import pytest

from deploy import configure
from services.gateway.admission.auth import parse_keys
from services.gateway.resources.sessions.root_key import MIN_KEY_CHARS
from shared.bus.accounts import ACCOUNTS as BUS
from shared.redis_accounts import ACCOUNTS as REDIS
from tests.kits.deploy.script import run_configure as run
from tests.kits.deploy.script import stand_in_docker

OURS = {one.password_variable for one in BUS.values()} | {one.password_variable for one in REDIS.values()}
OURS.add("RYZ_GRAFANA_PASSWORD")
OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def test_every_user_gets_a_password_of_its_own_that_its_owner_alone_reads(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    done = run(file, "secrets")
    assert done.returncode == 0, done.stderr
    values = configure.assigned(file.read_text())
    assert set(values) == OURS
    assert len(set(values.values())) == len(values)
    assert all(value.isalnum() and value.isascii() and value[0].isalpha() for value in values.values())
    assert all(len(value) >= 32 for value in values.values())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not any(value in done.stdout + done.stderr for value in values.values())
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_set_stays_and_what_is_missing_is_added(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(
        "# ours\nRYZ_NATS_CLI_PASSWORD='mine-and-only'\n\nRYZ_HTTP_PORT=9000 # note\n"
        "# RYZ_NATS_ROUTER_PASSWORD=old\nRYZ_NATS_WORKER_PASSWORD=\n"
        "export RYZ_REDIS_WORKER_PASSWORD=kept-as-it-is"
    )
    file.chmod(0o644)
    assert run(file, "secrets").returncode == 0
    text = file.read_text()
    lines = text.splitlines()
    assert lines[:5] == [
        "# ours", "RYZ_NATS_CLI_PASSWORD='mine-and-only'", "", "RYZ_HTTP_PORT=9000 # note",
        "# RYZ_NATS_ROUTER_PASSWORD=old",
    ]  # fmt: skip
    assert lines[5].startswith("RYZ_NATS_WORKER_PASSWORD=")
    assert lines[6] == "export RYZ_REDIS_WORKER_PASSWORD=kept-as-it-is"
    assert set(configure.assigned(text)) == OURS | {"RYZ_HTTP_PORT"}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run(file, "secrets").stdout.strip().endswith("nothing was missing")
    assert file.read_text() == text


WRONG = [
    ("RYZ_NATS_WORKER_PASSWORD", "7letters-after", "begins with a digit"),
    ("RYZ_NATS_WORKER_PASSWORD", "p@ss/word-and", "characters that a URL does not take"),
    ("RYZ_REDIS_KVSTATE_PASSWORD", "false", "fewer than 8"),
    ("RYZ_SESSION_KEY", "guess me", "RYZ_SESSION_KEY has fewer than 16"),
    ("RYZ_API_KEYS", "long-enough:ada,short:bob", "entry 2"),
]


@pytest.mark.parametrize(("name", "value", "says"), WRONG)
def test_what_no_service_could_start_with_is_reported_once_and_nothing_is_written(
    tmp_path: Path, name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ".env"
    file.write_text(text := f"{name}='{value}'\n")
    monkeypatch.setenv(name, value)  # `check` reads what Compose hands to the container
    for what in ("secrets", "check"):
        done = run(file, what)
        assert done.returncode == 2
        assert says in done.stderr
        assert name in done.stderr
        assert value not in done.stderr
    assert file.read_text() == text


def test_the_limits_are_those_of_the_gateway() -> None:
    assert configure.MIN_SESSION_KEY == MIN_KEY_CHARS
    longest_refused = "k" * (configure.MIN_API_KEY - 1)
    with pytest.raises(ValueError, match="key of at least"):
        parse_keys(f"{longest_refused}:ada")
    assert configure.problems({"RYZ_API_KEYS": f"{longest_refused}:ada"})
    assert parse_keys(f"{longest_refused}k:ada")
    assert not configure.problems({"RYZ_API_KEYS": f"{longest_refused}k:ada"})


def test_comments_are_no_part_of_a_value() -> None:
    text = "A=1 # one\nB='a # b' # note\nC=#none\nD=a#b\n"
    assert configure.assigned(text) == {"A": "1", "B": "a # b", "D": "a#b"}


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / ".env"
    real.write_text("A=1\n")
    link.symlink_to(real)
    assert run(link, "secrets").returncode == 0
    assert link.is_symlink()
    assert configure.assigned(real.read_text())["A"] == "1"


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
    done = run(file, "images", path=stand_in_docker(tmp_path, script))
    assert done.returncode == 0, done.stderr
    values = configure.assigned(file.read_text())
    assert values == {
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
    done = run(file, "images", path=stand_in_docker(tmp_path, script))
    assert done.returncode == 1
    assert says in done.stderr
    assert file.read_text() == "A=1\n"


def test_without_docker_it_says_so(tmp_path: Path) -> None:
    done = run(tmp_path / ".env", "images", path=str(tmp_path))
    assert done.returncode == 1
    assert "no `docker` on PATH" in done.stderr
