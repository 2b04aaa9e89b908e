#!/usr/bin/env python3
"""Build, start, stop and remove the test host.

    python3 tests/lab/lab.py up --gpus 8     a host on port 22022 with containers 200 and 201
    python3 tests/lab/lab.py down            stop it, keep the built root file systems
    python3 tests/lab/lab.py purge           remove everything

DFLASH_LAB_STATE and DFLASH_LAB_PORT select another folder and port.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from dflash_lab.lab import LEAKING, Lab
from dflash_lab.layout import layout_from_environment
from dflash_lab.shell import LabError


def main() -> int:
    """Run one command; return 1 after printing an error when it fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("build", "up", "down", "purge", "status"))
    parser.add_argument("--containers", default="200,201", help="containers that `up` starts")
    parser.add_argument("--gpus", type=int, default=0, help="number of stand-in GPUs of the host")
    parser.add_argument("--leak", action="store_true", help="export variables in logins that must not reach containers")
    arguments = parser.parse_args()
    lab = Lab(layout_from_environment())
    try:
        if arguments.command == "up":
            chosen = [int(vmid) for vmid in arguments.containers.split(",") if vmid]
            lab.up(chosen, gpu_count=arguments.gpus)
            if arguments.leak:
                lab.set_host_environment(LEAKING)
            print(f"host: 127.0.0.1 port {lab.layout.port}, key {lab.layout.key}, known_hosts {lab.layout.known_hosts}")
        elif arguments.command == "status":
            print(lab.pct("list").stdout, end="")
        else:
            getattr(lab, arguments.command)()
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
