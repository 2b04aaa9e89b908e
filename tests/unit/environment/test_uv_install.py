"""Progress of an installation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from boxes import until
from dflash_ops.environment import uv_install

SHM = Path("/dev/shm")


@pytest.mark.skipif(not SHM.is_dir(), reason="no tmpfs on this machine")
def test_writes_to_tmpfs_are_counted() -> None:
    """Count writes before they reach a disk: a root on tmpfs must show progress too."""
    file = SHM / "dflash-test-installer"
    code = f"import sys; open({str(file)!r}, 'wb').write(bytes(5 << 20)); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        until(lambda: uv_install.written_megabytes(child.pid) >= 5)
    finally:
        child.kill()
        child.communicate()
        file.unlink(missing_ok=True)


def test_exited_process_has_written_nothing() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert uv_install.written_megabytes(done.pid) == 0
