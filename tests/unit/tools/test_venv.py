"""Output of tools/venv.sh while it installs, and its result after a failure."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from wheels import make_wheel


def run_venv(repo: Path, folder: Path, digest: str) -> subprocess.CompletedProcess[str]:
    """Run tools/venv.sh with a lockfile of one package from `folder`."""
    lock = folder / "one.lock"
    lock.write_text(f"one-package==1.0 --hash=sha256:{digest}\n")
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PYTHON": sys.executable}
    return subprocess.run(
        [str(repo / "tools/venv.sh"), "v", str(lock)],
        cwd=folder,
        env={**environment, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_installed_packages_are_printed_and_a_second_run_is_silent(repo: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "one-package", "1.0", {"one_package.py": ""})
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    first = run_venv(repo, tmp_path, digest)
    assert first.returncode == 0, first.stderr
    lines = first.stdout.splitlines()
    assert lines[0].startswith("creating v-") and lines[0].endswith("(about half a minute)")
    downloading = "  downloading one_package-1.0-py3-none-any.whl"
    assert lines[1:] == [downloading, "  installing all packages (about ten seconds)"]
    assert (tmp_path / "v/made-from.lock").is_file()
    assert run_venv(repo, tmp_path, digest).stdout == ""


def test_hash_mismatch_leaves_no_environment(repo: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path, "one-package", "1.0", {"one_package.py": ""})
    done = run_venv(repo, tmp_path, "0" * 64)
    assert done.returncode != 0
    assert "HASHES" in done.stderr.upper()
    assert not (tmp_path / "v").exists()
