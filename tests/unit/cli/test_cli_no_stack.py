"""What commands about tenants say where no stack is up, or where a name cannot be one."""

from pathlib import Path

import pytest

from cli.command_groups import BrokerOptions
from cli.console import CommandError
from cli.stack.state import DEFAULT_DIR, StateDir
from cli.status.query import no_broker
from cli.tenants.tenant_options import TenantOptions
from cli.tenants.usage import usage
from cli.tenants.values import LimitOptions
from cli.tenants.work import create_tenant

NOBODY = "nats://127.0.0.1:9"


def test_usage_without_a_broker_is_one_sentence(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(
        CommandError, match=f"^No broker answers at {NOBODY}, and no stack is up in {tmp_path}"
    ):
        usage(as_json=False, nats_url=NOBODY, state_dir=tmp_path)
    assert capfd.readouterr() == ("", "")


def test_only_a_directory_that_was_named_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert no_broker(NOBODY, StateDir(DEFAULT_DIR)).startswith("No broker answers at nats://127.0.0.1:9. ")
    assert f", and no stack is up in {tmp_path / 'other'}. " in no_broker(
        NOBODY, StateDir(tmp_path / "other")
    )


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 65])
def test_a_name_that_no_tenant_can_have_is_told_without_a_stack(name: str) -> None:
    with pytest.raises(CommandError, match="is no name of a tenant: 1 to 64 letters, digits, - and _"):
        create_tenant(name, TenantOptions(), LimitOptions(), BrokerOptions(nats_url=NOBODY))
