"""The root file system of the containers: built once by debootstrap, shifted once, cloned by overlay."""
from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from .layout import FIRST_HOST_ID, Layout
from .shell import LabError, run

PACKAGES = (
    "systemd,systemd-sysv,dbus,python3,python3-venv,python3-dev,g++,tmux,git,"
    "ca-certificates,iproute2,procps,openssh-server,sudo,acl"
)
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
# services that have no place in a test container
MASKED = ("ssh.service", "systemd-networkd.service", "systemd-resolved.service", "systemd-timesyncd.service",
          "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer")


def build_base(layout: Layout) -> None:
    """Build `base` and `base_shifted` when they are absent; each appears by one rename."""
    layout.state.mkdir(parents=True, exist_ok=True)
    if not layout.base.exists():
        draft = layout.state / "base.draft"
        fetch_base(draft)
        settle(draft)
        draft.rename(layout.base)
    if not layout.base_shifted.exists():
        draft = layout.state / "base-shifted.draft"
        remove_tree(draft)
        run("cp", "-a", layout.base, draft)
        shift_owners(draft, FIRST_HOST_ID)
        draft.rename(layout.base_shifted)


def fetch_base(draft: Path, tries: int = 3) -> None:
    """Let debootstrap fill `draft`; it asks for each package once only, so a lost one means another try."""
    for left in reversed(range(tries)):
        remove_tree(draft)
        try:
            run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", draft, timeout=1800)
        except LabError:
            if not left:
                raise
        else:
            return


def settle(root: Path) -> None:
    """Give the root file system this machine's way to the network, and quiet services."""
    shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
    for unit in MASKED:
        link = root / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    (root / "etc/hostname").write_text("lab\n", encoding="utf-8")
    (root / "etc/machine-id").write_text("", encoding="utf-8")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n", encoding="utf-8")
    refresh_network_files(root)


def refresh_network_files(root: Path, owner: int = 0) -> None:
    """Copy resolv.conf, the bundle of certificates and pip's configuration of this machine into a root."""
    pairs = [(resolver(), root / "etc/resolv.conf"), (BUNDLE, root / str(BUNDLE).lstrip("/"))]
    if Path("/etc/pip.conf").exists():
        pairs.append((Path("/etc/pip.conf"), root / "etc/pip.conf"))
    for source, target in pairs:
        if not source.exists():
            continue
        target.unlink(missing_ok=True)
        target.write_bytes(source.read_bytes())
        target.chmod(0o644)
        os.chown(target, owner, owner)


def resolver() -> Path:
    """Return the file that names this machine's name servers; a stub on loopback is of no use to a container."""
    plain, behind_stub = Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf")
    return behind_stub if "nameserver 127." in plain.read_text(encoding="utf-8") and behind_stub.exists() else plain


def shift_owners(root: Path, by: int) -> None:
    """Add `by` to the owner and group of everything below `root`, keeping set-id bits."""
    for folder, names, files in os.walk(root):
        for name in [".", *names, *files]:
            path = Path(folder) / name if name != "." else Path(folder)
            if name in names and not path.is_symlink():
                continue  # handled as "." of its own turn
            found = path.lstat()
            os.lchown(path, found.st_uid + by, found.st_gid + by)
            if not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o6000:
                path.chmod(stat.S_IMODE(found.st_mode))


def remove_tree(top: Path) -> None:
    """Remove a folder of the lab; a mount below it is an error, never followed."""
    if not top.exists():
        return
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    for mount in sorted((m for m in mounts if m == str(top) or m.startswith(f"{top}/")), reverse=True):
        run("umount", mount)
    run("rm", "-rf", "--one-file-system", top)
