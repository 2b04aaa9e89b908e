"""Download every wheel of a lockfile, and uv, into wheelhouse/ for boxes without internet.

    make wheelhouse PROFILE=cu128                     for Python 3.12 on x86_64
    make wheelhouse PROFILE=cpu ARGS='--python 3.11'

Then deploy with -e python_env_wheelhouse=wheelhouse/cu128-py312: missing wheels are copied to the box. To forbid every
index: -e '{"python_env_index_urls": {"default": "none", "torch": "none"}}'.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.markers import Marker

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "plugins/module_utils"))

from dflash_ops.core.errors import OpsError  # noqa: E402
from dflash_ops.environment import lockfile, sources  # noqa: E402

# Every platform tag that glibc 2.28 supports, newest first.
PLATFORMS = [
    *(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
    "linux_x86_64",
]


def applies(pin: lockfile.Pin, python: str) -> bool:
    """Return True if a pin's marker applies on Linux x86_64 with this Python version."""
    platform = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "os_name": "posix",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    return not pin.marker or Marker(pin.marker).evaluate({**platform, "extra": ""})


def download(group: sources.SourceGroup, python: str, target: Path, index: list[str]) -> None:
    """Download the wheels of a source group with pip, checked by hash."""
    short = python.replace(".", "")
    tags = [option for tag in PLATFORMS for option in ("--platform", tag)]
    tags += [
        "--implementation",
        "cp",
        "--python-version",
        python,
        "--abi",
        f"cp{short}",
        "--abi",
        "abi3",
        "--abi",
        "none",
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(sources.requirement_lines([dataclasses.replace(pin, marker="") for pin in group.pins]))
        requirements.flush()
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--require-hashes",
                "--only-binary",
                ":all:",
                "--dest",
                str(target),
                *tags,
                *index,
                "-r",
                requirements.name,
            ],
            check=True,
        )


def main() -> None:
    """Fill the folder; pip keeps files with the right hash."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", choices=["cpu", "cu128"])
    parser.add_argument("--python", default="3.12")
    arguments = parser.parse_args()
    lock = lockfile.require_complete(
        (REPO / f"trainer/locks/{arguments.profile}.lock").read_text(), name=f"{arguments.profile}.lock"
    )
    if arguments.python not in lock.pythons:
        parser.error(f"--python {arguments.python}: the lockfile has files for {', '.join(lock.pythons)}")
    target = REPO / "wheelhouse" / f"{arguments.profile}-py{arguments.python.replace('.', '')}"
    target.mkdir(parents=True, exist_ok=True)
    uv = lockfile.parse((REPO / "trainer/locks/uv.lock").read_text())
    pins = tuple(pin for pin in (*lock.pins, *uv.pins) if applies(pin, arguments.python))
    needed = dataclasses.replace(lock, pins=pins)
    folders = sources.local_wheel_folders()
    try:
        groups = sources.plan(needed, sources.Sources({}, folders), python=arguments.python)
    except OpsError as error:
        sys.exit(str(error))
    for group in groups:
        links = [option for folder in folders for option in ("--find-links", str(folder))]
        index = ["--index-url", group.index] if group.dedicated else []
        download(group, arguments.python, target, [*links, *index])
    size = sum(path.stat().st_size for path in target.glob("*.whl")) >> 20
    print(f"{target.relative_to(REPO)}: {len(list(target.glob('*.whl')))} wheels, {size} MB")


if __name__ == "__main__":
    main()
