"""tools/venv.sh: what a person sees while the controller's own packages are fetched, and what a failure leaves."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from wheels import make_wheel


def made(repo: Path, folder: Path, digest: str) -> subprocess.CompletedProcess[str]:
    """Type tools/venv.sh for a lock of one package that lies in `folder`."""
    lock = folder / "one.lock"
    lock.write_text(f"one-package==1.0 --hash=sha256:{digest}\n")
    kept = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PYTHON": sys.executable}
    return subprocess.run(
        [str(repo / "tools/venv.sh"), "v", str(lock)],
        cwd=folder,
        env={**kept, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_says_what_is_fetched_and_a_second_time_nothing(repo: Path, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "one-package", "1.0", {"one_package.py": ""})
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    first = made(repo, tmp_path, digest)
    assert first.returncode == 0, first.stderr
    told = first.stdout.splitlines()
    assert told[0].startswith("making v-") and told[0].endswith("(about half a minute)")
    assert told[1:] == ["  fetching one_package-1.0-py3-none-any.whl", "  installing all of them (some ten seconds)"]
    assert (tmp_path / "v/made-from.lock").is_file()
    assert made(repo, tmp_path, digest).stdout == ""


def test_another_file_than_the_locks_leaves_no_environment(repo: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path, "one-package", "1.0", {"one_package.py": ""})
    done = made(repo, tmp_path, "0" * 64)
    assert done.returncode != 0
    assert "HASHES" in done.stderr.upper()
    assert not (tmp_path / "v").exists()
