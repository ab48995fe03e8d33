"""The bound on the words of a decision record."""

from pathlib import Path

import pytest

from tools.docs import decision_records


def test_a_record_of_401_words_is_named_and_one_of_400_is_not(tmp_path: Path) -> None:
    (tmp_path / "0001-short.md").write_text("word " * 400)
    (tmp_path / "0002-long.md").write_text("word\n" * 401)
    (line,) = decision_records.too_long(tmp_path)
    assert line.startswith("docs/decisions/0002-long.md: 401 words, at most 400")


def test_the_check_fails_with_what_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_records, "RECORDS", tmp_path)
    decision_records.main()
    (tmp_path / "0003-long.md").write_text("word " * 401)
    with pytest.raises(SystemExit, match="0003-long"):
        decision_records.main()


def test_the_records_of_this_repository_keep_the_bound() -> None:
    assert decision_records.too_long(decision_records.RECORDS) == []
