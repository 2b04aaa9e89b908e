"""The plan for a container follows from its specification, its configuration and the host's device nodes."""
from __future__ import annotations

import re
from dataclasses import replace

import pytest
from dflash_ops.core.errors import OpsError
from dflash_ops.proxmox.container_config import (
    Config,
    ContainerSpec,
    DeviceNode,
    Mount,
    Plan,
    parse_config,
    pending_names,
    plan,
)

NODES = [
    *(DeviceNode(path=f"/dev/nvidia{index}", major=195, minor=index) for index in range(2)),
    DeviceNode(path="/dev/nvidiactl", major=195, minor=255),
    DeviceNode(path="/dev/nvidia-uvm", major=511, minor=0),
    DeviceNode(path="/dev/nvidia-uvm-tools", major=511, minor=1),
    DeviceNode(path="/dev/nvidia-caps/nvidia-cap1", major=236, minor=1),
]
SPEC = ContainerSpec(vmid=200, template="local:vztmpl/debian.tar.zst", onboot=False)
TEXT = """\
# a note
arch: amd64
cores: 4
features: keyctl=1,nesting=1
hostname: trainer
mp0: /tank/data,mp=/workspace
unprivileged: 1
lxc.idmap: u 0 100000 65536

[pve:pending]
memory: 4096
delete: swap

[before-upgrade]
cores: 1
snaptime: 1700000000
"""


def planned(spec: ContainerSpec, found: Config | None, *, has_dev: bool = True) -> Plan:
    """Plan with the two GPUs of NODES."""
    return plan(spec, found, NODES, has_dev=has_dev)


def applied(found: Config, change: Plan) -> Config:
    """Return the configuration after a plan."""
    options = {key: value for key, value in {**found.options, **change.set}.items() if key not in change.delete}
    return Config(options, found.raw if change.raw is None else change.raw)


def test_parsing_skips_snapshots_and_includes_pending_options() -> None:
    found = parse_config(TEXT)
    assert found.options["cores"] == "4"
    assert found.options["memory"] == "4096"
    assert "snaptime" not in found.options
    assert found.raw == (("lxc.idmap", "u 0 100000 65536"),)
    assert pending_names(TEXT) == ["memory", "swap"]


def test_a_new_container_is_created_with_every_option() -> None:
    spec = replace(SPEC, cores=8, memory_mib=1024, mounts=(Mount(source="/tank", target="/workspace"),))
    command = " ".join(planned(spec, None).create)
    for part in ("create 200 local:vztmpl/debian.tar.zst", "--cores 8", "--memory 1024", "--unprivileged 1",
                 "--features nesting=1", "--mp0 /tank,mp=/workspace", "--dev0 /dev/nvidia0,mode=0666",
                 "--dev4 /dev/nvidia-uvm-tools,mode=0666"):
        assert part in command


def test_a_privileged_container_is_requested_explicitly() -> None:
    assert "--unprivileged 0" in " ".join(planned(replace(SPEC, unprivileged=False), None).create)


@pytest.mark.parametrize("has_dev", [True, False])
@pytest.mark.parametrize("text", [TEXT, "unprivileged: 1\n", "unprivileged: 1\ndev0: /dev/net/tun\n"])
def test_a_second_plan_is_empty(text: str, has_dev: bool) -> None:
    spec = replace(SPEC, cores=8, mounts=(Mount(source="/tank", target="/workspace", read_only=True),))
    found = parse_config(text)
    first = planned(spec, found, has_dev=has_dev)
    assert first.changes
    assert not planned(spec, applied(found, first), has_dev=has_dev).changes


def test_unrelated_devices_and_features_are_kept() -> None:
    found = parse_config("unprivileged: 1\nfeatures: keyctl=1\ndev0: /dev/net/tun\n")
    change = planned(SPEC, found)
    assert change.set["features"] == "keyctl=1,nesting=1"
    assert "dev0" not in change.set
    assert not change.delete


def test_a_gpu_that_is_no_longer_specified_is_removed() -> None:
    found = applied(Config({"unprivileged": "1"}), planned(SPEC, Config({"unprivileged": "1"})))
    change = planned(replace(SPEC, gpus="0"), found)
    assert [found.options[key] for key in change.delete] == ["/dev/nvidia1,mode=0666"]
    without_gpus = planned(replace(SPEC, gpus="none"), found)
    assert len(without_gpus.delete) == len(NODES)


def test_existing_raw_lines_are_kept_and_completed() -> None:
    found = parse_config(
        "unprivileged: 1\nlxc.cgroup2.devices.allow: c 195:* rwm\nlxc.cgroup2.devices.allow: c 10:200 rwm\n"
        "lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file\nlxc.apparmor.profile: unconfined\n"
    )
    change = planned(SPEC, found)
    assert change.raw is not None
    assert not [key for key in change.set if key.startswith("dev")]
    values = [value for _key, value in change.raw]
    assert values[:2] == ["c 10:200 rwm", "unconfined"]
    assert "/dev/nvidia-caps/nvidia-cap1 dev/nvidia-caps/nvidia-cap1 none bind,optional,create=file" in values
    assert values.count("c 195:* rwm") == 1


