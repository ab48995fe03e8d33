"""The kernel's count of processes that it ended because memory was short."""

from pathlib import Path

from shared.host.oom_kills import oom_kills


def test_the_count_is_read_and_zero_where_there_is_none(tmp_path: Path) -> None:
    page = tmp_path / "vmstat"
    assert oom_kills(page) == 0
    page.write_text("pgfault 12\n")
    assert oom_kills(page) == 0
    page.write_text("pgfault 12\noom_kill 4\noom_kill_disable 9\n")
    assert oom_kills(page) == 4
    assert oom_kills() >= 0
