"""A start says that the records of tenants and keys are gone which its state directory had."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.keys import lost_records
from shared.accounts.keys import new_key
from shared.bus.nats import NatsBus
from shared.errors import Unavailable

URL = "nats://cli:word@127.0.0.1:1"


async def told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, version: int = 0, reason: str = "", url: str = URL
) -> str:
    """The note where the register has that version, or is refused for that reason."""

    class Client:
        def __init__(self, *_: Any) -> None: ...

        async def read(self) -> Any:
            if reason:
                raise Unavailable("refused", reason=reason)
            return SimpleNamespace(version=version)

    class Bus:
        async def close(self) -> None: ...

    async def connect(*_: Any, **__: Any) -> Bus:
        return Bus()

    monkeypatch.setattr(lost_records, "AccountsClient", Client)
    monkeypatch.setattr(NatsBus, "connect", connect)
    return await lost_records.lost_records_note(folder, url, folder / "jetstream")


async def test_it_is_said_where_there_was_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await told(tmp_path, monkeypatch) == "", "a new directory"
    file = tmp_path / "admin.key"
    file.write_text(f"{new_key().text}\n")
    file.chmod(0o600)
    assert "taken on this machine" in await told(tmp_path, monkeypatch)
    assert "refused" in await told(tmp_path, monkeypatch, reason="accounts_emptied")
    assert await told(tmp_path, monkeypatch, version=7) == ""
    assert await told(tmp_path, monkeypatch, reason="accounts_store") == "", "not known"
    assert await told(tmp_path, monkeypatch, url="") == "", "another broker"
    file.write_text("# sk-ryz-x is revoked\n")
    assert await told(tmp_path, monkeypatch) == ""
