"""Commands that the status screen prints for the operator's next step."""

from __future__ import annotations

import json
import shlex

from ..core.errors import OpsError
from ..core.paths import Layout
from ..run import launch, runs
from . import rules


def next_commands(layout: Layout, run: runs.Run, state: str) -> dict[str, str]:
    """Return the commands to copy: attach and stop for a running run, start for one that has ended."""
    read = {
        "log": f"tail -F {shlex.quote(str(run.log))}",
        "status": ".venv/bin/ansible-playbook playbooks/status.yml",
    }
    if state not in rules.LIVE:
        return {**read, "start": start_command(run)}
    return {**_attach(layout, run), **read, "stop": ".venv/bin/ansible-playbook playbooks/stop.yml"}


def start_command(run: runs.Run) -> str:
    """Return the command that starts a run's configuration again."""
    return f".venv/bin/ansible-playbook relaunch.yml{launch_options(run)}"


def launch_options(run: runs.Run) -> str:
    """Return the `-e` options that repeat the overrides of a run; empty when it had none."""
    overrides = run.record.get("overrides")
    if not overrides:
        return ""
    variables = {"dflash_config": run.record.get("config_file"), "dflash_overrides": overrides}
    return f" -e {shlex.quote(json.dumps(variables))} -e training_run_label={run.record.get('label')}"


def _attach(layout: Layout, run: runs.Run) -> dict[str, str]:
    """Return the command that attaches to the run's tmux session; nothing when the session is gone."""
    try:
        server = launch.tmux_server(layout)
        session = server.find(runs.session_of(run))
    except OpsError as error:
        return {"attach": f"(no tmux: {error.message})"}
    return {"attach": server.attach_command(session.name)} if session and session.run_id == run.run_id else {}
