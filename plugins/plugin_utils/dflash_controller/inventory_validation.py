"""Validation of inventory variables on the controller, before any box is touched and independent of its state."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_ops.compile_cache import cache_archive
from dflash_ops.core import files, tmux
from dflash_ops.core.errors import OpsError
from dflash_ops.environment import lockfile
from dflash_ops.environment.inspection import PROFILES
from dflash_ops.environment.sources import without_password
from dflash_ops.monitor import notify
from dflash_ops.run import runs, trainer_command

OVERRIDE = re.compile(r"[a-z_]+\.[a-z_0-9]+=.+", re.DOTALL)
PYTHON_VERSION = re.compile(r"3\.\d{1,2}")
AUTO = "auto"
UNLIMITED = 1e12
NUMBERS = {
    "training_run_expected_tok_s": (0.0, UNLIMITED, "give tokens per second, or 0 when the speed is not known"),
    "training_run_tolerance": (0.01, 1.0, "give a fraction of the expected speed, more than 0 and at most 1, e.g. 0.8"),
    "training_run_speed_steps": (1, UNLIMITED, "give 1 step or more"),
    "training_run_stall_seconds": (1.0, UNLIMITED, "give 1 second or more"),
    "training_run_health_timeout": (1.0, UNLIMITED, "give 1 second or more"),
    "training_run_stop_timeout": (0.0, UNLIMITED, "give 0 seconds or more"),
}


def transport_problems(transport: str) -> list[str]:
    """Return the problem of a controller without ssh; the local connection does not need it."""
    if transport == "local" or shutil.which("ssh"):
        return []
    return ["ssh is not installed on this controller, but the box needs it. Remedy: install the package openssh-client"]


def problems(variables: Mapping[str, Any], repo: Path) -> list[str]:
    """Return one sentence for each invalid value: variable, value, reason, remedy."""
    checks: dict[str, Callable[[Any], Iterable[str]]] = {
        "dflash_root": root_problems,
        "dflash_workspace": workspace_problems,
        "dflash_profile": profile_problems,
        "dflash_config": lambda value: config_problems(value, repo),
        "dflash_overrides": override_problems,
        "python_env_lock_file": lock_file_problems,
        "python_env_python": python_problems,
        "python_env_index_urls": index_problems,
        "python_env_find_links": find_links_problems,
        "python_env_wheelhouse": wheelhouse_problems,
        "training_run_label": lambda value: raised_errors(runs.normalise_label, str(value)),
        "training_run_session": lambda value: raised_errors(tmux.check_name, str(value)),
    }
    found = [
        text if text.startswith(name) else f"{name}={value!r}: {text}"
        for name, value in variables.items()
        if name in checks
        for text in checks[name](value)
    ]
    return [without_password(text) for text in [*found, *lockfile_profile_problems(variables)]]


def range_problems(name: str, value: Any) -> list[str]:
    """Return the problems of a value that has the right type."""
    if name in NUMBERS:
        least, most, text = NUMBERS[name]
        return [] if least <= value <= most else [f"{name}={value!r}: {text}"]  # also refuses NaN
    if name == "training_run_environment":
        return raised_errors(trainer_command.check_environment, value)
    if name == "training_run_notify":
        return raised_errors(notify.check, value)
    if name in CONTROLLER_PATHS and value:
        return [f"{name}={value!r}: {text}" for text in CONTROLLER_PATHS[name](Path(value).expanduser())]
    if name in ("training_run_script_link", "python_env_cache_dir") and value:
        return [f"{name}={value!r}: {text}" for text in path_problems(value)]
    return []


def raised_errors(check: Callable[[Any], Any], value: Any) -> list[str]:
    """Return the message of the OpsError that a check raises; empty when it passes."""
    try:
        check(value)
    except OpsError as error:
        return [str(error)]
    return []


def path_problems(value: Any) -> list[str]:
    """Require an absolute path."""
    if not isinstance(value, str) or not value.strip():
        return ["is empty; give an absolute path"]
    if "\0" in value or "\n" in value:
        return ["contains a line break; give an absolute path"]
    if not value.startswith(("/", "~")):
        return ["is not absolute; begin it with / or ~"]
    return []


def root_problems(value: Any) -> list[str]:
    """Require an absolute path other than /."""
    found = path_problems(value)
    if not found and len(Path(os.path.normpath(value)).parts) < 2:
        found = ["is the root of the file system; give a separate folder, e.g. /opt/dflash"]
    return found


def workspace_problems(value: Any) -> list[str]:
    """Require `auto`, an absolute path or nothing."""
    return [] if value in ("", AUTO, None) else path_problems(value)


def profile_problems(value: Any) -> list[str]:
    """Require a known profile."""
    if value not in PROFILES:
        return [f"is unknown; choose one of {', '.join(PROFILES)}"]
    return []


def config_problems(value: Any, repo: Path) -> list[str]:
    """Require a TOML file below trainer/configs."""
    configs = repo / "trainer/configs"
    known = ", ".join(sorted(str(path.relative_to(configs)) for path in configs.rglob("*.toml"))) or "none"
    if not isinstance(value, str) or not value:
        return [f"is empty; choose a file below trainer/configs: {known}"]
    path = (configs / value).resolve()
    if not path.is_relative_to(configs.resolve()):
        return ["is outside trainer/configs, so it would not be part of the release; move it there"]
    if path.is_dir():
        return ["is a folder; give a .toml file in it"]
    if not path.is_file():
        return [f"does not exist; choose a file below trainer/configs: {known}"]
    return []


def override_problems(value: Any) -> list[str]:
    """Require a list of section.key=value."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return ["is not a list; write ['section.key=value']"]
    return [f"{entry!r} is not section.key=value" for entry in value if not OVERRIDE.fullmatch(str(entry))]


