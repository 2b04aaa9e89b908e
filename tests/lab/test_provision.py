"""playbooks/provision.yml on the lab's host creates a running container that sees its GPUs."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, login_variables
from dflash_lab import gpus, host
from dflash_lab.lab import Lab
from dflash_lab.layout import BRIDGE, NETWORK, TEMPLATE, address

NEW = 203
Provision = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def provision(lab: Lab, tmp_path: Path) -> Iterator[Provision]:
    """Run the playbook for container 203, whose ID only the box has; the container is destroyed afterwards."""
    base = {
        "gpu_container_template": TEMPLATE, "gpu_container_rootfs": "local:8",
        "gpu_container_network": f"name=eth0,bridge={BRIDGE},ip={address(NEW)}/24,gw={NETWORK}.1",
        "gpu_container_driver_check": False,
    }

    def run(*arguments: str, playbook: str = "playbooks/provision.yml", login: dict[str, Any] | None = None,
            **variables: Any) -> subprocess.CompletedProcess[str]:
        connection = login_variables(lab) | (login or {})
        inventory = {
            "proxmox_hosts": {"hosts": {"pve": connection | {"ansible_connection": "ssh"} | base | variables}},
            "trainers": {"hosts": {"trainer": connection | {"pct_vmid": NEW, "pct_persist": 0}}},
        }
        (tmp_path / "inventory.json").write_text(json.dumps(inventory), encoding="utf-8")
        if not (tmp_path / "group_vars").exists():
            (tmp_path / "group_vars").symlink_to(REPO / "group_vars")
        command = [str(Path(sys.executable).with_name("ansible-playbook")), playbook,
                   "-i", str(tmp_path / "inventory.json"), *arguments]
        return subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False,
                              env={**os.environ, "ANSIBLE_NOCOLOR": "1"})

    yield run
    lab.pct("destroy", str(NEW), "--force", "1", check=False)


def recap(done: subprocess.CompletedProcess[str]) -> str:
    """Return the recap line of the host, or the whole output when there is none."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("pve ")]
    return lines[-1] if lines else done.stdout + done.stderr


def output_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the output of a play on one line."""
    return " ".join(done.stdout.split())


def nodes_inside(lab: Lab) -> set[str]:
    """Return the NVIDIA device nodes in the container."""
    shown = lab.inside(NEW, "sh", "-c", "cd /dev; ls -d nvidia* nvidia-caps/*", check=False).stdout
    return set(shown.split()) - {"nvidia-caps"}


ALL = {"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools",
       "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2"}


def test_a_container_is_created_with_its_gpus(lab: Lab, provision: Provision) -> None:
    folder = lab.layout.state / "volumes" / "workspace"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shared").write_text("x", encoding="utf-8")
    mounts = [{"source": str(folder), "target": "/workspace"}]
    first = provision("--check", "--diff", gpu_container_mounts=mounts)
    assert first.returncode == 0, recap(first)
    assert "changed=1" in recap(first)
    assert "+dev0: /dev/nvidia0,mode=0666" in first.stdout
    assert lab.pct("status", str(NEW), check=False).returncode != 0

    done = provision(gpu_container_mounts=mounts, gpu_container_cores=1)
    assert done.returncode == 0, done.stdout
    assert "changed=1" in recap(done)
    assert nodes_inside(lab) == ALL
    assert lab.inside(NEW, "cat", "/workspace/shared").stdout == "x"
    assert lab.inside(NEW, "cat", "/proc/self/uid_map").stdout.split() == ["0", "100000", "65536"]
    enabled = "/etc/systemd/system/multi-user.target.wants/dflash-nvidia-nodes.service"
    assert "nvidia-modprobe -c 0 -u" in host.run_on_host(lab.layout, "cat", enabled).stdout
    assert "nvidia_uvm" in host.run_on_host(lab.layout, "cat", "/etc/modules-load.d/dflash-nvidia.conf").stdout

    repeated = provision(gpu_container_mounts=mounts, gpu_container_cores=1)
    assert repeated.returncode == 0
    assert "changed=0" in recap(repeated)


def uptime_start(lab: Lab) -> str:
    """Return the start time of the container's init, which a restart changes."""
    return lab.inside(NEW, "cat", "/proc/1/stat").stdout.split()[21]


