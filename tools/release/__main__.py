"""Makes a release in `dist/`, from the tag that is checked out: `python -m tools.release` (`make release`).

Wheel and sdist of the stack and of its client, the images if a Docker engine answers, their bills of
materials, the release's part of the changelog, and SHA256SUMS. Exit code 1: nothing was made, and why.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from tools.release.archives import checksums
from tools.release.bills import write_bill
from tools.release.builds import build_images, build_packages, export, machine_words
from tools.release.checks import NoRelease, checked_release

ROOT = Path(__file__).resolve().parents[2]


def make(root: Path, target: Path, *, images: bool) -> list[str]:
    """Make everything in a folder, which is emptied before; return lines that say what was made.

    Raises:
        NoRelease: Something is not as it has to be, or a step failed.
    """
    release = checked_release(root)
    with tempfile.TemporaryDirectory() as made:
        tree, parts = Path(made) / "tree", Path(made) / "dist"
        tree.mkdir()
        parts.mkdir()
        export(root, release.commit, tree)
        build_packages(tree, release, parts)
        write_bill(tree, parts / f"ryzanstein-{release.version}.cdx.json")
        (parts / f"CHANGES-{release.version}.md").write_text(f"{release.changes}\n")
        said = build_images(tree, release, parts) if images else ["no images: `--no-images`"]
        sums = checksums(parts.iterdir())
        (parts / "SHA256SUMS").write_text(sums)
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(parts, target)
    return [f"{release.version} of {release.commit}, built on {machine_words()}", *said, *sums.splitlines()]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Makes a release from the tag that is checked out.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    parser.add_argument("--no-images", dest="images", action="store_false", help="wheels and sdists only")
    options = parser.parse_args()
    try:
        print("\n".join(make(ROOT, options.folder.resolve(), images=options.images)))
    except NoRelease as error:
        print(f"No release was made: {error}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
