"""The file with the first admin key follows its key: rotated, revoked, or of another stack."""

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.keys.kept_admin_key import note_revoked, note_rotated, read_kept
from cli.stack.state import StateDir
from shared.accounts.keys import key_id_of, new_key


def kept(folder: Path, text: str) -> Path:
    file = folder / "admin.key"
    file.write_text(f"{text}\n")
    file.chmod(0o600)
    return file


def test_a_rotated_key_is_replaced_in_one_step(tmp_path: Path) -> None:
    old, new = new_key(), new_key()
    file = kept(tmp_path, old.text)
    with file.open() as reader:
        assert str(file) in note_rotated(tmp_path, old.key_id, new.text)
        assert reader.read().strip() == old.text, "who has it open reads the whole old file"
    assert file.read_text() == f"{new.text}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file], "no draft is left"


def test_the_key_is_read_until_it_is_revoked(tmp_path: Path) -> None:
    assert read_kept(tmp_path) == ""
    key = new_key()
    kept(tmp_path, key.text)
    assert read_kept(tmp_path) == key.text
    note_revoked(tmp_path, {key.key_id})
    assert read_kept(tmp_path) == ""


def test_a_revoked_key_is_said_to_be_revoked(tmp_path: Path) -> None:
    old = new_key()
    file = kept(tmp_path, old.text)
    assert "ryz keys create --admin" in note_revoked(tmp_path, {old.key_id})
    text = file.read_text()
    assert text.startswith(f"# sk-ryz-{old.key_id} is revoked")
    assert old.text not in text
    assert key_id_of(text.strip()) is None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_file_of_another_key_stays(tmp_path: Path) -> None:
    assert note_revoked(tmp_path, {new_key().key_id}) == "", "there is no file"
    mine, other = new_key(), new_key()
    file = kept(tmp_path, mine.text)
    assert note_rotated(tmp_path, other.key_id, new_key().text) == ""
    assert note_revoked(tmp_path, {other.key_id}) == ""
    assert file.read_text() == f"{mine.text}\n"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    mine, folder = new_key(), tmp_path / "state"
    folder.mkdir()
    file = kept(tmp_path, mine.text)
    (folder / "admin.key").symlink_to(file)
    assert note_rotated(folder, mine.key_id, new_key().text) == ""
    assert file.read_text() == f"{mine.text}\n"


def test_a_file_that_cannot_be_written_is_said_to_be_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = new_key()
    kept(tmp_path, old.text)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cli.keys.kept_admin_key.replace_private", full)
    words = note_rotated(tmp_path, old.key_id, new_key().text)
    assert "out of date" in words
    assert "No space left" in words


def test_a_draft_that_was_left_keeps_the_directory_a_stacks(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    StateDir(folder).make()
    (folder / "admin.key.4711").write_text("left by a crash\n")
    folder.chmod(0o755)
    StateDir(folder).make()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("command", [("tenants", "create"), ("keys", "create"), ("tenants", "set")])
def test_help_names_no_upper_end_of_limits(command: tuple[str, str]) -> None:
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert shown.exit_code == 0
    assert "x>=0" in shown.output
    assert "9007199254740992" not in shown.output


@pytest.mark.parametrize("number", [2**53 + 1, -1])
def test_a_limit_beyond_the_range_is_refused(number: int) -> None:
    done = CliRunner().invoke(
        app, ["tenants", "create", "acme", f"--running={number}"], env={"COLUMNS": "200"}
    )
    assert done.exit_code == 2
    assert "--running" in done.output
