"""The pages about debugging name files, alerts, metrics, settings and log events that exist."""

import re
from pathlib import Path

import pytest

from tools.docs.logs import log_events

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    ROOT / "docs" / "debugging.md",
    ROOT / "docs" / "logs.md",
    *(ROOT / "docs" / "debugging").glob("*.md"),
]
RULES = [*(ROOT / "deploy").glob("alerts*.yaml"), *(ROOT / "deploy" / "prometheus").glob("*.yaml")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
        assert (page.parent / link).exists(), link
    for other, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", text):
        target = (page.parent / other).read_text() if other else text
        titles = {
            re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
            for title in re.findall(r"^#+ (.*)$", target, re.M)
        }
        assert anchor in titles, f"{other}#{anchor}"


def test_names_of_alerts_metrics_and_settings_exist() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    rules = "\n".join(path.read_text() for path in RULES)
    assert [name for name in re.findall(r"`(Ryz[A-Z]\w+)`", text) if f"alert: {name}\n" not in rules] == []
    metrics, settings = ((ROOT / "docs" / name).read_text() for name in ("metrics.md", "settings.md"))
    named = {
        re.sub(r"_(total|bucket|count|sum)$", "", name)
        for name in re.findall(r"\b(ryz_[a-z_]+[a-z])\b", text)
    }
    assert [name for name in sorted(named) if name not in metrics] == []
    variables = set(re.findall(r"\b(RYZ_[A-Z_]+[A-Z])\b", text)) - {"RYZ_ROUTER"}
    assert [name for name in sorted(variables) if f"`{name}`" not in settings] == []


def test_events_of_the_table_are_logged() -> None:
    text = (ROOT / "docs" / "debugging.md").read_text()
    table = text[text.index("| event | service | content |") :].partition("\n\n")[0]
    events = {one for row in table.splitlines()[2:] for one in re.findall(r"`([^`]+)`", row.split("|")[1])}
    written = {one.event for one in log_events()} | {"log lines left out"}
    assert events - written == set()
    assert len(events) > 10
