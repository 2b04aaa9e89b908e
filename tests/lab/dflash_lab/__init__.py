"""A test host that is real: a loopback sshd standing for a Proxmox host, over real LXC containers."""
