"""LXC containers of the stand-in pct: state, LXC's configuration and the root file system."""
import os
import re
import subprocess
import time

from pct_stand_in.config import LXC, SETTINGS, STATE, Refused, get


def running(vmid):
    found = subprocess.run(["lxc-info", "-n", str(vmid), "-s", "-H"], capture_output=True, text=True, check=False)
    return found.stdout.strip() not in ("", "STOPPED")


def must_run(vmid):
    if not running(vmid):
        raise Refused(f"container '{vmid}' not running!")


def wait_for(vmid, expected, seconds):
    end = time.time() + seconds
    while running(vmid) != expected:
        if time.time() > end:
            return False
        time.sleep(0.05)
    return True


def split_options(text):
    return dict(item.split("=", 1) if "=" in item else ("", item) for item in text.split(",") if item)


def lxc_config(vmid, current):
    """Return the text of LXC's own configuration for a container."""
    unprivileged = get(current, "unprivileged") == "1"
    lines = ["lxc.include = /usr/share/lxc/config/common.conf"]
    if unprivileged:
        lines += ["lxc.include = /usr/share/lxc/config/userns.conf",
                  "lxc.idmap = u 0 100000 65536", "lxc.idmap = g 0 100000 65536"]
    lines += [f"lxc.uts.name = {get(current, 'hostname') or f'CT{vmid}'}", f"lxc.rootfs.path = dir:{rootfs(vmid)}",
              "lxc.init.cmd = /sbin/init", "lxc.apparmor.profile = unconfined", "lxc.signal.halt = SIGRTMIN+3",
              "lxc.log.level = WARN", f"lxc.log.file = {LXC}/{vmid}/lxc.log"]
    lines += network_lines(get(current, "net0"))
    for key, value in current:
        if re.fullmatch(r"mp\d+", key):
            lines.append(mount_line(value))
        elif re.fullmatch(r"dev\d+", key):
            lines += device_lines(value)
        elif key.startswith("lxc.cgroup2.devices"):
            lines.append(f"{devices_key()} = {value}")
        elif key.startswith("lxc."):
            lines.append(f"{key} = {value}")
    return "\n".join(lines) + "\n"


def network_lines(net0):
    if not net0:
        return ["lxc.net.0.type = empty"]
    net = split_options(net0)
    lines = ["lxc.net.0.type = veth", f"lxc.net.0.link = {net.get('bridge', '')}", "lxc.net.0.flags = up",
             f"lxc.net.0.name = {net.get('name', 'eth0')}", f"lxc.net.0.mtu = {SETTINGS['mtu']}"]
    if "/" in net.get("ip", ""):
        lines.append(f"lxc.net.0.ipv4.address = {net['ip']}")
    if "gw" in net:
        lines.append(f"lxc.net.0.ipv4.gateway = {net['gw']}")
    return lines


def mount_line(value):
    options = split_options(value)
    kind = "bind,create=dir" + (",ro" if options.get("ro") == "1" else "")
    source = options[""]
    if not source.startswith("/"):
        source = volume_folder(source)
    return f"lxc.mount.entry = {source} {options['mp'].lstrip('/')} none {kind} 0 0"


def devices_key():
    return "lxc.cgroup2.devices.allow" if os.path.exists("/sys/fs/cgroup/cgroup.controllers") else \
        "lxc.cgroup.devices.allow"


def device_lines(value):
    path = split_options(value.replace("path=", "")) [""]
    if not os.path.exists(path):
        raise Refused(f"Device {path} does not exist")
    number = os.stat(path).st_rdev
    return [f"{devices_key()} = c {os.major(number)}:{os.minor(number)} rw",
            f"lxc.mount.entry = {path} {path.lstrip('/')} none bind,create=file 0 0"]


def rootfs(vmid):
    return f"{STATE}/ct/{vmid}/rootfs"


def volume_folder(volume):
    return f"{STATE}/volumes/{volume.replace(':', '/')}"


def mount_rootfs(vmid, current):
    """Mount the overlay of the container's root in this namespace."""
    top = f"{STATE}/ct/{vmid}"
    if os.path.ismount(f"{top}/rootfs"):
        return
    base = "base-shifted" if get(current, "unprivileged") == "1" else "base"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o",
                    f"lowerdir={STATE}/{base},upperdir={top}/upper,workdir={top}/work", f"{top}/rootfs"], check=True)


def unmount_rootfs(vmid):
    subprocess.run(["umount", rootfs(vmid)], check=False, stderr=subprocess.DEVNULL)


def make_volume(vmid, key, value):
    """Create a volume for a mount point given as storage:size; return the option's value."""
    source, *more = value.split(",")
    if source.startswith("/"):
        return value
    storage, _, size = source.partition(":")
    name = f"{storage}:{vmid}/vm-{vmid}-{key}.raw"
    os.makedirs(volume_folder(name), exist_ok=True)
    return ",".join([name, *more, f"size={size}G"])


def create_rootfs(vmid, unprivileged, hostname):
    top = f"{STATE}/ct/{vmid}"
    owner = 100000 if unprivileged else 0
    for name in ("upper", "work", "rootfs"):
        os.makedirs(f"{top}/{name}")
    os.chown(f"{top}/upper", owner, owner)
    os.chmod(f"{top}/upper", 0o755)
    os.mkdir(f"{top}/upper/etc", 0o755)
    os.chown(f"{top}/upper/etc", owner, owner)
    with open(f"{top}/upper/etc/hostname", "w", encoding="utf-8") as stream:
        stream.write(hostname + "\n")
    os.chown(f"{top}/upper/etc/hostname", owner, owner)
    os.chmod(f"{top}/upper/etc/hostname", 0o644)


def attach(vmid, command, **more):
    done = subprocess.run(["lxc-attach", "-n", str(vmid), "--clear-env", "--", *command], check=False, **more)
    if done.returncode:
        raise Refused(f"command '{' '.join(command)}' failed: exit code {done.returncode}", done.returncode)
