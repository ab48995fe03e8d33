"""`python -m tools.newest [LIBRARY==VERSION ...]`: tries new versions; ends with 1 if something breaks."""

import argparse
import subprocess
import sys
from pathlib import Path

from tools.newest.environment import FOLDER, PYTHON, install, make_environment, run_tests, versions
from tools.newest.libraries import GROUPS, wanted_versions
from tools.newest.outcome import describe, read_outcome


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Runs the tests that concern libraries with newer versions.")
    parser.add_argument("requirements", nargs="*", metavar="LIBRARY==VERSION", help="none: all, the newest")
    try:
        wanted = wanted_versions(parser.parse_args().requirements)
    except ValueError as error:
        parser.error(str(error))
    make_environment()
    try:
        install(one for group in wanted.values() for one in group)
    except subprocess.CalledProcessError:
        sys.exit("pip could not install these versions, so nothing was tried; its words are above")
    works, said = True, list[str]()
    for name in wanted:
        group, report = GROUPS[name], FOLDER / f"{name}.xml"
        outcome = read_outcome(report, run_tests(group.tests, report))
        before, after = (versions(python, group.libraries) for python in (Path(sys.executable), PYTHON))
        said.append(describe(name, before, after, outcome))
        works = works and outcome.works
    print("\n" + "\n".join(said))
    return 0 if works else 1


if __name__ == "__main__":
    sys.exit(main())
