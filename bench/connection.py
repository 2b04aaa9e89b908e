#!/usr/bin/env python3
"""Compare the cost of a task over each connection into a container: one play of 20 tasks, some of them copies.

    python3 bench/connection.py                      start the lab (root, Debian) and print a table
    python3 bench/connection.py --json figures.json  write the figures as well

Connections: the community plugin (paramiko), ours with pct (persistent, and with one call per task), ours with
lxc-attach, and plain ssh to the host as the lower bound. Each runs with a pct that starts immediately and with one that
takes 0.5 s, as the real one does while it loads Perl. The community collection is installed from Ansible Galaxy or,
if Galaxy is not reachable, from the PyPI package `ansible`.
"""
from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "tests" / "lab"))

from dflash_lab.lab import Lab  # noqa: E402
from dflash_lab.layout import layout_from_environment  # noqa: E402

COLLECTION = "community.proxmox"
BUNDLE = "ansible==14.5.0"
CORE = "ansible-core==2.19.14"
TASKS = 20
DELAYS = (0.0, 0.5)
COMMUNITY, PCT, SINGLE = "community plugin", "ours, pct", "ours, pct, pct_persist 0"
ATTACH, SSH = "ours, lxc-attach", "plain ssh to the host"
CONNECTIONS = (COMMUNITY, PCT, SINGLE, ATTACH, SSH)


@dataclass(frozen=True)
class Figure:
    """One run of the play."""

    connection: str
    delay_s: float
    logins: int
    pct_calls: int
    seconds: float


def main() -> int:
    """Run every connection once with every delay; return 1 when ours misses its limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="output file for the figures")
    parser.add_argument("--keep-lab", action="store_true", help="keep the root file systems")
    arguments = parser.parse_args()
    lab = Lab(layout_from_environment())
    scratch = Path(tempfile.mkdtemp(prefix="dflash-bench-"))
    try:
        origin = install(scratch)
        lab.up([200])
        write_play(scratch)
        figures = [measure(lab, scratch, connection, delay) for delay in DELAYS for connection in CONNECTIONS]
    finally:
        (lab.down if arguments.keep_lab else lab.purge)()
        shutil.rmtree(scratch)
    print(table(figures, origin))
    if arguments.json:
        report = {"tasks": TASKS, "collection": origin, "core": CORE, "figures": [asdict(figure) for figure in figures]}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return judge(figures)


def install(scratch: Path) -> str:
    """Make a scratch environment with ansible-core, paramiko and the collection; return the collection's origin."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    environment = scratch / "venv"
    if uv:
        run(uv, "venv", "--quiet", "--seed", "--python", sys.executable, str(environment))
        run(uv, "pip", "install", "--quiet", "--python", str(environment), CORE, "paramiko")
    else:
        run(sys.executable, "-m", "venv", str(environment))
        run(str(environment / "bin/pip"), "install", "--quiet", CORE, "paramiko")
    collections = scratch / "collections"
    galaxy = [str(environment / "bin/ansible-galaxy"), "collection", "install", COLLECTION, "-p", str(collections)]
    if subprocess.run(galaxy, capture_output=True, check=False, timeout=120).returncode == 0:
        return f"{COLLECTION} {collection_version(collections)} from Galaxy"
    run(str(environment / "bin/pip"), "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--python-version", "3.13", "--dest", str(scratch), BUNDLE)
    with zipfile.ZipFile(next(scratch.glob("ansible-*.whl"))) as wheel:
        prefix = "ansible_collections/community/proxmox/"
        wheel.extractall(collections, [name for name in wheel.namelist() if name.startswith(prefix)])
    return f"{COLLECTION} {collection_version(collections)} from the PyPI package {BUNDLE}"


def run(*command: str) -> None:
    """Run a command; exit with its output if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def collection_version(collections: Path) -> str:
    """Return the version in the collection's manifest."""
    path = collections / "ansible_collections/community/proxmox/MANIFEST.json"
    return str(json.loads(path.read_text(encoding="utf-8"))["collection_info"]["version"])


def write_play(scratch: Path) -> None:
    """Write the play: 14 commands, 3 copies, a copy that changes nothing, a template and a file."""
    (scratch / "payload").write_bytes(os.urandom(200_000))
    (scratch / "template.j2").write_text("{{ where }}\n", encoding="utf-8")
    tasks: list[dict[str, Any]] = [{"file": {"path": "{{ where }}", "state": "directory", "mode": "0755"}}]
    tasks += [{"copy": {"src": "payload", "dest": f"{{{{ where }}}}/copy{i}", "mode": "0644"}} for i in range(3)]
    tasks.append({"copy": {"src": "payload", "dest": "{{ where }}/copy0", "mode": "0644"}})
    tasks.append({"template": {"src": "template.j2", "dest": "{{ where }}/text", "mode": "0600"}})
    tasks += [{"command": f"echo {i}"} for i in range(TASKS - len(tasks))]
    play = [{"hosts": "all", "gather_facts": False, "tasks": tasks}]
    (scratch / "play.yml").write_text(json.dumps(play), encoding="utf-8")


