"""Builds wheel, sdist and images from the files of a commit, which are written into a folder of their own.

What is ignored or changed in the checkout has no part in them. Times in archives are those of the commit.
"""

import gzip
import io
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Mapping
from pathlib import Path

from tools.release.archives import repack
from tools.release.checks import NoRelease, Release

_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
IMAGES = ("control", "tools", "worker")
BILL_IN_IMAGE = "/srv/ryzanstein/sbom.json"


def export(root: Path, commit: str, folder: Path) -> None:
    """Write the files of a commit into a folder."""
    done = subprocess.run(
        ["git", "-C", str(root), "archive", "--format=tar", commit], capture_output=True, check=False
    )
    if done.returncode:
        raise NoRelease(f"git archive failed: {done.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")


def build_packages(tree: Path, release: Release, target: Path) -> None:
    """Build the sdist, the wheel with all kernels and the demo model, and those of the client."""
    env, python = _environment(release), sys.executable
    _run(
        [python, "-c", _SDIST, str(target)], tree, env
    )  # before there are kernels, which it would take along
    _run([python, "-m", "services.worker.engine.native.build", "--all", "--fetch-compiler"], tree, env)
    machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    options = ["bdist_wheel", f"--plat-name={machine}"]
    command = [
        python, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-deps", "--no-build-isolation",
        "--wheel-dir", str(target), *(f"--config-settings=--build-option={one}" for one in options), ".",
    ]  # fmt: skip
    _run(command, tree, env)
    _run([python, "-m", "tools.client_package", str(target)], tree, env)
    for sdist in target.glob("*.tar.gz"):
        repack(sdist, release.made_s)


def build_images(tree: Path, release: Release, target: Path) -> list[str]:
    """Build the images, and write each as an archive with its bill of materials, if there is a Docker engine.

    Returns:
        A line for each image, or one that says why there is none.
    """
    engine = shutil.which("docker")
    if not engine or subprocess.run([engine, "info"], capture_output=True, check=False).returncode:
        return ["no images: no Docker engine answers"]
    said = []
    for name in IMAGES:
        tag = f"ryzanstein-{name}:{release.version}"
        network = os.environ.get("RYZ_BUILD_NETWORK", "default")
        label = f"org.opencontainers.image.revision={release.commit}"
        command = [
            engine, "build", "--network", network, "--file", "deploy/Dockerfile", "--target", name,
            "--label", label, "--tag", tag, *_build_arguments(), ".",
        ]  # fmt: skip
        _run(command, tree, _environment(release))
        bill = _run([engine, "run", "--rm", "--network=none", "--entrypoint=cat", tag, BILL_IN_IMAGE], tree)
        (target / f"ryzanstein-{name}-{release.version}.cdx.json").write_text(bill)
        _save(engine, tag, target / f"ryzanstein-{name}-{release.version}.image.tar.gz")
        said.append(f"{tag} {_run([engine, 'image', 'inspect', '--format={{.Id}}', tag], tree).strip()}")
    return said


def _build_arguments() -> list[str]:
    names = ("PYTHON_IMAGE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "TORCH_INDEX")
    return [f"--build-arg={name}={os.environ[name]}" for name in names if name in os.environ]


def _save(engine: str, tag: str, path: Path) -> None:
    with subprocess.Popen([engine, "save", tag], stdout=subprocess.PIPE) as saved, path.open("wb") as file:
        assert saved.stdout is not None
        with gzip.GzipFile("", "wb", compresslevel=6, mtime=0, fileobj=file) as zipped:
            shutil.copyfileobj(saved.stdout, zipped, 2**20)
    if saved.returncode:
        path.unlink()
        raise NoRelease(f"`docker save {tag}` ended with {saved.returncode}")


def _environment(release: Release) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return inherited | {"SOURCE_DATE_EPOCH": str(release.made_s), "PYTHONHASHSEED": "0", "TZ": "UTC"}


def _run(command: list[str], folder: Path, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoRelease(f"`{' '.join(command[:4])} ...` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def machine_words() -> str:
    """Return where it was built, as far as that matters for what came out."""
    python, libc = platform.python_version(), " ".join(platform.libc_ver())
    return f"{platform.system()} {platform.machine()}, {libc}, Python {python}"
