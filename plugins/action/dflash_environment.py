"""Copy lockfile, wheelhouse and uv from the controller to the box, then print the build job's progress."""

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

UV_REMEDY = (
    "Remedy: name an index that the controller can reach (python_env_index_urls), or deploy with a wheelhouse "
    "(`make wheelhouse`)"
)


class ActionModule(JobAction):
    """One remote call if nothing changes; a second call starts the build."""

    def module_args(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Add the lockfiles' text and, for a local connection, the wheel folders and index of this machine's pip."""
        arguments = dict(self._task.args)
        lock = Path(arguments["lock_file"]).expanduser().resolve()
        arguments["lock"], arguments["lock_name"] = lock.read_text(), lock.name
        arguments["uv_lock"] = uv_lock_path(lock).read_text()
        if self._connection.transport == "local":
            settings = pip_settings()
            arguments["find_links"] = arguments.get("find_links") or settings["find_links"]
            if settings["index_url"]:
                arguments["index_urls"] = {"default": settings["index_url"], **(arguments.get("index_urls") or {})}
        return arguments

    def after_start(self, result: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Copy wheelhouse and uv to the box and start the job, or report that the environment is unchanged."""
        if result.get("failed") or self._task.check_mode:
            return result
        if not result.get("needs_work"):
            size = f"{result['packages']} packages, {result['megabytes']} MB"
            self.print_line(task_vars, f"environment {result['env_id']} is unchanged: {size}")
            return result
        arguments = self.module_args(task_vars)
        wheelhouse = Path(arguments["wheelhouse"]).expanduser().resolve() if arguments.get("wheelhouse") else None
        if wheelhouse:
            self.copy_wheels(wheelhouse, arguments["root"], task_vars)
        if result.get("fetch_uv_for") and not (wheelhouse and list(wheelhouse.glob("uv-*.whl"))):
            with tempfile.TemporaryDirectory(prefix="dflash-uv-") as folder:
                fetch_uv(arguments["uv_lock"], result["fetch_uv_for"], arguments.get("index_urls") or {}, Path(folder))
                self.copy_wheels(Path(folder), arguments["root"], task_vars)
        arguments["start"] = True
        started = self._execute_module(module_name=self._task.action, module_args=arguments, task_vars=task_vars)
        return {**result, **started}

    def copy_wheels(self, folder: Path, root: str, task_vars: dict[str, Any]) -> None:
        """Copy missing wheels into the box's wheelhouse, each under a temporary name first."""
        if not folder.is_dir():
            raise AnsibleActionFail(
                f"python_env_wheelhouse={folder} is not a folder on the controller. "
                "Remedy: create one with `make wheelhouse`"
            )
        target = self._remote_expand_user(f"{root.rstrip('/')}/wheelhouse")
        quoted = shlex.quote(target)
        listing = self._low_level_execute_command(f"mkdir -p {quoted} && cd {quoted} && ls -l *.whl 2>/dev/null; true")
        sizes = {line.split()[-1]: line.split()[4] for line in listing["stdout"].splitlines() if line.startswith("-")}
        missing = [path for path in sorted(folder.glob("*.whl")) if sizes.get(path.name) != str(path.stat().st_size)]
        for number, wheel in enumerate(missing, start=1):
            size = wheel.stat().st_size >> 20
            self.print_line(task_vars, f"copying {number}/{len(missing)} {wheel.name} ({size} MB)")
            part = f".{wheel.name}.part"
            self._transfer_file(str(wheel), f"{target}/{part}")
            self._low_level_execute_command(f"cd {quoted} && mv -- {shlex.quote(part)} {shlex.quote(wheel.name)}")


def uv_lock_path(lock: Path) -> Path:
    """Return the uv.lock in the folder of a lockfile, or the project's if there is none."""
    neighbour = lock.parent / "uv.lock"
    return neighbour if neighbour.is_file() else Path(__file__).parents[2] / "trainer" / "locks" / "uv.lock"


def fetch_uv(lock: str, machine: str, index_urls: Mapping[str, str], folder: Path) -> None:
    """Download the pinned wheel of uv for a processor into `folder`.

    The configured index is tried first, then the index of this controller's pip, since the configured one may be
    reachable from the box only. The lockfile's hash is checked in both cases.

    Raises:
        AnsibleActionFail: the index is disabled, or no index has the wheel.
    """
    configured = index_urls.get("uv") or index_urls.get("default") or ""
    if configured == "none":
        raise AnsibleActionFail(
            f"The box has no uv, and the index of uv is disabled (python_env_index_urls). {UV_REMEDY}"
        )
    requirements = folder / "uv.txt"
    requirements.write_text(lock)
    tags = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
    platforms = [option for tag in tags for option in ("--platform", f"{tag}_{machine}")]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--only-binary", ":all:", *platforms, "--dest", str(folder), "-r", str(requirements)]
    errors = []
    for index in dict.fromkeys((configured, "")):
        settings = {"PIP_INDEX_URL": index, "PIP_RETRIES": "1"} if index else {}  # keeps the password out of argv
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, **settings}
        )
        if not done.returncode:
            return
        errors.append(without_password(done.stderr.strip()[-800:]))
    raise AnsibleActionFail(f"The controller cannot download uv: {' '.join(errors)} {UV_REMEDY}")


def pip_settings() -> dict[str, Any]:
    """Return the wheel folders and index of this machine's pip, whose settings uv does not read."""
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    folders = os.environ.get("UV_FIND_LINKS", "").replace(",", " ").split()
    index = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL") or ""
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        values = value.strip().strip("'\"").split()
        if name.endswith(".find-links"):
            folders += values
        elif name.endswith(".index-url") and values:
            index = index or values[0]
    existing = [folder for folder in dict.fromkeys(folders) if Path(folder).is_dir()]
    return {"find_links": existing, "index_url": index}
