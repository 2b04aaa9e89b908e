#!/bin/bash
# Make this mount namespace look like a Proxmox host, then run its sshd.
# Example: unshare --mount --propagation private ./host_namespace.sh /var/lib/dflash-lab
set -euo pipefail

state=$1
host="$state/host"

overlay() { # overlay TARGET: mount $host/TARGET on top of the machine's folder
  mkdir -p "$host/work$1"
  mount -t overlay overlay -o "lowerdir=$1,upperdir=$host$1,workdir=$host/work$1" "$1"
}

mount_devices() { # /dev of the host: the usual nodes, and those in $host/dev-nodes
  mkdir -p "$host/dev"
  mount -t tmpfs -o mode=755 tmpfs "$host/dev"
  local node
  for node in null zero full random urandom tty kmsg fuse; do
    if [ -e "/dev/$node" ]; then cp -a "/dev/$node" "$host/dev/$node"; fi
  done
  mkdir "$host/dev/pts" "$host/dev/shm"
  mount --bind /dev/pts "$host/dev/pts"
  mount --bind /dev/shm "$host/dev/shm"
  ln -s pts/ptmx "$host/dev/ptmx"
  ln -s /proc/self/fd "$host/dev/fd"
  if [ -d "$host/dev-nodes" ]; then cp -a "$host/dev-nodes/." "$host/dev/"; fi
  mount --rbind "$host/dev" /dev
}

overlay /etc
overlay /usr/sbin
mkdir -p "$host/root" /run/sshd
mount --bind "$host/root" /root
mount_devices
cd /
exec /usr/sbin/sshd -D -f "$state/ssh/sshd_config" -E "$state/ssh/sshd.log"
