"""A container's Proxmox configuration: read, compared with what is wanted, and the change planned.

Nothing in here touches a machine; container_host.py looks and acts.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..core.errors import OpsError
from . import validation

# options that a running container takes at once; every other waits for its next start
AT_ONCE = ("cores", "memory", "swap", "onboot")
# options that only the creation of a container can set
AT_CREATION = ("unprivileged",)
GPU_LINE = re.compile(r"nvidia")
CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder of the host, or a new volume (storage:GiB), at a path of the container."""

    source: str
    target: str
    read_only: bool = False

    @property
    def text(self) -> str:
        """The value of its mpN option."""
        return f"{self.source},mp={self.target}" + (",ro=1" if self.read_only else "")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the operator asked for."""

    vmid: int
    template: str = ""
    rootfs: str = "local-lvm:64"
    hostname: str = ""
    cores: int = 0
    memory_mib: int = 0
    swap_mib: int = -1
    network: str = "name=eth0,bridge=vmbr0,ip=dhcp"
    unprivileged: bool = True
    nesting: bool = True
    onboot: bool = True
    mounts: tuple[Mount, ...] = ()
    gpus: str = "all"
    gpu_method: str = "auto"


@dataclass(frozen=True, kw_only=True)
class Node:
    """A device node of the host."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True)
class Config:
    """A container's configuration: its options, and its raw lxc.* lines in their order."""

    options: Mapping[str, str]
    raw: tuple[tuple[str, str], ...] = ()
    lock: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do. Empty when everything is as wanted."""

    create: tuple[str, ...] = ()
    set: Mapping[str, str] = field(default_factory=dict)
    delete: tuple[str, ...] = ()
    raw: tuple[tuple[str, str], ...] | None = None
    before: str = ""
    after: str = ""

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.create or self.set or self.delete or self.raw is not None)

    @property
    def waits_for_restart(self) -> tuple[str, ...]:
        """The options that a running container takes only when it starts again."""
        late = {name for name in (*self.set, *self.delete) if name not in AT_ONCE}
        return tuple(sorted(late | ({"lxc.*"} if self.raw is not None else set())))


# ---- reading ---------------------------------------------------------------------------------------------------


def read_sections(text: str) -> dict[str, list[tuple[str, str]]]:
    """Split the text of /etc/pve/lxc/ID.conf: "" is its own section, others are snapshots and `pve:pending`."""
    sections: dict[str, list[tuple[str, str]]] = {"": []}
    name = ""
    for line in text.splitlines():
        heading = re.fullmatch(r"\[(.+)\]\s*", line)
        if heading:
            name = heading.group(1)
            sections.setdefault(name, [])
        elif ":" in line and not line.startswith("#"):
            key, value = line.split(":", 1)
            sections[name].append((key.strip(), value.strip()))
    return sections


def pending_names(text: str) -> list[str]:
    """Return the options that wait for a restart."""
    pending = read_sections(text).get("pve:pending", [])
    gone = [name.lstrip("!") for key, value in pending if key == "delete" for name in re.split(r"[,; ]+", value)]
    return sorted({key for key, _value in pending if key != "delete"} | set(filter(None, gone)))


def parse_config(text: str) -> Config:
    """Read the text of /etc/pve/lxc/ID.conf; what waits for a restart counts as set, snapshots are left out."""
    sections = read_sections(text)
    options = {key: value for key, value in sections[""] if not key.startswith("lxc.")}
    raw = tuple(pair for pair in sections[""] if pair[0].startswith("lxc."))
    lock = options.pop("lock", "")
    for key, value in sections.get("pve:pending", []):
        if key == "delete":
            for gone in re.split(r"[,; ]+", value):
                options.pop(gone.lstrip("!"), None)
        else:
            options[key] = value
    return Config(options, raw, lock)


def as_text(config: Config) -> str:
    """Return the configuration as sorted lines, for a diff."""
    lines = [f"{key}: {value}" for key, value in sorted(config.options.items())]
    return "\n".join(lines + [f"{key}: {value}" for key, value in config.raw]) + "\n"


def same_value(one: str, other: str) -> bool:
    """Compare two option values whose parts may stand in another order."""
    return sorted(one.split(",")) == sorted(other.split(","))


# ---- judging ---------------------------------------------------------------------------------------------------


def chosen_nodes(wanted: Wanted, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the device nodes to pass through; raise OpsError naming what the host lacks."""
    if wanted.gpus == "none":
        return ()
    by_name = {node.path.removeprefix("/dev/"): node for node in nodes}
    there = sorted(int(name[6:]) for name in by_name if re.fullmatch(r"nvidia\d+", name))
    if not there:
        raise OpsError("The host has no /dev/nvidia0, so there is no GPU to pass through.",
                       remedy="Install the NVIDIA driver on the host and run nvidia-smi there, or set"
                              " gpu_container_gpus: none.")
    indices = there if wanted.gpus == "all" else [int(word) for word in wanted.gpus.split(",")]
    absent = [index for index in indices if index not in there]
    if absent:
        raise OpsError(f"gpu_container_gpus = {wanted.gpus}: the host has no /dev/nvidia{absent[0]}.",
                       remedy=f"It has {', '.join(map(str, there))}.")
    for name in CONTROL_NODES:
        if name not in by_name:
            raise OpsError(f"The host has GPUs, but no /dev/{name}: CUDA would fail in the container.",
                           remedy="Run `nvidia-modprobe -c 0 -u` on the host (package nvidia-modprobe), then again.")
    caps = sorted(name for name in by_name if name.startswith("nvidia-caps/"))
    return tuple(by_name[name] for name in (*(f"nvidia{index}" for index in indices), *CONTROL_NODES, *caps))


