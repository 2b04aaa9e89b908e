#!/bin/sh
# Stand-in for nvidia-smi: prints the files gpus and apps of its folder; uses rc and sleep if they exist.
here=$(dirname "$0")
[ -f "$here/sleep" ] && sleep "$(cat "$here/sleep")"
case "$1" in
  --query-gpu=*) cat "$here/gpus" ;;
  --query-compute-apps=*) cat "$here/apps" ;;
esac
[ -f "$here/rc" ] && exit "$(cat "$here/rc")"
exit 0
