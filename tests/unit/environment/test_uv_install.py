"""How far an installation is, as a person sees it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from boxes import until
from dflash_ops.environment import uv_install

SHM = Path("/dev/shm")


@pytest.mark.skipif(not SHM.is_dir(), reason="no file system in memory here")
def test_what_is_written_counts_in_memory_too() -> None:
    """A root on tmpfs, or a kernel that writes to the disk later, must not look like standing still."""
    file = SHM / "dflash-test-installer"
    code = f"import sys; open({str(file)!r}, 'wb').write(bytes(5 << 20)); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        until(lambda: uv_install.written_megabytes(child.pid) >= 5)
    finally:
        child.kill()
        child.communicate()
        file.unlink(missing_ok=True)


def test_a_process_that_is_gone_has_written_nothing() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert uv_install.written_megabytes(done.pid) == 0