# ---- planning --------------------------------------------------------------------------------------------------


def plan(wanted: Wanted, found: Config | None, nodes: Sequence[Node], *, has_dev: bool) -> Plan:
    """Return what makes the container as wanted.

    Args:
        found: its configuration; None when there is no such container.
        nodes: every /dev/nvidia* of the host.
        has_dev: whether this Proxmox knows devN options (8.2 and later).

    Raises:
        OpsError: it cannot be made so; names the variable.
    """
    validation.check(wanted)
    if found is None and not wanted.template:
        raise OpsError(f"Container {wanted.vmid} does not exist, and gpu_container_template names no template.",
                       remedy="Set it to one that `pveam list local` shows, such as"
                              " local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst.")
    now = found or Config({})
    chosen = chosen_nodes(wanted, nodes)
    options = scalar_options(wanted, now) | mount_options(wanted, now)
    raw = now.raw
    gone: list[str] = []
    if pass_by_dev(wanted, now, has_dev):
        devices, gone = device_options(chosen, now)
        options |= devices
        raw = tuple(pair for pair in now.raw if not is_gpu_line(pair, nodes))
    else:
        raw = merged_raw(chosen, now, nodes)
    changed = {key: value for key, value in options.items() if not same_value(value, now.options.get(key, ""))}
    if found is not None:
        refuse_fixed(changed, now, wanted)
    after = Config({key: value for key, value in {**now.options, **changed}.items() if key not in gone}, raw)
    return Plan(
        create=creation(wanted, changed) if found is None else (),
        set={} if found is None else changed,
        delete=tuple(gone),
        raw=raw if raw != now.raw else None,
        before=as_text(now) if found else "",
        after=as_text(after),
    )


def scalar_options(wanted: Wanted, now: Config) -> dict[str, str]:
    """Return the plain options; what was left open stays as it is."""
    options = {"onboot": str(int(wanted.onboot)), "unprivileged": str(int(wanted.unprivileged))}
    # absent means 0 in a configuration
    options = {key: value for key, value in options.items() if value != now.options.get(key, "0")}
    if wanted.cores:
        options["cores"] = str(wanted.cores)
    if wanted.memory_mib:
        options["memory"] = str(wanted.memory_mib)
    if wanted.swap_mib >= 0:
        options["swap"] = str(wanted.swap_mib)
    if wanted.hostname:
        options["hostname"] = wanted.hostname
    features = [part for part in now.options.get("features", "").split(",") if part and not part.startswith("nesting=")]
    if wanted.nesting:
        options["features"] = ",".join([*features, "nesting=1"])
    return options


def mount_options(wanted: Wanted, now: Config) -> dict[str, str]:
    """Return an mpN for each wanted mount; one at the same target keeps its number, and a volume its name."""
    options: dict[str, str] = {}
    taken = {key: value for key, value in now.options.items() if re.fullmatch(r"mp\d+", key)}
    for mount in wanted.mounts:
        there = next((key for key, value in taken.items() if f"mp={mount.target}" in value.split(",")), None)
        if there is None:
            number = next(n for n in range(256) if f"mp{n}" not in taken and f"mp{n}" not in options)
            options[f"mp{number}"] = mount.text
        elif mount.source.startswith("/") and not same_mount(taken[there], mount):
            options[there] = mount.text
    return options


