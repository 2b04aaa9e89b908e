"""Sends what lies on the controller (lock, wheelhouse, this machine's wheel folders), then follows the build."""
from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.loader import action_loader

action_loader.get("dflash_base", class_only=True)

from dflash_controller.job_action import JobAction
from dflash_ops.environment.sources import without_password

UV_REMEDY = ("Remedy: name an index that the controller reaches (python_env_index_urls), or push a wheelhouse "
             "(`make wheelhouse`)")


class ActionModule(JobAction):
    """One remote call when nothing changes; a second one starts the build."""

    def module_args(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Read the locks here; on this very machine, also where its pip would look for wheels."""
        arguments = dict(self._task.args)
        lock = Path(arguments["lock_file"]).expanduser().resolve()
        arguments["lock"], arguments["lock_name"] = lock.read_text(), lock.name
        arguments["uv_lock"] = uv_lock_of(lock).read_text()
        if self._connection.transport == "local":
            own = pip_settings()
            arguments["find_links"] = arguments.get("find_links") or own["find_links"]
            if own["index_url"]:
                arguments["index_urls"] = {"default": own["index_url"], **(arguments.get("index_urls") or {})}
        return arguments

    def after_start(self, result: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Say what stands; or, when there is work to do, push wheelhouse and uv, and start the job."""
        if result.get("failed") or self._task.check_mode:
            return result
        if not result.get("needs_work"):
            self.print_line(task_vars, f"environment {result['env_id']} stands as it was built: "
                                f"{result['packages']} packages, {result['megabytes']} MB")
            return result
        arguments = self.module_args(task_vars)
        wheelhouse = Path(arguments["wheelhouse"]).expanduser().resolve() if arguments.get("wheelhouse") else None
        if wheelhouse:
            self.push_folder(wheelhouse, arguments["root"], task_vars)
        if result.get("wants_uv") and not (wheelhouse and list(wheelhouse.glob("uv-*.whl"))):
            with tempfile.TemporaryDirectory(prefix="dflash-uv-") as folder:
                fetch_uv(arguments["uv_lock"], result["wants_uv"], arguments.get("index_urls") or {}, Path(folder))
                self.push_folder(Path(folder), arguments["root"], task_vars)
        arguments["start"] = True
        started = self._execute_module(module_name=self._task.action, module_args=arguments, task_vars=task_vars)
        return {**result, **started}

    def push_folder(self, folder: Path, root: str, task_vars: dict[str, Any]) -> None:
        """Copy the wheels that the box's wheelhouse does not have yet, each under a temporary name first."""
        if not folder.is_dir():
            raise AnsibleActionFail(f"python_env_wheelhouse={folder} is not a folder on the controller. "
                                    "Remedy: make one with `make wheelhouse`")
        target = self._remote_expand_user(f"{root.rstrip('/')}/wheelhouse")
        quoted = shlex.quote(target)
        have = self._low_level_execute_command(f"mkdir -p {quoted} && cd {quoted} && ls -l *.whl 2>/dev/null; true")
        sizes = {line.split()[-1]: line.split()[4] for line in have["stdout"].splitlines() if line.startswith("-")}
        todo = [one for one in sorted(folder.glob("*.whl")) if sizes.get(one.name) != str(one.stat().st_size)]
        for number, wheel in enumerate(todo, start=1):
            self.print_line(task_vars, f"pushing {number}/{len(todo)} {wheel.name} ({wheel.stat().st_size >> 20} MB)")
            part = f".{wheel.name}.part"
            self._transfer_file(str(wheel), f"{target}/{part}")
            self._low_level_execute_command(f"cd {quoted} && mv -- {shlex.quote(part)} {shlex.quote(wheel.name)}")


def uv_lock_of(lock: Path) -> Path:
    """Return the lock of uv that lies beside a lock; a lock of one's own, kept elsewhere, uses the project's."""
    beside = lock.parent / "uv.lock"
    return beside if beside.is_file() else Path(__file__).parents[2] / "trainer" / "locks" / "uv.lock"


def fetch_uv(lock: str, machine: str, index_urls: Mapping[str, str], folder: Path) -> None:
    """Download the pinned wheel of uv for a processor, from the named index or where this controller's pip looks.

    The named index may be one that only the box can reach; the lock's hash decides, whatever the source.
    """
    named = index_urls.get("uv") or index_urls.get("default") or ""
    if named == "none":
        raise AnsibleActionFail(f"The box has no uv, and its index is turned off (python_env_index_urls). {UV_REMEDY}")
    wanted = folder / "uv.txt"
    wanted.write_text(lock)
    tags = [word for tag in ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
            for word in ("--platform", f"{tag}_{machine}")]
    errors = []
    for index in dict.fromkeys((named, "")):
        settings = {"PIP_INDEX_URL": index, "PIP_RETRIES": "1"} if index else {}  # no password in an argument
        done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
                               "--only-binary", ":all:", *tags, "--dest", str(folder), "-r", str(wanted)],
                              capture_output=True, text=True, check=False, env={**os.environ, **settings})
        if not done.returncode:
            return
        errors.append(without_password(done.stderr.strip()[-800:]))
    raise AnsibleActionFail(f"uv cannot be fetched on the controller: {' '.join(errors)} {UV_REMEDY}")


def pip_settings() -> dict[str, Any]:
    """Return where pip on this machine looks: uv reads neither pip's variables nor its files."""
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    folders = os.environ.get("UV_FIND_LINKS", "").replace(",", " ").split()
    index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL") or ""
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        words = value.strip().strip("'\"").split()
        if name.endswith(".find-links"):
            folders += words
        elif name.endswith(".index-url") and words:
            index = index or words[0]
    usable = [folder for folder in dict.fromkeys(folders) if Path(folder).is_dir()]
    return {"find_links": usable, "index_url": index}
