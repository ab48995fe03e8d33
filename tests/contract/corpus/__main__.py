"""Records the corpus again, and prints which exchanges differ from the recorded ones.

`python -m tests.contract.corpus` compares; with `--write` the files are replaced by what came. Names of
tables limit it to those; `--show` prints the differences themselves.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.contract.corpus import recorded_files
from tests.contract.corpus.running import Runs, run_tables
from tests.contract.corpus.stack import corpus_stack
from tests.contract.corpus.tables.all_tables import TABLES, tenants

SLOW_S = 0.5


async def run(names: list[str]) -> Runs:
    """Starts a stack and runs the tables of these names, or all."""
    chosen = [one for one in TABLES if one.name in names or not names]
    with tempfile.TemporaryDirectory() as folder:
        async with corpus_stack(Path(folder), tenants()) as stack:
            return await run_tables(stack, chosen)


def main() -> int:
    """The command; its status is 1 if anything differs and nothing was written."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="replace the recorded files")
    parser.add_argument("--show", action="store_true", help="print the differences, not only the names")
    parser.add_argument("--times", action="store_true", help="print which exchanges take long")
    parser.add_argument("tables", nargs="*", help="names of tables; none: all")
    args = parser.parse_args()
    runs = asyncio.run(run(args.tables))
    differing = 0
    for name in runs.raw:
        now = runs.masked(name)
        found = recorded_files.differences(name, recorded_files.read(name), now)
        differing += len(found)
        seconds = runs.seconds[name]
        print(f"{name}: {len(now)} exchanges in {sum(seconds.values()):.1f} s, {len(found)} differ")
        for exchange in sorted(seconds, key=seconds.__getitem__, reverse=True) if args.times else ():
            if seconds[exchange] > SLOW_S:
                print(f"  {seconds[exchange]:.1f} s: {exchange}")
        for exchange, shown in found.items():
            print(f"{shown}\n" if args.show else f"  {exchange}")
        if args.write:
            recorded_files.write(name, now)
    return 1 if differing and not args.write else 0


if __name__ == "__main__":
    sys.exit(main())