def test_a_running_container_is_restarted_only_when_allowed_and_never_while_training(
    lab: Lab, provision: Provision
) -> None:
    assert provision(gpu_container_gpus="none").returncode == 0
    lab.wait_ready(NEW)
    started = uptime_start(lab)

    changed = provision(gpu_container_cores=2)
    assert changed.returncode == 0, changed.stdout
    assert "gpu_container_allow_restart=true" in output_line(changed)
    assert "/dev/nvidia0 is not in the container" in output_line(changed)
    assert (nodes_inside(lab), uptime_start(lab)) == (set(), started)
    assert "cores: 2" in lab.pct("config", str(NEW)).stdout

    lab.inside(NEW, "sh", "-c", "DFLASH_RUN_ID=20260101T000000Z-demo setsid sleep 600 </dev/null >/dev/null 2>&1 &")
    refused = provision(gpu_container_allow_restart=True)
    assert refused.returncode == 2
    assert "Container 203 is training (run 20260101T000000Z-demo), so it was not restarted" in output_line(refused)
    assert uptime_start(lab) == started

    lab.inside(NEW, "sh", "-c", "kill $(ps -eo pid,args | awk '/sleep 60[0]/ {print $1}')")
    restarted = provision(gpu_container_allow_restart=True)
    assert restarted.returncode == 0, restarted.stdout
    assert nodes_inside(lab) == ALL
    assert uptime_start(lab) != started


def test_a_stopped_container_is_started_and_a_locked_one_is_unchanged(lab: Lab, provision: Provision) -> None:
    assert provision(gpu_container_gpus="none").returncode == 0
    lab.pct("stop", str(NEW))
    done = provision(gpu_container_gpus="none")
    assert "changed=1" in recap(done)
    assert lab.pct("status", str(NEW)).stdout == "status: running\n"
    lab.pct("set", str(NEW), "--lock", "backup")
    locked = provision()
    assert locked.returncode == 2
    assert "Container 203 is locked (backup)" in locked.stdout
    lab.pct("unlock", str(NEW))


def test_a_proxmox_without_dev_options_gets_raw_lines(lab: Lab, provision: Provision) -> None:
    version = lab.layout.host / "usr/sbin/pveversion"
    kept = version.read_text(encoding="utf-8")
    version.write_text("#!/bin/sh\necho 'pve-manager/7.4-3/9002ab8a (running kernel: 5.15.102)'\n", encoding="utf-8")
    try:
        done = provision(gpu_container_unprivileged=False)
        assert done.returncode == 0, done.stdout
        assert nodes_inside(lab) == ALL
        config = lab.pct("config", str(NEW)).stdout
        assert "lxc.cgroup2.devices.allow: c 511:* rwm" in config
        assert "dev0" not in config
        assert "changed=0" in recap(provision(gpu_container_unprivileged=False))
    finally:
        version.write_text(kept, encoding="utf-8")


INSTALLER = f"""#!/bin/sh
case "$*" in *--no-kernel-module*) ;; *) exit 1 ;; esac
touch /usr/lib/x86_64-linux-gnu/libcuda.so.{gpus.DRIVER}
"""


def test_the_container_gets_the_driver_version_of_the_host(lab: Lab, provision: Provision) -> None:
    missing = provision(gpu_container_driver_check=True)
    assert missing.returncode == 2
    assert f"driver is {gpus.DRIVER}, the libraries in container 203 are absent" in output_line(missing)
    installer = lab.layout.host / f"root/NVIDIA-Linux-x86_64-{gpus.DRIVER}.run"
    installer.write_text(INSTALLER, encoding="utf-8")
    wrong = provision(gpu_container_driver_check=True, gpu_container_driver_installer="/root/other-1.2.3.run")
    assert "gpu_container_driver_installer = '/root/other-1.2.3.run'" in output_line(wrong)
    done = provision(gpu_container_driver_check=True, gpu_container_driver_installer=f"/root/{installer.name}")
    assert done.returncode == 0, done.stdout
    assert lab.inside(NEW, "ls", "/root").stdout == ""
    repeated = provision(gpu_container_driver_check=True, gpu_container_driver_installer=f"/root/{installer.name}")
    assert "changed=0" in recap(repeated)


