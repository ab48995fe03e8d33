"""The first container of Compose: passwords are made once, each service reads its own, keys are checked."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.containers import init
from services.gateway.admission.auth import parse_keys
from services.gateway.resources.sessions.root_key import MIN_KEY_CHARS
from shared.bus.accounts import ACCOUNTS as BUS
from shared.redis_accounts import ACCOUNTS as REDIS

NO_GROUPS = dict.fromkeys(init.GROUPS, os.getgid())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(init, "SECRETS", tmp_path)
    monkeypatch.setattr(init, "VOLUMES", tmp_path / "volumes")
    for name in [name for name in os.environ if name.startswith("RYZ_")]:
        monkeypatch.delenv(name)
    write = init.write
    monkeypatch.setattr(init, "write", lambda folder, values: write(folder, values, NO_GROUPS))
    return tmp_path


def test_every_user_gets_a_password_of_its_own_and_each_service_reads_only_its_own(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init.main([]) == 0
    values = init.read(folder / init.ALL)
    passwords = {name: value for name, value in values.items() if name.endswith("_PASSWORD")}
    accounts = {one.password_variable for one in BUS.values()} | {
        one.password_variable for one in REDIS.values()
    }
    assert set(passwords) == accounts | {"RYZ_GRAFANA_PASSWORD"}
    assert len(set(values.values())) == len(values)
    assert all(init.PASSWORD.fullmatch(value) and len(value) == init.LENGTH for value in passwords.values())
    said = capsys.readouterr()
    assert not any(value in said.out + said.err for value in values.values())
    assert stat.S_IMODE((folder / init.ALL).stat().st_mode) == 0o600
    for role in init.GROUPS:
        file = folder / (role if role == "grafana" else f"{role}.env")
        assert stat.S_IMODE(file.stat().st_mode) == 0o440
        seen = {name for name, value in passwords.items() if value in file.read_text()}
        own = role.partition("-")[0].upper()
        if role == "nats":
            assert seen == {one.password_variable for one in BUS.values()}
        elif role == "redis":
            assert seen == {"RYZ_REDIS_KVSTATE_PASSWORD"}, "workers have no user where sessions are"
        elif role == "redis-kv":
            assert seen == {one.password_variable for one in REDIS.values()}
        else:
            allowed = {f"RYZ_NATS_{own}_PASSWORD", f"RYZ_REDIS_{own}_PASSWORD", f"RYZ_{own}_PASSWORD"}
            assert seen == allowed & set(passwords), role
    assert not list(folder.glob(".*")), "no file is left half written"


def test_passwords_stay_until_they_are_rotated_and_the_key_of_sessions_stays_then(folder: Path) -> None:
    assert init.main([]) == 0
    first = init.read(folder / init.ALL)
    assert init.main([]) == 0
    assert init.read(folder / init.ALL) == first
    assert init.main(["rotate"]) == 0
    second = init.read(folder / init.ALL)
    assert [name for name in first if first[name] == second[name]] == ["RYZ_SESSION_KEY"]


def test_passwords_of_the_environment_are_taken_also_at_a_rotation(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RYZ_NATS_GATEWAY_PASSWORD", "mine-and-only")
    assert init.main(["rotate"]) == 0
    values = init.read(folder / init.ALL)
    assert values["RYZ_NATS_GATEWAY_PASSWORD"] == "mine-and-only"
    assert values["RYZ_SESSION_KEY"] == "", "ids of sessions go on having that password as their key"
    capsys.readouterr()
    assert init.main(["show", "RYZ_NATS_GATEWAY_PASSWORD"]) == 0
    assert capsys.readouterr().out == "mine-and-only\n"
    assert init.main(["show", "RYZ_NO_PASSWORD"]) == 2
    assert "RYZ_GRAFANA_PASSWORD" in capsys.readouterr().err


def test_a_shell_reads_what_was_written(tmp_path: Path) -> None:
    values = {"A": "it's $HOME", "B": ""}
    file = tmp_path / "x.env"
    file.write_text(init.shell_text(values))
    probe = "import os; print(os.environ['A'], repr(os.environ['B']))"
    done = subprocess.run(
        ["sh", "-c", f'. {file}; exec {sys.executable} -c "$0"', probe],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "it's $HOME ''\n"
    assert init.read(file) == values


WRONG = [
    ("RYZ_NATS_WORKER_PASSWORD", "7letters-after", "begins with a digit"),
    ("RYZ_NATS_WORKER_PASSWORD", "p@ss/word-and", "characters that a URL does not take"),
    ("RYZ_REDIS_KVSTATE_PASSWORD", "false", "fewer than 8"),
    ("RYZ_SESSION_KEY", "guess me", "RYZ_SESSION_KEY has fewer than 16"),
    ("RYZ_API_KEYS", "long-enough:ada,short:bob", "entry 2"),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_no_service_could_start_with_is_reported_once_and_nothing_is_written(
    folder: Path,
    wrong: tuple[str, str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, value, says = wrong
    monkeypatch.setenv(name, value)
    assert init.main([]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert name in said
    assert value not in said
    assert list(folder.iterdir()) == []


def test_the_limits_are_those_of_the_gateway() -> None:
    assert init.MIN_SESSION_KEY == MIN_KEY_CHARS
    longest_refused = "k" * (init.MIN_API_KEY - 1)
    with pytest.raises(ValueError, match="key of at least"):
        parse_keys(f"{longest_refused}:ada")
    assert init.problems({"RYZ_API_KEYS": f"{longest_refused}:ada"})
    assert parse_keys(f"{longest_refused}k:ada")
    assert not init.problems({"RYZ_API_KEYS": f"{longest_refused}k:ada"})
