"""Asks a vulnerability service about every pinned package; "none known" differs from "no answer".

Run as `python -m deploy.audit` (`make audit`); further arguments go to pip-audit, such as `--osv-url=URL` for
a copy of the OSV database on a network of your own. Exit codes: 0 none known, 1 some, 2 there was no audit.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOUND, NOT_DONE = 1, 2
TIMEOUT_S = 900.0


def report(text: str) -> tuple[int, list[str]]:
    """Return the number of packages in pip-audit's JSON, and a line for each known vulnerability."""
    packages: list[dict[str, Any]] = json.loads(text)["dependencies"]
    lines = []
    for package in packages:
        if "skip_reason" in package:
            raise ValueError(f"{package['name']} was skipped: {package['skip_reason']}")
        for one in package["vulns"]:
            names = ", ".join([one["id"], *one.get("aliases", [])])
            fixed = " or ".join(one["fix_versions"]) or "no version yet"
            lines.append(f"{package['name']} {package['version']}: {names}; fixed in {fixed}")
    return len(packages), lines


def main(arguments: list[str], constraints: Path = ROOT / "constraints.txt") -> int:
    """Audits the pinned versions, prints what is known of them, and returns the exit code."""
    if any(argument.startswith("--osv-url") for argument in arguments):
        arguments = ["--vulnerability-service", "osv", *arguments]
    command = [
        sys.executable, "-P", "-m", "pip_audit", "--requirement", str(constraints), "--no-deps",
        "--disable-pip", "--strict", "--format", "json", "--progress-spinner", "off", *arguments,
    ]  # fmt: skip
    pinned = sum("==" in line and not line.startswith("#") for line in constraints.read_text().splitlines())
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        asked, lines = report(done.stdout)
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        said = (
            done.stderr.strip().splitlines()[-1:] if not isinstance(error, subprocess.TimeoutExpired) else []
        )
        return _not_done(" ".join(said) or str(error))
    if asked != pinned:
        return _not_done(f"{pinned} packages are pinned, but the service was asked about {asked}")
    for line in lines:
        print(line)
    print(f"{asked} pinned packages, {len(lines)} known vulnerabilities")
    return FOUND if lines else 0


def _not_done(why: str) -> int:
    print(
        f"THE AUDIT DID NOT HAPPEN, so nothing is known about vulnerabilities: {why}\n"
        "Is the vulnerability service reachable: pypi.org, or with ARGS='--vulnerability-service osv' "
        "api.osv.dev? A copy of the OSV database on your network: make audit ARGS='--osv-url=http://HOST/v1/query'",
        file=sys.stderr,
    )
    return NOT_DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