def test_a_missing_gpu_or_template_is_named(lab: Lab, provision: Provision) -> None:
    done = provision(gpu_container_gpus="0,7")
    assert "has no /dev/nvidia7" in done.stdout
    done = provision(gpu_container_template="local:vztmpl/absent.tar.zst")
    assert "pveam download" in output_line(done)
    assert lab.pct("status", str(NEW), check=False).returncode != 0


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"gpu_container_memory": 4096}, "gpu_container_memory: unknown variable; did you mean"),
        ({"gpu_container_vmid": "two"}, "gpu_container_vmid"),
        ({"gpu_container_mounts": [{"source": "/tank/absent", "target": "/workspace"}]}, "/tank/absent is not a"),
        ({"gpu_container_network": "name=eth0,bridge=vmbr77,ip=dhcp"}, "the host has no bridge vmbr77"),
        ({"gpu_container_template": "local:vztmpl/absent.tar.zst"}, "pveam download"),
        ({"gpu_container_memory_mib": -5, "gpu_container_gpus": "0,0"}, "(2) gpu_container_gpus = '0,0'"),
    ],
)
def test_an_invalid_value_is_named_before_anything_is_changed(
    lab: Lab, provision: Provision, variables: dict[str, Any], message: str
) -> None:
    before = host_files(lab)
    done = provision(**variables)
    assert done.returncode == 2
    assert message in output_line(done)
    assert lab.pct("status", str(NEW), check=False).returncode != 0
    assert host_files(lab) == before


@pytest.mark.parametrize("playbook", ["playbooks/provision.yml", "deploy.yml", "playbooks/status.yml"])
def test_two_ids_for_one_container_are_refused(lab: Lab, provision: Provision, playbook: str) -> None:
    before, calls = host_files(lab), len(lab.pct_calls())
    done = provision(playbook=playbook, gpu_container_vmid=204)
    assert done.returncode == 2, done.stdout
    message = "gpu_container_vmid = 204 of pve, but pct_vmid = 203 (trainer) behind the same Proxmox host"
    assert message in output_line(done)
    assert "Remedy: remove gpu_container_vmid" in output_line(done)
    assert "Nothing was changed" in output_line(done)
    assert (host_files(lab), len(lab.pct_calls())) == (before, calls)


@pytest.mark.parametrize(
    ("login", "message"),
    [
        ({"ansible_port": 1}, "No ssh connection to 127.0.0.1: ssh: .*refused. Remedy: Check that the host is up"),
        ({"ansible_host": "no-such-host.invalid"}, "The host name no-such-host.invalid cannot be resolved. Remedy"),
        ({"ansible_user": "somebody"}, "refused the ssh login. Remedy: Try `ssh somebody@127.0.0.1` by hand"),
        ({"ansible_ssh_common_args": "-o UserKnownHostsFile=/dev/null -o ControlPath=none"},
         "host key of 127.0.0.1 is unknown or has changed. Remedy: Compare the fingerprint"),
    ],
)
def test_an_unreachable_host_is_reported_with_one_message(
    lab: Lab, provision: Provision, login: dict[str, Any], message: str
) -> None:
    calls = len(lab.pct_calls())
    done = provision(login=login)
    assert done.returncode == 4, done.stdout
    assert re.search(message, output_line(done)), done.stdout
    assert done.stdout.count("UNREACHABLE!") == 1
    assert len(lab.pct_calls()) == calls


def host_files(lab: Lab) -> set[str]:
    """Return the files that provisioning wrote on the host."""
    return {str(path) for path in (lab.layout.host / "etc").rglob("dflash-nvidia*")}


def test_an_inventory_without_a_proxmox_host_is_an_error() -> None:
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "playbooks/provision.yml",
               "-i", "inventory/ssh_node.yml"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "no host in the group proxmox_hosts" in done.stdout + done.stderr


def test_the_container_has_its_gpus_after_a_reboot(lab: Lab, provision: Provision) -> None:
    assert provision().returncode == 0
    lab.pct("reboot", str(NEW))
    lab.wait_ready(NEW)
    end = time.monotonic() + 20
    while nodes_inside(lab) != ALL and time.monotonic() < end:
        time.sleep(0.2)
    assert nodes_inside(lab) == ALL
