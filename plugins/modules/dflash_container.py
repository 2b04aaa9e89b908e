#!/usr/bin/python
"""Ansible module dflash_container; see DOCUMENTATION."""
from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_container
short_description: Create or update a GPU container on this Proxmox host and start it
description:
  - Runs on the Proxmox host. Compares the container with the options, shows the differences, and applies them, in one
    call.
  - A running container is restarted only with O(allow_restart=true), and never while something trains in it.
options:
  vmid:
    description: ID of the container.
    type: int
    required: true
  template:
    description: Template for creating an absent container, as C(pveam list STORAGE) shows it.
    type: str
    default: ""
  rootfs:
    description: Storage and size in GiB of a new container's root file system.
    type: str
    default: local-lvm:64
  hostname:
    description: Host name; empty leaves it unchanged.
    type: str
    default: ""
  cores:
    description: Number of cores; 0 leaves it unchanged, which in a new container means all.
    type: int
    default: 0
  memory_mib:
    description: Memory in MiB; 0 leaves it unchanged.
    type: int
    default: 0
  swap_mib:
    description: Swap in MiB; -1 leaves it unchanged.
    type: int
    default: -1
  network:
    description: Option net0 of a new container.
    type: str
    default: name=eth0,bridge=vmbr0,ip=dhcp
  unprivileged:
    description: Map the container's root to an unprivileged user of the host. Can only be set at creation.
    type: bool
    default: true
  nesting:
    description: Enable the nesting feature, which systemd in the container needs.
    type: bool
    default: true
  onboot:
    description: Start the container when the host boots.
    type: bool
    default: true
  mounts:
    description: Host folders or new volumes to mount in the container.
    type: list
    elements: dict
    default: []
    suboptions:
      source:
        description: Folder on the host, or C(STORAGE:GIB) for a new volume.
        type: str
        required: true
      target:
        description: Path in the container.
        type: str
        required: true
      read_only:
        description: Mount it read-only.
        type: bool
        default: false
  gpus:
    description: V(all), V(none), or indices such as V(0,1).
    type: str
    default: all
  gpu_method:
    description: V(dev) for devN options, V(mount) for raw lxc lines. V(auto) keeps existing raw lines, otherwise V(dev)
      where Proxmox supports it.
    type: str
    choices: [auto, dev, mount]
    default: auto
  driver_installer:
    description: NVIDIA's .run file on the host, of the host driver's version, to install in a container whose libraries
      differ.
    type: str
    default: ""
  driver_check:
    description: Fail when the container's NVIDIA libraries are not of the host driver's version.
    type: bool
    default: true
  allow_restart:
    description: Allow restarting a running container to apply changes.
    type: bool
    default: false
  pct:
    description: Path of pct.
    type: str
    default: /usr/sbin/pct
attributes:
  check_mode: {support: full, description: Shows the differences and changes nothing.}
  diff_mode: {support: full, description: Lines of the configuration.}
author: dflash-ansible contributors
"""

EXAMPLES = r"""
- name: Give container 200 the host's GPUs
  dflash_container:
    vmid: 200
    template: local:vztmpl/debian-12-standard_12.7-1_amd64.tar.zst
    cores: 32
    memory_mib: 262144
    mounts:
      - {source: /tank/training, target: /workspace}
"""

RETURN = r"""
created:
  description: True when the container was created, or would be in check mode.
  returned: always
  type: bool
  sample: false
running:
  description: True when the container is running at the end.
  returned: always
  type: bool
  sample: true
gpus:
  description: Device nodes that are passed through.
  returned: always
  type: list
  sample: [/dev/nvidia0, /dev/nvidiactl]
restart_reasons:
  description: Reasons why the running container needs a restart.
  returned: always
  type: list
  sample: ["/dev/nvidia7 is not in the container"]
restarted:
  description: True when the container was restarted.
  returned: always
  type: bool
  sample: false
training:
  description: Runs, and other processes on a GPU, in the container.
  returned: always
  type: list
  sample: ["run 20261129T101500Z-demo"]
driver:
  description: Driver versions of the host and of the container's libraries; empty when there are none.
  returned: always
  type: dict
  sample: {host: "570.86.15", container: "570.86.15"}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_ops.core.errors import OpsError
from ansible.module_utils.dflash_ops.proxmox.container_config import ContainerSpec, Mount
from ansible.module_utils.dflash_ops.proxmox.container_host import ProxmoxHost
from ansible.module_utils.dflash_ops.proxmox.provision import provision

MOUNT: dict[str, dict[str, Any]] = {
    "source": {"type": "str", "required": True},
    "target": {"type": "str", "required": True},
    "read_only": {"type": "bool", "default": False},
}
SPEC: dict[str, dict[str, Any]] = {
    "vmid": {"type": "int", "required": True},
    "template": {"type": "str", "default": ""},
    "rootfs": {"type": "str", "default": "local-lvm:64"},
    "hostname": {"type": "str", "default": ""},
    "cores": {"type": "int", "default": 0},
    "memory_mib": {"type": "int", "default": 0},
    "swap_mib": {"type": "int", "default": -1},
    "network": {"type": "str", "default": "name=eth0,bridge=vmbr0,ip=dhcp"},
    "unprivileged": {"type": "bool", "default": True},
    "nesting": {"type": "bool", "default": True},
    "onboot": {"type": "bool", "default": True},
    "mounts": {"type": "list", "elements": "dict", "default": [], "options": MOUNT},
    "gpus": {"type": "str", "default": "all"},
    "gpu_method": {"type": "str", "choices": ["auto", "dev", "mount"], "default": "auto"},
}
ARGUMENTS: dict[str, dict[str, Any]] = SPEC | {
    "driver_installer": {"type": "str", "default": ""},
    "driver_check": {"type": "bool", "default": True},
    "allow_restart": {"type": "bool", "default": False},
    "pct": {"type": "str", "default": "/usr/sbin/pct"},
}


def act(module: AnsibleModule) -> dict[str, Any]:
    """Provision the container and return the module's result.

    Raises:
        OpsError: the container cannot be provisioned.
    """
    options = {name: module.params[name] for name in SPEC}
    options["mounts"] = tuple(Mount(**mount) for mount in options["mounts"])
    return provision(
        ProxmoxHost(module.params["pct"]),
        ContainerSpec(**options),
        installer=module.params["driver_installer"],
        driver_check=module.params["driver_check"],
        allow_restart=module.params["allow_restart"],
        check_mode=module.check_mode,
    )


def main() -> None:
    """Run the module on the Proxmox host, which has no dflash_root and no operator lock."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = act(module)
    except OpsError as error:
        module.fail_json(msg=str(error), **error.facts)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