def measure(lab: Lab, scratch: Path, connection: str, delay: float) -> Figure:
    """Run the play over one connection with fresh logins; count logins, pct calls and seconds."""
    lab.set_delay(delay)
    folder = scratch / f"run-{time.monotonic_ns()}"
    folder.mkdir()
    inventory = {"all": {"hosts": {"box": variables(lab, connection) | {"where": f"/root/{folder.name}"}}}}
    (folder / "inventory.json").write_text(json.dumps(inventory), encoding="utf-8")
    calls, logins = len(lab.pct_calls()), lab.logins()
    start = time.monotonic()
    done = subprocess.run(
        [str(scratch / "venv/bin/ansible-playbook"), "-i", str(folder / "inventory.json"), str(scratch / "play.yml")],
        cwd=REPO, capture_output=True, text=True, check=False, env=play_environment(scratch, folder),
    )
    seconds = time.monotonic() - start
    if done.returncode:
        raise SystemExit(f"the play failed over {connection}:\n{done.stdout[-3000:]}{done.stderr[-2000:]}")
    figure = Figure(connection, delay, lab.logins() - logins, len(lab.pct_calls()) - calls, round(seconds, 1))
    for socket in (folder / "cp").glob("[!p]*"):
        subprocess.run(["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "lab"], capture_output=True, check=False)
    return figure


def play_environment(scratch: Path, folder: Path) -> dict[str, str]:
    """Return the environment of a run: this repository's ansible.cfg, the collection, a separate control folder."""
    return os.environ | {
        "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(scratch / "collections"),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp"),
        "HOME": str(scratch),
        # the community plugin reads known_hosts only from the home folder
        "ANSIBLE_PARAMIKO_HOST_KEY_CHECKING": "False",
        "ANSIBLE_PARAMIKO_RECORD_HOST_KEYS": "False",
    }


def variables(lab: Lab, connection: str) -> dict[str, Any]:
    """Return the host variables for a connection."""
    common: dict[str, Any] = {
        "ansible_host": "127.0.0.1",
        "ansible_port": lab.layout.port,
        "ansible_user": "root",
        "ansible_private_key_file": str(lab.layout.key),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={lab.layout.known_hosts} -o IdentitiesOnly=yes",
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    specific: dict[str, dict[str, Any]] = {
        COMMUNITY: {"ansible_connection": "community.proxmox.proxmox_pct_remote", "proxmox_vmid": 200},
        PCT: {"ansible_connection": "pct", "pct_vmid": 200},
        SINGLE: {"ansible_connection": "pct", "pct_vmid": 200, "pct_persist": 0},
        ATTACH: {"ansible_connection": "pct", "pct_vmid": 200, "pct_method": "lxc-attach"},
        SSH: {"ansible_connection": "ssh"},
    }
    return common | specific[connection]


def table(figures: list[Figure], origin: str) -> str:
    """Return the figures as a Markdown table."""
    lines = [f"{TASKS} tasks, {CORE}, {origin}", "", "| connection | pct start-up | ssh logins | pct calls | seconds |",
             "|---|---|---|---|---|"]
    lines += [f"| {f.connection} | {f.delay_s:g} s | {f.logins} | {f.pct_calls} | {f.seconds:.1f} |" for f in figures]
    slow = {f.connection: f for f in figures if f.delay_s}
    times = slow[COMMUNITY].seconds / slow[PCT].seconds
    lines += ["", f"With a start-up of {slow[PCT].delay_s:g} s ours (pct) is {times:.1f} times as fast as the"
              f" community plugin."]
    return "\n".join(lines)


def judge(figures: list[Figure]) -> int:
    """Return 1 if ours needs more than one call per task or is less than four times as fast at 0.5 s."""
    slow = {f.connection: f for f in figures if f.delay_s}
    ours = [f for f in figures if f.connection in (PCT, SINGLE, ATTACH)]
    bad = [f"{f.connection} made {f.pct_calls} calls" for f in ours if f.pct_calls > TASKS]
    if slow[COMMUNITY].seconds < 4 * slow[PCT].seconds:
        bad.append("ours is not four times as fast as the community plugin")
    for problem in bad:
        print(f"missed: {problem}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