def same_mount(value: str, mount: Mount) -> bool:
    """Tell whether an mpN already is this mount of a host folder; other options of it are left alone."""
    parts = value.split(",")
    return parts[0] == mount.source and ("ro=1" in parts) == mount.read_only


def pass_by_dev(wanted: Wanted, now: Config, has_dev: bool) -> bool:
    """Choose between devN options and raw lines: what is asked, what is there, what Proxmox can."""
    if wanted.gpu_method == "dev" and not has_dev:
        raise OpsError("gpu_container_gpu_method = dev: this Proxmox has no devN options (they came with 8.2).",
                       remedy="Use auto or mount, or upgrade the host.")
    if wanted.gpu_method != "auto":
        return wanted.gpu_method == "dev"
    by_hand = any(key == "lxc.mount.entry" and GPU_LINE.search(value) for key, value in now.raw)
    return has_dev and not by_hand


def device_options(chosen: Sequence[Node], now: Config) -> tuple[dict[str, str], list[str]]:
    """Return devN options for the nodes, and the devN of NVIDIA nodes that are no longer wanted."""
    taken = {key: value for key, value in now.options.items() if re.fullmatch(r"dev\d+", key)}
    paths = {value.split(",")[0].removeprefix("path="): key for key, value in taken.items()}
    wanted_paths = {node.path for node in chosen}
    options: dict[str, str] = {}
    for node in chosen:
        if node.path in paths:
            continue
        number = next(n for n in range(256) if f"dev{n}" not in taken and f"dev{n}" not in options)
        options[f"dev{number}"] = f"{node.path},mode=0666"
    gone = [key for path, key in paths.items() if path.startswith("/dev/nvidia") and path not in wanted_paths]
    return options, gone


def raw_lines(chosen: Sequence[Node]) -> list[tuple[str, str]]:
    """Return the raw lines that pass nodes through: a permission for each major number, a mount for each node."""
    majors = list(dict.fromkeys(node.major for node in chosen))
    allow = [("lxc.cgroup2.devices.allow", f"c {major}:* rwm") for major in majors]
    names = [node.path.removeprefix("/dev/") for node in chosen]
    return allow + [("lxc.mount.entry", f"/dev/{name} dev/{name} none bind,optional,create=file") for name in names]


def is_gpu_line(pair: tuple[str, str], nodes: Sequence[Node]) -> bool:
    """Tell a raw line that passes a GPU through, stale major numbers of NVIDIA's range included."""
    key, value = pair
    if key == "lxc.mount.entry":
        return value.startswith("/dev/nvidia")
    found = re.fullmatch(r"c (\d+):\S+ rwm?", value)
    return bool(key.startswith("lxc.cgroup") and key.endswith("devices.allow") and found
                and (int(found[1]) in {node.major for node in nodes} or int(found[1]) == 195 or int(found[1]) >= 234))


def merged_raw(chosen: Sequence[Node], now: Config, nodes: Sequence[Node]) -> tuple[tuple[str, str], ...]:
    """Return the raw lines with those of the GPUs as they must be; other lines stay, and so does a right order."""
    want = raw_lines(chosen)
    have = [pair for pair in now.raw if is_gpu_line(pair, nodes)]
    if sorted(have) == sorted(want):
        return now.raw
    return (*(pair for pair in now.raw if pair not in have), *want)


def refuse_fixed(changed: Mapping[str, str], now: Config, wanted: Wanted) -> None:
    """Raise OpsError for a difference that a container can only be created with."""
    for key in AT_CREATION:
        if key in changed:
            is_so = now.options.get("unprivileged") == "1"
            raise OpsError(
                f"gpu_container_unprivileged = {str(wanted.unprivileged).lower()}, but container {wanted.vmid} is"
                f" {'unprivileged' if is_so else 'privileged'}; that is decided when it is created.",
                remedy=f"Set gpu_container_unprivileged: {str(is_so).lower()}, or restore a backup of it as the other"
                       " kind.",
            )


def creation(wanted: Wanted, options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words of `pct create`."""
    words = ["create", str(wanted.vmid), wanted.template, "--rootfs", wanted.rootfs, "--net0", wanted.network]
    if "unprivileged" not in options:
        words += ["--unprivileged", "0"]
    for key, value in options.items():
        words += [f"--{key}", value]
    return tuple(words)