def python_problems(value: Any) -> list[str]:
    """Require a version, an absolute path or nothing."""
    text = str(value or "")
    if not text or text.startswith("/") or PYTHON_VERSION.fullmatch(text):
        return []
    return ["is neither a version (e.g. 3.12) nor an absolute path; give one of them, or leave it empty"]


def index_problems(value: Any) -> list[str]:
    """Require a mapping to URLs or `none`."""
    if not isinstance(value, Mapping):
        return ["is not a mapping of default, uv or a package to a URL; write {default: https://mirror.example/simple}"]
    found = []
    for name, url in value.items():
        parts = urllib.parse.urlsplit(str(url))
        if url != "none" and not ((parts.scheme in ("http", "https") and parts.hostname) or parts.scheme == "file"):
            found.append(f"entry {name} is neither an http, https or file URL nor `none`; correct it")
    return found


def find_links_problems(value: Any) -> list[str]:
    """Require a list of absolute paths."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return ["is not a list; write ['/path/to/wheels']"]
    return [f"{entry!r} {text}" for entry in value for text in path_problems(entry)]


def lock_file_problems(value: Any) -> list[str]:
    """Require a readable and complete lockfile on the controller."""
    try:
        path = Path(str(value)).expanduser()
        lockfile.require_complete(path.read_text(), name=path.name)
    except OSError as error:
        return [f"{error.strerror} on the controller; give the path of a lockfile, e.g. one of trainer/locks"]
    except OpsError as error:
        return [str(error)]
    except (ValueError, RuntimeError):  # not text, a NUL in the path, ~ of an unknown user
        return ["cannot be read as text; give the path of a lockfile, e.g. one of trainer/locks"]
    return []


def lockfile_profile_problems(variables: Mapping[str, Any]) -> list[str]:
    """Require a lockfile for the selected profile; `preinstalled` accepts either."""
    value, profile = variables.get("python_env_lock_file"), variables.get("dflash_profile")
    if not value or profile not in ("cpu", "cu128") or lock_file_problems(value):
        return []
    made_for = lockfile.parse(Path(str(value)).expanduser().read_text()).profile
    if made_for == profile:
        return []
    return [f"python_env_lock_file={value!r}: is a lockfile for the profile {made_for}; set dflash_profile={made_for}"]


def wheelhouse_problems(value: Any) -> list[str]:
    """Require a folder with wheels, or nothing."""
    if not value:
        return []
    path = Path(str(value)).expanduser()
    if path.is_file():
        return ["is a file on the controller; give a folder of wheels (`make wheelhouse` creates one)"]
    if not path.is_dir():
        return ["is not a folder on the controller; create one with `make wheelhouse`"]
    if not any(path.glob("*.whl")):
        return ["contains no wheels; create a folder of wheels with `make wheelhouse`"]
    return []


def archive_problems(path: Path) -> list[str]:
    """Require an intact archive of a compile cache with its metadata file in the same folder."""
    if not path.is_file():
        return ["is not a file on the controller; give an archive fetched with -e compile_cache_fetch=FOLDER"]
    recorded = cache_archive.read_metadata(path).get("sha256")
    if not recorded:
        name = cache_archive.metadata_path(path).name
        return [f"has no metadata file {name} in its folder; keep both files of an archive together"]
    if files.file_sha256(path) != recorded:
        return ["is damaged: its sha256 differs from its metadata file; fetch it again, or prewarm without it"]
    return []


def fetch_problems(path: Path) -> list[str]:
    """Require a folder, existing or not."""
    return ["is a file on the controller; give a folder"] if path.is_file() else []


CONTROLLER_PATHS: dict[str, Callable[[Path], list[str]]] = {
    "compile_cache_restore": archive_problems,
    "compile_cache_fetch": fetch_problems,
}


def require_config(config: str, overrides: Sequence[str], repo: Path) -> None:
    """Let the trainer's own code read the configuration, without torch.

    Raises:
        OpsError: the configuration is invalid; with the trainer's message.
    """
    path = repo / "trainer/configs" / config
    command = [sys.executable, "-m", "dflash_trainer", "config", "--json", "--config", str(path)]
    command += [argument for override in overrides for argument in ("--set", str(override))]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=repo / "trainer",
        env={**os.environ, "PYTHONPATH": str(repo / "trainer"), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    if done.returncode != 0:
        message = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise OpsError(
            f"dflash_config={config}{' with dflash_overrides' if overrides else ''}: {message}",
            remedy=f"correct trainer/configs/{config} or dflash_overrides",
        )
