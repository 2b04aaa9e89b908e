"""A container's Proxmox configuration: parse it, compare it with the specification, and plan the change.

Nothing here touches a machine; container_host.py reads and changes the host.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..core.errors import OpsError
from . import validation

# Options that a running container applies at once; every other one needs a restart.
AT_ONCE = ("cores", "memory", "swap", "onboot")
# Options that can only be set at creation.
AT_CREATION = ("unprivileged",)
GPU_LINE = re.compile(r"nvidia")
CONTROL_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A host folder or a new volume (storage:GiB), mounted at a path in the container."""

    source: str
    target: str
    read_only: bool = False

    @property
    def text(self) -> str:
        """Value of the mpN option."""
        return f"{self.source},mp={self.target}" + (",ro=1" if self.read_only else "")


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """The container that the operator wants."""

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
class DeviceNode:
    """A device node on the host."""

    path: str
    major: int
    minor: int


@dataclass(frozen=True)
class Config:
    """A container's configuration: its options, and its raw lxc.* lines in file order."""

    options: Mapping[str, str]
    raw: tuple[tuple[str, str], ...] = ()
    lock: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The changes to make. Empty when the container matches the specification."""

    create: tuple[str, ...] = ()
    set: Mapping[str, str] = field(default_factory=dict)
    delete: tuple[str, ...] = ()
    raw: tuple[tuple[str, str], ...] | None = None
    before: str = ""
    after: str = ""

    @property
    def changes(self) -> bool:
        """True when there is something to do."""
        return bool(self.create or self.set or self.delete or self.raw is not None)

    @property
    def waits_for_restart(self) -> tuple[str, ...]:
        """Options that a running container applies only after a restart."""
        late = {name for name in (*self.set, *self.delete) if name not in AT_ONCE}
        return tuple(sorted(late | ({"lxc.*"} if self.raw is not None else set())))


# ---- parse -----------------------------------------------------------------------------------------------------


def read_sections(text: str) -> dict[str, list[tuple[str, str]]]:
    """Split the text of /etc/pve/lxc/ID.conf; "" is the main section, the others are snapshots and `pve:pending`."""
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
    """Return the options that are pending until a restart."""
    pending = read_sections(text).get("pve:pending", [])
    gone = [name.lstrip("!") for key, value in pending if key == "delete" for name in re.split(r"[,; ]+", value)]
    return sorted({key for key, _value in pending if key != "delete"} | set(filter(None, gone)))


def parse_config(text: str) -> Config:
    """Parse the text of /etc/pve/lxc/ID.conf; pending options count as set, snapshots are ignored."""
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


def same_value(left: str, right: str) -> bool:
    """Compare two option values, ignoring the order of their parts."""
    return sorted(left.split(",")) == sorted(right.split(","))


# ---- GPUs ------------------------------------------------------------------------------------------------------


def chosen_nodes(spec: ContainerSpec, nodes: Sequence[DeviceNode]) -> tuple[DeviceNode, ...]:
    """Return the device nodes to pass through.

    Raises:
        OpsError: the host lacks one of them.
    """
    if spec.gpus == "none":
        return ()
    by_name = {node.path.removeprefix("/dev/"): node for node in nodes}
    available = sorted(int(name[6:]) for name in by_name if re.fullmatch(r"nvidia\d+", name))
    if not available:
        raise OpsError("The host has no /dev/nvidia0, so no GPU can be passed through.",
                       remedy="Install the NVIDIA driver on the host and run nvidia-smi there, or set"
                              " gpu_container_gpus: none.")
    indices = available if spec.gpus == "all" else [int(index) for index in spec.gpus.split(",")]
    absent = [index for index in indices if index not in available]
    if absent:
        raise OpsError(f"gpu_container_gpus = {spec.gpus}: the host has no /dev/nvidia{absent[0]}.",
                       remedy=f"It has {', '.join(map(str, available))}.")
    for name in CONTROL_NODES:
        if name not in by_name:
            raise OpsError(f"The host has GPUs, but no /dev/{name}: CUDA would fail in the container.",
                           remedy="Run `nvidia-modprobe -c 0 -u` on the host (package nvidia-modprobe), then retry.")
    caps = sorted(name for name in by_name if name.startswith("nvidia-caps/"))
    return tuple(by_name[name] for name in (*(f"nvidia{index}" for index in indices), *CONTROL_NODES, *caps))


# ---- plan ------------------------------------------------------------------------------------------------------


def plan(spec: ContainerSpec, found: Config | None, nodes: Sequence[DeviceNode], *, has_dev: bool) -> Plan:
    """Plan the changes that make a container match its specification.

    Args:
        spec: the specification.
        found: the current configuration; None when the container does not exist.
        nodes: every /dev/nvidia* of the host.
        has_dev: true when this Proxmox supports devN options (8.2 and later).

    Raises:
        OpsError: a value is invalid, or the host cannot provide it; the message names the variable.
    """
    validation.check(spec)
    if found is None and not spec.template:
        raise OpsError(f"Container {spec.vmid} does not exist, and gpu_container_template is not set.",
                       remedy="Set it to a template that `pveam list local` shows, such as"
                              " local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst.")
    now = found or Config({})
    chosen = chosen_nodes(spec, nodes)
    options = scalar_options(spec, now) | mount_options(spec, now)
    raw = now.raw
    removed: list[str] = []
    if use_dev_options(spec, now, has_dev):
        devices, removed = device_options(chosen, now)
        options |= devices
        raw = tuple(pair for pair in now.raw if not is_gpu_line(pair, nodes))
    else:
        raw = merged_raw(chosen, now, nodes)
    changed = {key: value for key, value in options.items() if not same_value(value, now.options.get(key, ""))}
    if found is not None:
        check_creation_options(changed, now, spec)
    after = Config({key: value for key, value in {**now.options, **changed}.items() if key not in removed}, raw)
    return Plan(
        create=create_arguments(spec, changed) if found is None else (),
        set={} if found is None else changed,
        delete=tuple(removed),
        raw=raw if raw != now.raw else None,
        before=as_text(now) if found else "",
        after=as_text(after),
    )


def scalar_options(spec: ContainerSpec, now: Config) -> dict[str, str]:
    """Return the plain options; unspecified ones stay unchanged."""
    options = {"onboot": str(int(spec.onboot)), "unprivileged": str(int(spec.unprivileged))}
    # an absent option means 0
    options = {key: value for key, value in options.items() if value != now.options.get(key, "0")}
    if spec.cores:
        options["cores"] = str(spec.cores)
    if spec.memory_mib:
        options["memory"] = str(spec.memory_mib)
    if spec.swap_mib >= 0:
        options["swap"] = str(spec.swap_mib)
    if spec.hostname:
        options["hostname"] = spec.hostname
    features = [part for part in now.options.get("features", "").split(",") if part and not part.startswith("nesting=")]
    if spec.nesting:
        options["features"] = ",".join([*features, "nesting=1"])
    return options


def mount_options(spec: ContainerSpec, now: Config) -> dict[str, str]:
    """Return an mpN option for each mount; an existing target keeps its number, and an existing volume its name."""
    options: dict[str, str] = {}
    used = {key: value for key, value in now.options.items() if re.fullmatch(r"mp\d+", key)}
    for mount in spec.mounts:
        existing = next((key for key, value in used.items() if f"mp={mount.target}" in value.split(",")), None)
        if existing is None:
            number = next(n for n in range(256) if f"mp{n}" not in used and f"mp{n}" not in options)
            options[f"mp{number}"] = mount.text
        elif mount.source.startswith("/") and not same_mount(used[existing], mount):
            options[existing] = mount.text
    return options


def same_mount(value: str, mount: Mount) -> bool:
    """Return true when an mpN option already is this mount of a host folder, ignoring its other options."""
    parts = value.split(",")
    return parts[0] == mount.source and ("ro=1" in parts) == mount.read_only


def use_dev_options(spec: ContainerSpec, now: Config, has_dev: bool) -> bool:
    """Choose devN options (true) or raw lines, from the request, the existing lines and the Proxmox version."""
    if spec.gpu_method == "dev" and not has_dev:
        raise OpsError("gpu_container_gpu_method = dev: this Proxmox does not support devN options (8.2 added them).",
                       remedy="Use auto or mount, or upgrade the host.")
    if spec.gpu_method != "auto":
        return spec.gpu_method == "dev"
    has_raw_lines = any(key == "lxc.mount.entry" and GPU_LINE.search(value) for key, value in now.raw)
    return has_dev and not has_raw_lines


def device_options(chosen: Sequence[DeviceNode], now: Config) -> tuple[dict[str, str], list[str]]:
    """Return devN options to add for the nodes, and the names of devN options to remove."""
    used = {key: value for key, value in now.options.items() if re.fullmatch(r"dev\d+", key)}
    paths = {value.split(",")[0].removeprefix("path="): key for key, value in used.items()}
    chosen_paths = {node.path for node in chosen}
    options: dict[str, str] = {}
    for node in chosen:
        if node.path in paths:
            continue
        number = next(n for n in range(256) if f"dev{n}" not in used and f"dev{n}" not in options)
        options[f"dev{number}"] = f"{node.path},mode=0666"
    removed = [key for path, key in paths.items() if path.startswith("/dev/nvidia") and path not in chosen_paths]
    return options, removed


def raw_lines(chosen: Sequence[DeviceNode]) -> list[tuple[str, str]]:
    """Return the raw lines that pass nodes through: one permission a major number, one mount a node."""
    majors = list(dict.fromkeys(node.major for node in chosen))
    allow = [("lxc.cgroup2.devices.allow", f"c {major}:* rwm") for major in majors]
    names = [node.path.removeprefix("/dev/") for node in chosen]
    return allow + [("lxc.mount.entry", f"/dev/{name} dev/{name} none bind,optional,create=file") for name in names]


def is_gpu_line(pair: tuple[str, str], nodes: Sequence[DeviceNode]) -> bool:
    """Return true for a raw line that passes a GPU through, also with a stale major number."""
    key, value = pair
    if key == "lxc.mount.entry":
        return value.startswith("/dev/nvidia")
    found = re.fullmatch(r"c (\d+):\S+ rwm?", value)
    return bool(key.startswith("lxc.cgroup") and key.endswith("devices.allow") and found
                and (int(found[1]) in {node.major for node in nodes} or int(found[1]) == 195 or int(found[1]) >= 234))


def merged_raw(chosen: Sequence[DeviceNode], now: Config, nodes: Sequence[DeviceNode]) -> tuple[tuple[str, str], ...]:
    """Return the raw lines with the GPU lines corrected; other lines stay, and correct lines keep their order."""
    expected = raw_lines(chosen)
    existing = [pair for pair in now.raw if is_gpu_line(pair, nodes)]
    if sorted(existing) == sorted(expected):
        return now.raw
    return (*(pair for pair in now.raw if pair not in existing), *expected)


def check_creation_options(changed: Mapping[str, str], now: Config, spec: ContainerSpec) -> None:
    """Raise OpsError when an option differs that can only be set at creation."""
    for key in AT_CREATION:
        if key in changed:
            unprivileged = now.options.get("unprivileged") == "1"
            raise OpsError(
                f"gpu_container_unprivileged = {str(spec.unprivileged).lower()}, but container {spec.vmid} is"
                f" {'unprivileged' if unprivileged else 'privileged'}; this can only be set at creation.",
                remedy=f"Set gpu_container_unprivileged: {str(unprivileged).lower()}, or restore a backup of the"
                       " container as the other kind.",
            )


def create_arguments(spec: ContainerSpec, options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the arguments of `pct create`."""
    arguments = ["create", str(spec.vmid), spec.template, "--rootfs", spec.rootfs, "--net0", spec.network]
    if "unprivileged" not in options:
        arguments += ["--unprivileged", "0"]
    for key, value in options.items():
        arguments += [f"--{key}", value]
    return tuple(arguments)
