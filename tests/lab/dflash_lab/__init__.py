"""Test host: a loopback sshd as a stand-in for a Proxmox host, with real LXC containers."""
