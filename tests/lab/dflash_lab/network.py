"""Network of the containers: one bridge and one masquerade rule."""
from __future__ import annotations

import json
import shutil
from pathlib import Path

from .layout import BRIDGE, NETWORK, NFT_TABLE, Layout
from .shell import run

FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def default_mtu() -> int:
    """Return the MTU of the default route's device; 1500 when there is none."""
    routes = json.loads(run("ip", "-json", "route", "show", "default").stdout or "[]")
    if not routes:
        return 1500
    links = json.loads(run("ip", "-json", "link", "show", "dev", routes[0]["dev"]).stdout)
    return int(links[0]["mtu"])


def up(layout: Layout) -> None:
    """Create the bridge and the rule, and save the previous ip_forward."""
    saved = layout.state / "ip_forward.before"
    if not saved.exists():
        saved.write_text(FORWARD.read_text(encoding="ascii"), encoding="ascii")
    FORWARD.write_text("1\n", encoding="ascii")
    if run("ip", "link", "show", BRIDGE, check=False).returncode != 0:
        run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "replace", f"{NETWORK}.1/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "mtu", str(default_mtu()), "up")
    run("nft", "-f", "-", stdin=ruleset())
    open_forwarding()


def forward_rules() -> str:
    """Return the rules of the FORWARD chain; empty without iptables."""
    return run("iptables", "-S", "FORWARD", check=False).stdout if shutil.which("iptables") else ""


def open_forwarding() -> None:
    """Accept forwarded packets of the bridge when another program (docker) drops them by default."""
    close_forwarding()
    if "-P FORWARD DROP" in forward_rules():
        for side in ("-i", "-o"):
            run("iptables", "-I", "FORWARD", side, BRIDGE, "-j", "ACCEPT")


def close_forwarding() -> None:
    """Remove our rules from the FORWARD chain."""
    for side in ("-i", "-o"):
        while f"{side} {BRIDGE} " in forward_rules():
            run("iptables", "-D", "FORWARD", side, BRIDGE, "-j", "ACCEPT")


def ruleset() -> str:
    """Return the nftables script; running it twice leaves one table."""
    return (
        f"table ip {NFT_TABLE}\ndelete table ip {NFT_TABLE}\n"
        f"table ip {NFT_TABLE} {{\n"
        "  chain postrouting {\n    type nat hook postrouting priority 100;\n"
        f"    ip saddr {NETWORK}.0/24 ip daddr != {NETWORK}.0/24 masquerade\n  }}\n}}\n"
    )


def down(layout: Layout) -> None:
    """Remove the rule and the bridge, and restore ip_forward."""
    run("nft", "delete", "table", "ip", NFT_TABLE, check=False)
    close_forwarding()
    run("ip", "link", "delete", BRIDGE, check=False)
    saved = layout.state / "ip_forward.before"
    if saved.exists():
        FORWARD.write_text(saved.read_text(encoding="ascii"), encoding="ascii")
        saved.unlink()