def test_raw_lines_in_another_order_are_unchanged() -> None:
    found = applied(Config({"unprivileged": "1"}), planned(SPEC, Config({"unprivileged": "1"}), has_dev=False))
    shuffled = Config(found.options, tuple(reversed(found.raw)))
    assert not planned(SPEC, shuffled, has_dev=False).changes


def test_a_changed_major_number_is_corrected() -> None:
    found = applied(Config({"unprivileged": "1"}), planned(SPEC, Config({"unprivileged": "1"}), has_dev=False))
    moved = [replace(node, major=508) if node.major == 511 else node for node in NODES]
    change = plan(SPEC, found, moved, has_dev=False)
    assert change.raw is not None
    values = [value for _key, value in change.raw]
    assert "c 508:* rwm" in values
    assert "c 511:* rwm" not in values


def test_a_mount_keeps_its_number_and_a_volume_its_name() -> None:
    found = parse_config("unprivileged: 1\nmp0: /old,mp=/workspace\nmp3: local-lvm:vm-200-disk-1,mp=/data,size=8G\n")
    mounts = (Mount(source="/new", target="/workspace"), Mount(source="local-lvm:8", target="/data"),
              Mount(source="/more", target="/more"))
    change = planned(replace(SPEC, mounts=mounts, gpus="none"), found)
    assert change.set["mp0"] == "/new,mp=/workspace"
    assert change.set["mp1"] == "/more,mp=/more"
    assert "mp3" not in change.set


def test_options_that_need_a_restart_are_named() -> None:
    change = planned(replace(SPEC, cores=8, gpus="none"), parse_config("unprivileged: 1\n"))
    assert change.waits_for_restart == ("features",)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(SPEC, vmid=12), "gpu_container_vmid = 12"),
        (replace(SPEC, gpus="0,5"), "no /dev/nvidia5.*It has 0, 1"),
        (replace(SPEC, gpus="some"), "gpu_container_gpus = 'some'"),
        (replace(SPEC, memory_mib=8), "gpu_container_memory_mib = 8"),
        (replace(SPEC, rootfs="local"), "gpu_container_rootfs = 'local'.*local-lvm:64"),
        (replace(SPEC, hostname="a b"), "gpu_container_hostname = 'a b'"),
        (replace(SPEC, memory_mib=-5), "gpu_container_memory_mib = -5"),
        (replace(SPEC, swap_mib=-7), "gpu_container_swap_mib = -7"),
        (replace(SPEC, cores=-1), "gpu_container_cores = -1"),
        (replace(SPEC, gpus="0,0"), "gpu_container_gpus = '0,0'.*each once"),
        (replace(SPEC, gpus="00"), "gpu_container_gpus = '00'"),
        (replace(SPEC, rootfs="local:0"), "gpu_container_rootfs = 'local:0'"),
        (replace(SPEC, network="eth0"), "gpu_container_network = 'eth0'.*bridge=vmbr0"),
        (replace(SPEC, network="name=eth0,bridge=,ip=dhcp"), "gpu_container_network"),
        (replace(SPEC, hostname="x" * 80), "gpu_container_hostname"),
        (replace(SPEC, template="debian"), "gpu_container_template = 'debian'.*pveam list"),
        (replace(SPEC, mounts=(Mount(source="tank", target="/work"),)), "'tank' to '/work'.*absolute path"),
        (replace(SPEC, mounts=(Mount(source="/a", target="/w/../etc"),)), "a different absolute path"),
        (replace(SPEC, mounts=(Mount(source="/a", target="/w/"), Mount(source="/b", target="/w"))), "absolute path"),
        (replace(SPEC, vmid=12, gpus="some", rootfs="x"), r"\(1\) gpu_.*_vmid.*\n\(2\).*_gpus.*\n\(3\).*_rootfs"),
        (replace(SPEC, template=""), "gpu_container_template is not set.*pveam"),
        (replace(SPEC, mounts=(Mount(source="/a", target="work"),)), "'/a' to 'work'"),
        (replace(SPEC, mounts=(Mount(source="/a,b", target="/work"),)), "options by commas"),
    ],
)
def test_an_invalid_value_is_refused_by_name(spec: ContainerSpec, message: str) -> None:
    with pytest.raises(OpsError) as error:
        planned(spec, None)
    assert re.search(message, str(error.value))
    assert "Remedy" in str(error.value)


def test_a_change_that_needs_a_new_container_is_refused() -> None:
    with pytest.raises(OpsError, match="container 200 is privileged; this can only be set at creation"):
        planned(SPEC, Config({"cores": "1"}))


def test_a_missing_gpu_or_uvm_node_is_named() -> None:
    with pytest.raises(OpsError, match="no /dev/nvidia0"):
        plan(SPEC, None, [], has_dev=True)
    with pytest.raises(OpsError, match=r"no /dev/nvidia-uvm: CUDA would fail.*nvidia-modprobe"):
        plan(SPEC, None, [node for node in NODES if "uvm" not in node.path], has_dev=True)


def test_dev_options_need_a_proxmox_that_supports_them() -> None:
    with pytest.raises(OpsError, match="gpu_container_gpu_method = dev"):
        planned(replace(SPEC, gpu_method="dev"), None, has_dev=False)
