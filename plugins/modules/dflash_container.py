#!/usr/bin/python
"""See DOCUMENTATION."""
from __future__ import annotations

DOCUMENTATION = r"""
module: dflash_container
short_description: A container of this Proxmox host exists as wanted, sees its GPUs, and runs
description:
  - Runs on the Proxmox host. Looks at the container, shows what differs, and changes what can be changed, in one call.
  - A container that runs is restarted only with O(allow_restart=true), and never while it trains.
options:
  vmid:
    description: Number of the container.
    type: int
    required: true
  template:
    description: Template that an absent container is created from, as C(pveam list STORAGE) shows it.
    type: str
    default: ""
  rootfs:
    description: Storage and size in GiB of the root file system of an absent container.
    type: str
    default: local-lvm:64
  hostname:
    description: Host name; empty leaves it as it is.
    type: str
    default: ""
  cores:
    description: Number of cores; 0 leaves it as it is, which in a new container means all.
    type: int
    default: 0
  memory_mib:
    description: Memory; 0 leaves it as it is.
    type: int
    default: 0
  swap_mib:
    description: Swap; -1 leaves it as it is.
    type: int
    default: -1
  network:
    description: Option net0 of an absent container.
    type: str
    default: name=eth0,bridge=vmbr0,ip=dhcp
  unprivileged:
    description: Whether the container's root is an ordinary user of the host. Decided at creation.
    type: bool
    default: true
  nesting:
    description: Feature that systemd in the container needs.
    type: bool
    default: true
  onboot:
    description: Start the container when the host boots.
    type: bool
    default: true
  mounts:
    description: Folders of the host, or new volumes, that the container shows.
    type: list
    elements: dict
    default: []
    suboptions:
      source:
        description: A folder of the host, or C(STORAGE:GIB) for a new volume.
        type: str
        required: true
      target:
        description: Where it is in the container.
        type: str
        required: true
      read_only:
        description: Whether the container may only read it.
        type: bool
        default: false
  gpus:
    description: V(all), V(none), or indices such as V(0,1).
    type: str
    default: all
  gpu_method:
    description: V(dev) for devN options, V(mount) for raw lxc lines; V(auto) keeps what is there, else takes the first
      that Proxmox can.
    type: str
    choices: [auto, dev, mount]
    default: auto
  driver_installer:
    description: NVIDIA's .run file on the host, of the host driver's version, for a container whose libraries differ.
    type: str
    default: ""
  driver_check:
    description: Whether libraries in the container that are not of the host driver's version are an error.
    type: bool
    default: true
  allow_restart:
    description: Whether a running container may be restarted to take its changes.
    type: bool
    default: false
  pct:
    description: Where pct is.
    type: str
    default: /usr/sbin/pct
attributes:
  check_mode: {support: full, description: Shows the differences and changes nothing.}
  diff_mode: {support: full, description: Lines of the configuration.}
author: dflash-ansible contributors
"""

EXAMPLES = r"""
- name: Container 200 sees the host's GPUs
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
  description: Whether the container was (or in check mode would be) created.
  returned: always
  type: bool
  sample: false
running:
  description: Whether the container runs at the end.
  returned: always
  type: bool
  sample: true
gpus:
  description: The device nodes that are passed through.
  returned: always
  type: list
  sample: [/dev/nvidia0, /dev/nvidiactl]
restart_reasons:
  description: What the running container takes only at its next start.
  returned: always
  type: list
  sample: ["/dev/nvidia7 is not in the container"]
restarted:
  description: Whether it was restarted for them.
  returned: always
  type: bool
  sample: false
trains:
  description: What trains in the container.
  returned: always
  type: list
  sample: ["run 20261129T101500Z-demo"]
driver:
  description: Driver versions of the host and of the container's libraries; empty strings where there are none.
  returned: always
  type: dict
  sample: {host: "570.86.15", container: "570.86.15"}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.dflash_ops.core.errors import OpsError
from ansible.module_utils.dflash_ops.proxmox.container_config import Mount, Wanted
from ansible.module_utils.dflash_ops.proxmox.container_host import Host
from ansible.module_utils.dflash_ops.proxmox.provision import provision

MOUNT: dict[str, dict[str, Any]] = {
    "source": {"type": "str", "required": True},
    "target": {"type": "str", "required": True},
    "read_only": {"type": "bool", "default": False},
}
WANTED: dict[str, dict[str, Any]] = {
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
ARGUMENTS: dict[str, dict[str, Any]] = WANTED | {
    "driver_installer": {"type": "str", "default": ""},
    "driver_check": {"type": "bool", "default": True},
    "allow_restart": {"type": "bool", "default": False},
    "pct": {"type": "str", "default": "/usr/sbin/pct"},
}


def act(module: AnsibleModule) -> dict[str, Any]:
    """Provision, and return the module's result.

    Raises:
        OpsError: it cannot be done as asked.
    """
    given = {name: module.params[name] for name in WANTED}
    given["mounts"] = tuple(Mount(**mount) for mount in given["mounts"])
    return provision(
        Host(module.params["pct"]),
        Wanted(**given),
        installer=module.params["driver_installer"],
        driver_check=module.params["driver_check"],
        allow_restart=module.params["allow_restart"],
        check_mode=module.check_mode,
    )


def main() -> None:
    """Be a module of the Proxmox host, where there is no box's root and no operator lock."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = act(module)
    except OpsError as error:
        module.fail_json(msg=str(error), **error.facts)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
