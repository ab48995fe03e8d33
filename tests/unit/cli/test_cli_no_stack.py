"""What commands about tenants say where no stack is up, or where a name cannot be one."""

from pathlib import Path

import pytest

from cli.command_groups import BrokerOptions
from cli.console import CommandError
from cli.stack.state import DEFAULT_DIR, StateDir
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
    assert find_broker("", StateDir(DEFAULT_DIR)) == USUAL_BROKER
    assert find_broker(CLOSED_PORT, other) == CLOSED_PORT
    monkeypatch.setenv("RYZ_NATS_URL", CLOSED_PORT)
    assert find_broker("", other) == CLOSED_PORT


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 65])
def test_a_name_that_no_tenant_can_have_is_told_without_a_stack(name: str) -> None:
    with pytest.raises(CommandError, match="is no name of a tenant: 1 to 64 letters, digits, - and _"):
        create_tenant(name, TenantOptions(), LimitOptions(), BrokerOptions(nats_url=CLOSED_PORT))
