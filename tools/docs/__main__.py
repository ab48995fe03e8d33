"""Writes all generated pages and files, and checks decision records, names in prose and blocks of commands.

With `--check` it writes nothing, and fails when a page is out of date. Run as `python -m tools.docs
[--check]`. Each generator also runs alone, by its module's name.
"""

import sys

from shared.bus import nats_conf
from tools.boards import files as boards
from tools.docs import (
    chat_completions,
    compatibility,
    decision_records,
    engine_results,
    logs,
    metrics,
    named_files,
    protocol,
    redis_acl,
    settings,
)
from tools.docs.manual import command_blocks, messages, sizing
from tools.docs.targets import page as targets


def main() -> None:
    """Run all generators, also after one that fails."""
    failed = False
    for generator in (
        protocol,
        settings,
        nats_conf,
        redis_acl,
        compatibility,
        chat_completions,
        logs,
        metrics,
        boards,
        engine_results,
        targets,
        decision_records,
        named_files,
        command_blocks,
        sizing,
        messages,
    ):
        try:
            generator.main()
        except SystemExit as end:
            failed = True
            print(end.code, file=sys.stderr)
    sys.exit(failed)


if __name__ == "__main__":
    main()
