"""Container configurations of the stand-in pct: the files below /etc/pve/lxc, pending changes and locks."""
import fcntl
import json
import os
import sys
import time

SETTINGS = json.load(open("/etc/pve/dflash-lab.json", encoding="utf-8"))
STATE = SETTINGS["state"]
CONF = "/etc/pve/lxc"
LXC = f"{STATE}/lxc"
ORDER = ["arch", "cores", "description", "features", "hostname", "lock", "memory", "net0", "onboot", "ostype",
         "rootfs", "startup", "swap", "tags", "unprivileged"]


class Refused(Exception):
    """Exit with a message, as Perl's die does."""

    def __init__(self, message, code=255):
        super().__init__(message)
        self.code = code


def conf_path(vmid):
    return f"{CONF}/{vmid}.conf"


def load(vmid):
    """Return (current, pending): lists of (key, value) pairs, because lxc.* keys repeat."""
    try:
        text = open(conf_path(vmid), encoding="utf-8").read()
    except FileNotFoundError:
        raise Refused(f"Configuration file 'nodes/pve/lxc/{vmid}.conf' does not exist", 2) from None
    current, pending = [], []
    section = current
    for line in text.splitlines():
        if line.strip() == "[pve:pending]":
            section = pending
        elif line.startswith("["):
            section = []
        elif ":" in line and not line.startswith("#"):
            key, value = line.split(":", 1)
            section.append((key.strip(), value.strip()))
    return current, pending


def save(vmid, current, pending):
    def sort_key(pair):
        key = pair[0]
        return (key.startswith("lxc."), ORDER.index(key) if key in ORDER else len(ORDER), key if "." not in key else "")
    lines = [f"{k}: {v}" for k, v in sorted(current, key=sort_key)]
    if pending:
        lines += ["", "[pve:pending]"] + [f"{k}: {v}" for k, v in pending]
    temporary = f"{conf_path(vmid)}.tmp.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write("\n".join(lines) + "\n")
    os.replace(temporary, conf_path(vmid))


def get(pairs, key, default=""):
    return next((v for k, v in pairs if k == key), default)


def check_lock(current):
    lock = get(current, "lock")
    if lock:
        raise Refused(f"CT is locked ({lock})")


class ConfigLock:
    """The container's lock file, acquired within ten seconds as lock_config does."""

    def __init__(self, vmid):
        self.path = f"/run/lock/lxc/pve-config-{vmid}.lock"

    def __enter__(self):
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        self.stream = open(self.path, "w")
        print("trying to acquire lock...", end="", file=sys.stderr) if self.busy() else None
        end = time.time() + 10
        while self.busy():
            if time.time() > end:
                raise Refused(f"can't lock file '{self.path}' - got timeout")
            time.sleep(0.1)

    def busy(self):
        try:
            fcntl.flock(self.stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False

    def __exit__(self, *_):
        self.stream.close()
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass


def apply_pending(current, pending):
    removed = set(get(pending, "delete").split(",")) | {k for k, _ in pending}
    return [(k, v) for k, v in current if k not in removed] + [p for p in pending if p[0] != "delete"]
