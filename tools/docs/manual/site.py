"""What MkDocs needs to make a site of pages that are written for GitHub (`make site`).

README becomes a page, and so does a list of the decisions; links to other files of the repository become
plain text; blocks and tables in lists get the four blanks that Python-Markdown asks for.
"""

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[3]
START, DECISIONS = "start.md", "decisions/index.md"
LINK = re.compile(r"(?<!!)\[([^\]\n]*(?:\n[^\]\n]*)?)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^( *)(```|~~~)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add README and the list of decisions."""
    readme = re.sub(r"\]\(docs/", "](", (ROOT / "README.md").read_text())
    files.append(File.generated(config, START, content=readme))
    lines = ["# Decisions\n"]
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = path.read_text().partition("\n")[0].lstrip("# ")
        lines.append(f"- [{title}]({path.name})")
    files.append(File.generated(config, DECISIONS, content="\n".join(lines)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Adapt the links and the lists of a page."""
    folder = PurePosixPath(page.file.src_uri).parent
    return _four_blanks(LINK.sub(lambda match: _link(match, folder, files), markdown))


def _link(match: "re.Match[str]", folder: PurePosixPath, files: Files) -> str:
    text, target, section = match[1], match[2], match[3] or ""
    if not target or ":" in target:
        return match[0]
    parts: list[str] = []
    for part in (folder / target).parts:
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        else:
            parts.append(part)
    path = "/".join(parts)
    found = {"../README.md": START, "decisions": DECISIONS}.get(path, path)
    if files.get_file_from_path(found) is None:
        return text
    return f"[{text}]({'../' * len(PurePosixPath(folder).parts)}{found}{section})"


def _four_blanks(markdown: str) -> str:
    lines, fence = [], ""
    for line in markdown.split("\n"):
        found = FENCE.match(line)
        if found and (not fence or line.strip() == fence):
            fence = "" if fence else found[2] if not found[1] else ""
        lines.append(f" {line}" if line.startswith("   ") and not fence else line)
    return "\n".join(lines)
