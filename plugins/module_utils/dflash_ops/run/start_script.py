"""The text of start_training.sh: one run, exactly as recorded, with its end written down."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

SECRETS_LOADER = (
    "import json, os, sys; os.environ.update(json.load(open(sys.argv[1]))); os.execv(sys.argv[2], sys.argv[2:])"
)

TEMPLATE = """#!{bash}
# Run {run_id}, exactly as its run.json records it. Made by a launch; a new launch makes a new one.
#
#   {by_hand}
#
# The trainer gets the variables below and no others{secrets_note}. Its exit code or signal lands in exit.json.
set -uo pipefail
run={run}
trap : INT TERM   # the trainer takes these as "checkpoint and leave"; this script stays to write down how it ended
trap '' HUP       # a closed terminal or a killed tmux server ends nobody

going_down() {{  # does this box shut down? its first process is then another program, or says so
  local first
  {{ read -r first < /proc/1/comm; }} 2> /dev/null
  [[ $first == systemd-shutdow* ]] || [[ $(timeout 2 systemctl is-system-running 2> /dev/null) == stopping ]]
}}

trainer() {{
  cd {folder} || exit 1
  echo "$BASHPID" > "$run/pid"
  exec env -i \\
{environment}
    {command}
}}
stamped() {{  # each line with the time it came, UTC, whatever its bytes are
  local line
  export TZ=UTC LC_ALL=C
  while IFS= read -r line || [[ -n $line ]]; do printf '%(%Y-%m-%dT%H:%M:%SZ)T %s\\n' -1 "$line"; done
}}
{watch}
# The log's writer ends when the last line is written: a box that shuts down sends SIGTERM to everyone at once, and
# a trainer whose lines go nowhere would lose its checkpoint.
exec {{log}}> >(trap '' INT TERM; stamped | tee -i -a "$run/train.log")
log_writer=$!
(trainer) >&"$log" 2>&1 {{log}}>&-
rc=$?
exec {{log}}>&-
signal=null
if (( rc > 128 )); then signal=$((rc - 128)); fi
shutdown=false
if going_down; then shutdown=true; fi
printf '{{"rc": %d, "signal": %s, "finished_at": %d, "shutdown": %s}}\\n' \\
  "$rc" "$signal" "$(date +%s)" "$shutdown" > "$run/.exit.json" &&
  mv "$run/.exit.json" "$run/exit.json"
# Let the log's writer end, but not for ever: a child may hold the pipe.
for _ in {{1..20}}; do kill -0 "$log_writer" 2> /dev/null || break; sleep 0.1; done
if [[ $signal != null ]]; then end="by signal $signal"; else end="with rc $rc"; fi
echo "run {run_id} ended $end" | stamped | tee -a "$run/train.log"
exit "$rc"
"""


def start_script(
    *,
    run_id: str,
    run: Path,
    folder: Path,
    environment: Mapping[str, str],
    command: Sequence[str],
    bash: str,
    secrets: Path | None = None,
    by_hand: str = "",
    watch: Sequence[str] = (),
) -> str:
    """Return the script.

    Args:
        run_id: the run.
        run: its folder.
        folder: working directory of the trainer.
        environment: all variables of the trainer that are not secret.
        command: argv of the trainer; argv[0] is the environment's Python.
        bash: absolute path of bash (dash has no pipefail).
        secrets: JSON file whose entries join the environment without passing through any argv.
        by_hand: what a person types to do the same.
        watch: argv of the notifier that looks after the run, if one is wanted.
    """
    words = list(command)
    if secrets is not None:
        words = [words[0], "-I", "-c", SECRETS_LOADER, str(secrets), *words]
    return TEMPLATE.format(
        bash=bash,
        run_id=run_id,
        by_hand=by_hand,
        run=shlex.quote(str(run)),
        folder=shlex.quote(str(folder)),
        secrets_note=f", and those of {secrets}" if secrets else "",
        environment="\n".join(f"    {name}={shlex.quote(value)} \\" for name, value in environment.items()),
        command=shlex.join(words),
        watch=_watch_line(watch),
    )


def _watch_line(watch: Sequence[str]) -> str:
    return f'\n{shlex.join(watch)} < /dev/null > "$run/notify.log" 2>&1 &\n' if watch else ""
