"""The Proxmox host and its container: pct commands, configuration and provisioning."""
