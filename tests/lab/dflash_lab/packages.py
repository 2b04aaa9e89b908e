"""The Debian packages that the lab needs on the machine that runs it."""
from __future__ import annotations

import shutil
from pathlib import Path

from .shell import LabError, run

# program -> package
NEEDED = {
    "lxc-start": "lxc",
    "lxc-attach": "lxc",
    "newuidmap": "uidmap",
    "debootstrap": "debootstrap",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "nft": "nftables",
    "ip": "iproute2",
    "sudo": "sudo",
    "unshare": "util-linux",
}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing_packages() -> list[str]:
    """Return the packages whose programs or keys are missing."""
    missing = {package for program, package in NEEDED.items() if not shutil.which(program, path=SEARCH_PATH)}
    return sorted(missing | (set() if KEYRING.exists() else {"debian-archive-keyring"}))


def install_packages() -> list[str]:
    """Install missing packages without recommended ones and without starting services; return their names."""
    missing = missing_packages()
    if not missing:
        return []
    if not shutil.which("apt-get"):
        raise LabError(f"the lab needs {', '.join(missing)} and can install them only on Debian or Ubuntu")
    quiet = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    run("apt-get", "-o", "Acquire::Retries=3", "update", "-qq", env=quiet)
    run(
        "apt-get", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=300",
        "install", "-y", "-qq", "--no-install-recommends", *missing, env=quiet)
    still_missing = missing_packages()
    if still_missing:
        raise LabError(f"still missing after apt-get install: {', '.join(still_missing)}")
    return missing
