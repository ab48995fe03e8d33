"""Copies the pages' libraries out of their npm packages, or checks that they are unchanged.

`python -m tools.pages.vendored` fetches each package with npm, compares it with the integrity that the
registry recorded, and copies its files; with `--check` it compares the copies instead. To take another
version, change `version` and `integrity` in `vendored.json` first (`npm view NAME@VERSION dist.integrity`).
"""

import argparse
import base64
import hashlib
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).parents[2] / "services/gateway/pages/static/vendor"
TABLE = VENDOR / "vendored.json"


def read_table() -> list[dict[str, str]]:
    """The vendored files: package, version, integrity of the package, path in it, name here, hash."""
    table: list[dict[str, str]] = json.loads(TABLE.read_text())
    return table


def fetch_package(name: str, version: str, integrity: str, folder: Path) -> Path:
    """Fetches a package with npm.

    Raises:
        ValueError: It is not the package whose integrity was recorded.
        subprocess.CalledProcessError: npm cannot fetch it.
    """
    command = ["npm", "pack", f"{name}@{version}", "--json", "--pack-destination", str(folder)]
    output = subprocess.run(command, capture_output=True, check=True, timeout=120, text=True).stdout
    packed: list[dict[str, Any]] = json.loads(output)
    path = folder / str(packed[0]["filename"])
    algorithm, _, recorded = integrity.partition("-")
    found = base64.b64encode(hashlib.new(algorithm, path.read_bytes()).digest()).decode()
    if found != recorded:
        raise ValueError(f"{name}@{version} has the integrity {algorithm}-{found}, recorded is {integrity}")
    return path


def wrong_files(*, write: bool) -> list[str]:
    """Compares the files with their packages; with `write` it copies them first.

    Returns:
        The names of files that differ.
    """
    wrong: list[str] = []
    table = read_table()
    packages: dict[tuple[str, str, str], Path] = {}
    with tempfile.TemporaryDirectory() as folder:
        for entry in table:
            its = entry["package"], entry["version"], entry["integrity"]
            if its not in packages:
                packages[its] = fetch_package(*its, Path(folder))
            package = packages[its]
            with tarfile.open(package) as archive:
                member = archive.extractfile(f"package/{entry['source']}")
                content = member.read() if member else b""
            path = VENDOR / entry["file"]
            if write:
                path.write_bytes(content)
                entry["sha256"] = hashlib.sha256(content).hexdigest()
            if not path.exists() or path.read_bytes() != content:
                wrong.append(entry["file"])
    if write:
        TABLE.write_text(json.dumps(table, indent=2) + "\n")
    return wrong


def main() -> None:
    """The entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file differs")
    if wrong := wrong_files(write=not parser.parse_args().check):
        raise SystemExit(f"differ from their packages: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
