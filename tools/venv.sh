#!/usr/bin/env bash
# Make a virtual environment from a hash-pinned lockfile, or keep it if it was made from that lockfile.
#
#   tools/venv.sh .venv requirements/controller.lock
#
# NAME is a symlink to NAME-<hash> and is replaced only once that folder is complete.
# Overrides:
#   PYTHON=/usr/bin/python3.12 tools/venv.sh .venv requirements/controller.lock    use this interpreter
set -euo pipefail

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 /usr/bin/python3}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  echo "No Python 3.11 or newer found (tried: ${PYTHON:-python3, python3.11 to 3.13}). Install one, or set PYTHON=/path/to/python3." >&2
  return 1
}

# Debian and Ubuntu split the venv module's ensurepip into python3-venv.
need_ensurepip() {
  "$1" -c 'import ensurepip, venv' 2>/dev/null && return
  local apt=(apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300)
  local install=("${apt[@]}" install -y --no-install-recommends python3-venv)
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    "${apt[@]}" update && DEBIAN_FRONTEND=noninteractive "${install[@]}"
  elif command -v apt-get >/dev/null && sudo -n true 2>/dev/null; then
    sudo -n "${apt[@]}" update && sudo -n DEBIAN_FRONTEND=noninteractive "${install[@]}"
  else
    echo "Missing: python3-venv (for $1). Install it as root, then run the same command again: apt-get install -y python3-venv" >&2
    return 1
  fi
}

# Hide the warning that pip prints for each package missing from a configured index folder; show all others.
install() {
  "$1/bin/python" -m pip install --disable-pip-version-check --progress-bar off --no-deps --only-binary :all: \
    --require-hashes -r "$2" 2> >(sed -u '/^WARNING: Location .* is ignored/d' >&2) |
    sed -un 's/^\(Collecting\|Processing\) \([^ ]*\/\)\?\([^=; ]*\).*/  downloading \3/p
             s/^Installing collected packages.*/  installing all packages (about ten seconds)/p'
}

drop_old() {
  local old
  for old in "$1"-????????????; do
    [ "$old" = "$2" ] || [ ! -f "$old/made-from.lock" ] || rm -rf "$old"
  done
}

main() {
  local name=$1 lock=$2 python key made
  exec 9>"$name.flock"
  flock 9
  python=$(find_python)
  key=$({ cat "$lock"; "$python" -c 'import sys; print(sys.version, sys.base_prefix)'; pwd; } | sha256sum | cut -c1-12)
  made=$name-$key
  if [ ! -f "$made/made-from.lock" ]; then
    need_ensurepip "$python"
    rm -rf "$made"
    echo "creating $made from $lock with $python (about half a minute)"
    "$python" -m venv "$made"
    install "$made" "$lock"
    cp "$lock" "$made/made-from.lock"
  fi
  if [ "$(readlink "$name" || true)" != "$made" ]; then
    [ -L "$name" ] || rm -rf "$name"
    ln -s "$made" "$name.new.$$"
    mv -T "$name.new.$$" "$name"
  fi
  drop_old "$name" "$made"
}

main "$@"
