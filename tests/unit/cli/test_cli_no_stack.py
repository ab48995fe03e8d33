"""What commands say where no stack is up, or where a name cannot be one."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.command_groups import BrokerOptions
from cli.console import CommandError
from cli.stack.state import DEFAULT_DIR, StateDir, no_stack
from cli.status.query import find_broker
from cli.tenants.tenant_options import TenantOptions
from cli.tenants.usage import usage
from cli.tenants.values import LimitOptions
from cli.tenants.work import create_tenant
from shared.host.local_stack import USUAL_BROKER

CLOSED_PORT = "nats://127.0.0.1:9"


def test_usage_without_a_broker_is_one_sentence(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=f"^No broker answers at {CLOSED_PORT}\\. "):
        usage(as_json=False, nats_url=CLOSED_PORT, state_dir=tmp_path)
    assert capfd.readouterr() == ("", "")


def test_a_directory_without_a_stack_means_no_other_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant would be deleted in the stack that has the default address."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RYZ_NATS_URL", raising=False)
    other = StateDir(tmp_path / "other")
    with pytest.raises(CommandError, match=f"^No stack is up in {other.path}\\. "):
        find_broker("", other)
    assert find_broker(CLOSED_PORT, other) == CLOSED_PORT
    monkeypatch.setenv("RYZ_NATS_URL", CLOSED_PORT)
    assert find_broker("", other) == CLOSED_PORT


def test_the_default_address_is_named_where_a_broker_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RYZ_NATS_URL", raising=False)
    here = StateDir(DEFAULT_DIR)
    monkeypatch.setattr("cli.status.query.somebody_listens", lambda url: url == USUAL_BROKER)
    assert find_broker("", here) == USUAL_BROKER
    monkeypatch.setattr("cli.status.query.somebody_listens", lambda url: False)
    with pytest.raises(CommandError) as caught:
        find_broker("", here)
    assert str(caught.value).startswith(f"No stack is up in {here.path}. `ryz up` starts one; ")
    assert "4222" not in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "top",
        "explain r-1234",
        "keys list",
        "groups list",
        "chat --once x",
        "sessions list",
        "batch list",
    ],
)
def test_all_commands_say_the_same(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    for variable in ("RYZ_NATS_URL", "RYZ_URL", "RYZ_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    for module in ("cli.status.query", "cli.http_api"):
        monkeypatch.setattr(f"{module}.somebody_listens", lambda url: False)
    error = CliRunner().invoke(app, command.split()).exception
    assert isinstance(error, CommandError)
    assert error.exit_code == 1
    assert str(error).startswith(no_stack(tmp_path / ".ryz").removesuffix("."))


def test_an_id_that_is_too_short_is_told_without_a_stack() -> None:
    error = CliRunner().invoke(app, ["explain", "r-x", "--nats-url", CLOSED_PORT]).exception
    assert str(error) == "Give at least four characters of the request's id."


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 65])
def test_a_name_that_no_tenant_can_have_is_told_without_a_stack(name: str) -> None:
    with pytest.raises(CommandError, match="is no name of a tenant: 1 to 64 letters, digits, - and _"):
        create_tenant(name, TenantOptions(), LimitOptions(), BrokerOptions(nats_url=CLOSED_PORT))
