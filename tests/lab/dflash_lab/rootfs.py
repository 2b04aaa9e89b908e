"""Root file system of the containers: built once by debootstrap, shifted once, and cloned by overlay mounts."""
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
# services that a test container does not need
MASKED = ("ssh.service", "systemd-networkd.service", "systemd-resolved.service", "systemd-timesyncd.service",
          "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer")


def build_base(layout: Layout) -> None:
    """Build `base` and `base_shifted` when they are absent; a rename completes each of them."""
    layout.state.mkdir(parents=True, exist_ok=True)
    if not layout.base.exists():
        draft = layout.state / "base.draft"
        fetch_base(draft)
        configure(draft)
        draft.rename(layout.base)
    if not layout.base_shifted.exists():
        draft = layout.state / "base-shifted.draft"
        remove_tree(draft)
        run("cp", "-a", layout.base, draft)
        shift_owners(draft, FIRST_HOST_ID)
        draft.rename(layout.base_shifted)


def fetch_base(draft: Path, attempts: int = 3) -> None:
    """Let debootstrap fill `draft`; start it again after a failed download, which it does not retry itself."""
    for left in reversed(range(attempts)):
        remove_tree(draft)
        try:
            run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", draft, timeout=1800)
        except LabError:
            if not left:
                raise
        else:
            return


def configure(root: Path) -> None:
    """Disable services in the root file system, and copy this machine's network configuration into it."""
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
    """Copy this machine's resolv.conf, certificate bundle and pip configuration into a root file system."""
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
    """Return the file with this machine's name servers; a container cannot use a stub resolver on loopback."""
    plain, behind_stub = Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf")
    return behind_stub if "nameserver 127." in plain.read_text(encoding="utf-8") and behind_stub.exists() else plain


def shift_owners(root: Path, by: int) -> None:
    """Add `by` to the owner and group of everything below `root`, keeping set-id bits."""
    for folder, names, files in os.walk(root):
        for name in [".", *names, *files]:
            path = Path(folder) / name if name != "." else Path(folder)
            if name in names and not path.is_symlink():
                continue  # handled as "." when os.walk enters it
            found = path.lstat()
            os.lchown(path, found.st_uid + by, found.st_gid + by)
            if not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o6000:
                path.chmod(stat.S_IMODE(found.st_mode))


def remove_tree(top: Path) -> None:
    """Unmount everything below a folder of the lab and remove it, without crossing file systems."""
    if not top.exists():
        return
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    for mount in sorted((m for m in mounts if m == str(top) or m.startswith(f"{top}/")), reverse=True):
        run("umount", mount)
    run("rm", "-rf", "--one-file-system", top)
