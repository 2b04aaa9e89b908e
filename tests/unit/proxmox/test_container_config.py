"""What the plan for a container says, from its configuration and the host's device nodes."""
from __future__ import annotations

from dataclasses import replace

import pytest
from dflash_ops.core.errors import OpsError
from dflash_ops.proxmox.container_config import Config, Mount, Node, Plan, Wanted, parse_config, pending_names, plan

NODES = [
    *(Node(path=f"/dev/nvidia{index}", major=195, minor=index) for index in range(2)),
    Node(path="/dev/nvidiactl", major=195, minor=255),
    Node(path="/dev/nvidia-uvm", major=511, minor=0),
    Node(path="/dev/nvidia-uvm-tools", major=511, minor=1),
    Node(path="/dev/nvidia-caps/nvidia-cap1", major=236, minor=1),
]
WANTED = Wanted(vmid=200, template="local:vztmpl/debian.tar.zst", onboot=False)
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


def planned(wanted: Wanted, found: Config | None, *, has_dev: bool = True) -> Plan:
    """Plan with the two GPUs of NODES."""
    return plan(wanted, found, NODES, has_dev=has_dev)


def applied(found: Config, change: Plan) -> Config:
    """Return the configuration after a plan."""
    options = {key: value for key, value in {**found.options, **change.set}.items() if key not in change.delete}
    return Config(options, found.raw if change.raw is None else change.raw)


def test_a_configuration_is_read_without_snapshots_and_with_what_is_pending() -> None:
    found = parse_config(TEXT)
    assert found.options["cores"] == "4"
    assert found.options["memory"] == "4096"
    assert "snaptime" not in found.options
    assert found.raw == (("lxc.idmap", "u 0 100000 65536"),)
    assert pending_names(TEXT) == ["memory", "swap"]


def test_an_absent_container_is_created_with_everything() -> None:
    wanted = replace(WANTED, cores=8, memory_mib=1024, mounts=(Mount(source="/tank", target="/workspace"),))
    words = " ".join(planned(wanted, None).create)
    for part in ("create 200 local:vztmpl/debian.tar.zst", "--cores 8", "--memory 1024", "--unprivileged 1",
                 "--features nesting=1", "--mp0 /tank,mp=/workspace", "--dev0 /dev/nvidia0,mode=0666",
                 "--dev4 /dev/nvidia-uvm-tools,mode=0666"):
        assert part in words


def test_a_privileged_container_is_asked_for_in_words() -> None:
    assert "--unprivileged 0" in " ".join(planned(replace(WANTED, unprivileged=False), None).create)


@pytest.mark.parametrize("has_dev", [True, False])
@pytest.mark.parametrize("text", [TEXT, "unprivileged: 1\n", "unprivileged: 1\ndev0: /dev/net/tun\n"])
def test_a_second_plan_is_empty(text: str, has_dev: bool) -> None:
    wanted = replace(WANTED, cores=8, mounts=(Mount(source="/tank", target="/workspace", read_only=True),))
    found = parse_config(text)
    first = planned(wanted, found, has_dev=has_dev)
    assert first.changes
    assert not planned(wanted, applied(found, first), has_dev=has_dev).changes


def test_other_devices_and_features_stay() -> None:
    found = parse_config("unprivileged: 1\nfeatures: keyctl=1\ndev0: /dev/net/tun\n")
    change = planned(WANTED, found)
    assert change.set["features"] == "keyctl=1,nesting=1"
    assert "dev0" not in change.set
    assert not change.delete


def test_a_gpu_that_is_no_longer_wanted_goes() -> None:
    found = applied(Config({"unprivileged": "1"}), planned(WANTED, Config({"unprivileged": "1"})))
    change = planned(replace(WANTED, gpus="0"), found)
    assert [found.options[key] for key in change.delete] == ["/dev/nvidia1,mode=0666"]
    gone = planned(replace(WANTED, gpus="none"), found)
    assert len(gone.delete) == len(NODES)


def test_raw_lines_made_by_hand_are_kept_and_completed() -> None:
    found = parse_config(
        "unprivileged: 1\nlxc.cgroup2.devices.allow: c 195:* rwm\nlxc.cgroup2.devices.allow: c 10:200 rwm\n"
        "lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file\nlxc.apparmor.profile: unconfined\n"
    )
    change = planned(WANTED, found)
    assert change.raw is not None
    assert not [key for key in change.set if key.startswith("dev")]
    values = [value for _key, value in change.raw]
    assert values[:2] == ["c 10:200 rwm", "unconfined"]
    assert "/dev/nvidia-caps/nvidia-cap1 dev/nvidia-caps/nvidia-cap1 none bind,optional,create=file" in values
    assert values.count("c 195:* rwm") == 1


def test_raw_lines_in_another_order_are_left_alone() -> None:
    found = applied(Config({"unprivileged": "1"}), planned(WANTED, Config({"unprivileged": "1"}), has_dev=False))
    shuffled = Config(found.options, tuple(reversed(found.raw)))
    assert not planned(WANTED, shuffled, has_dev=False).changes


