"""Few functions have more than ten branches; `ruff check` refuses those with more than fifteen."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
MOST = 40


def above(branches: int, *paths: str) -> list[str]:
    """The functions in these paths with more branches, a line each."""
    command = [sys.executable, "-m", "ruff", "check", "--select", "C901", "--output-format", "concise"]
    rule = ["--config", f"lint.mccabe.max-complexity={branches}", "--exit-zero", "--no-cache"]
    found = subprocess.run([*command, *rule, *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in found.stdout.splitlines() if " C901 " in line]


def test_at_most_forty_functions_have_more_than_ten_branches() -> None:
    found = above(10, ".")
    assert len(found) <= MOST, "\n".join(found)


def test_branches_are_counted(tmp_path: Path) -> None:
    source = tmp_path / "branches.py"
    source.write_text(
        "def decide(n):\n" + "".join(f"    if n == {n}:\n        return {n}\n" for n in range(11))
    )
    assert len(above(10, str(source))) == 1
    assert above(12, str(source)) == []