def test_a_major_number_that_moved_is_corrected() -> None:
    found = applied(Config({"unprivileged": "1"}), planned(WANTED, Config({"unprivileged": "1"}), has_dev=False))
    moved = [replace(node, major=508) if node.major == 511 else node for node in NODES]
    change = plan(WANTED, found, moved, has_dev=False)
    assert change.raw is not None
    values = [value for _key, value in change.raw]
    assert "c 508:* rwm" in values
    assert "c 511:* rwm" not in values


def test_a_mount_changes_in_its_place_and_a_volume_keeps_its_name() -> None:
    found = parse_config("unprivileged: 1\nmp0: /old,mp=/workspace\nmp3: local-lvm:vm-200-disk-1,mp=/data,size=8G\n")
    mounts = (Mount(source="/new", target="/workspace"), Mount(source="local-lvm:8", target="/data"),
              Mount(source="/more", target="/more"))
    change = planned(replace(WANTED, mounts=mounts, gpus="none"), found)
    assert change.set["mp0"] == "/new,mp=/workspace"
    assert change.set["mp1"] == "/more,mp=/more"
    assert "mp3" not in change.set


def test_what_waits_for_a_restart_is_named() -> None:
    change = planned(replace(WANTED, cores=8, gpus="none"), parse_config("unprivileged: 1\n"))
    assert change.waits_for_restart == ("features",)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (replace(WANTED, vmid=12), "gpu_container_vmid = 12"),
        (replace(WANTED, gpus="0,5"), "no /dev/nvidia5.*It has 0, 1"),
        (replace(WANTED, gpus="some"), "gpu_container_gpus = 'some'"),
        (replace(WANTED, memory_mib=8), "gpu_container_memory_mib = 8"),
        (replace(WANTED, rootfs="local"), "gpu_container_rootfs = 'local'.*local-lvm:64"),
        (replace(WANTED, hostname="a b"), "gpu_container_hostname = 'a b'"),
        (replace(WANTED, memory_mib=-5), "gpu_container_memory_mib = -5"),
        (replace(WANTED, swap_mib=-7), "gpu_container_swap_mib = -7"),
        (replace(WANTED, cores=-1), "gpu_container_cores = -1"),
        (replace(WANTED, gpus="0,0"), "gpu_container_gpus = '0,0'.*each once"),
        (replace(WANTED, gpus="00"), "gpu_container_gpus = '00'"),
        (replace(WANTED, rootfs="local:0"), "gpu_container_rootfs = 'local:0'"),
        (replace(WANTED, network="eth0"), "gpu_container_network = 'eth0'.*bridge=vmbr0"),
        (replace(WANTED, network="name=eth0,bridge=,ip=dhcp"), "gpu_container_network"),
        (replace(WANTED, hostname="x" * 80), "gpu_container_hostname"),
        (replace(WANTED, template="debian"), "gpu_container_template = 'debian'.*pveam list"),
        (replace(WANTED, mounts=(Mount(source="tank", target="/work"),)), "'tank' to '/work'.*absolute path"),
        (replace(WANTED, mounts=(Mount(source="/a", target="/w/../etc"),)), "one absolute path"),
        (replace(WANTED, mounts=(Mount(source="/a", target="/w/"), Mount(source="/b", target="/w"))), "of its own"),
        (replace(WANTED, vmid=12, gpus="some", rootfs="x"), r"\(1\) gpu_.*_vmid.*\n\(2\).*_gpus.*\n\(3\).*_rootfs"),
        (replace(WANTED, template=""), "gpu_container_template names no template.*pveam"),
        (replace(WANTED, mounts=(Mount(source="/a", target="work"),)), "'/a' to 'work'"),
        (replace(WANTED, mounts=(Mount(source="/a,b", target="/work"),)), "options by commas"),
    ],
)
def test_what_cannot_work_is_refused_by_name(wanted: Wanted, words: str) -> None:
    with pytest.raises(OpsError) as refusal:
        planned(wanted, None)
    import re

    assert re.search(words, str(refusal.value))
    assert "Remedy" in str(refusal.value)


def test_a_kind_that_only_creation_decides_is_refused() -> None:
    with pytest.raises(OpsError, match="container 200 is privileged; that is decided when it is created"):
        planned(WANTED, Config({"cores": "1"}))


def test_a_host_without_gpu_or_without_uvm_is_named() -> None:
    with pytest.raises(OpsError, match="no /dev/nvidia0"):
        plan(WANTED, None, [], has_dev=True)
    with pytest.raises(OpsError, match=r"no /dev/nvidia-uvm: CUDA would fail.*nvidia-modprobe"):
        plan(WANTED, None, [node for node in NODES if "uvm" not in node.path], has_dev=True)


def test_dev_options_need_a_proxmox_that_has_them() -> None:
    with pytest.raises(OpsError, match="gpu_container_gpu_method = dev"):
        planned(replace(WANTED, gpu_method="dev"), None, has_dev=False)
