"""Judge what the operator wrote, on the controller, before any box is touched. Never looks at a machine's state."""

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
FOREVER = 1e12
NUMBERS = {
    "training_run_expected_tok_s": (0.0, FOREVER, "give tokens a second, or 0 when the speed is not known"),
    "training_run_tolerance": (0.01, 1.0, "give a part of the expected speed, more than 0 and at most 1, as 0.8"),
    "training_run_speed_steps": (1, FOREVER, "give 1 step or more"),
    "training_run_stall_seconds": (1.0, FOREVER, "give 1 second or more"),
    "training_run_health_timeout": (1.0, FOREVER, "give 1 second or more"),
    "training_run_stop_timeout": (0.0, FOREVER, "give 0 seconds or more"),
}


def way_problems(transport: str) -> list[str]:
    """Return what this controller lacks to reach a box; nothing is needed for this very machine."""
    if transport == "local" or shutil.which("ssh"):
        return []
    return ["ssh is not on this controller, and the box is reached by it. Remedy: install the package openssh-client"]


def problems(words: Mapping[str, Any], repo: Path) -> list[str]:
    """Return one sentence for each word that cannot work: variable, value, reason, remedy."""
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
        "training_run_label": lambda value: raised(runs.normalise_label, value),
        "training_run_session": lambda value: raised(tmux.check_name, value),
    }
    found = [
        text if text.startswith(name) else f"{name}={value!r}: {text}"
        for name, value in words.items()
        if name in checks
        for text in checks[name](value)
    ]
    return [without_password(text) for text in [*found, *profile_of_lock_problems(words)]]


def raised(check: Callable[[str], Any], value: Any) -> list[str]:
    """Return what a check of another file says."""
    return raised_as_is(check, str(value))


def meaning_problems(name: str, value: Any) -> list[str]:
    """Return what is wrong with a value that has the right type."""
    if name in NUMBERS:
        least, most, text = NUMBERS[name]
        return [] if least <= value <= most else [f"{name}={value!r}: {text}"]  # a NaN is refused too
    if name == "training_run_environment":
        return raised_as_is(trainer_command.check_environment, value)
    if name == "training_run_notify":
        return raised_as_is(notify.check, value)
    if name in CONTROLLER_PATHS and value:
        return [f"{name}={value!r}: {text}" for text in CONTROLLER_PATHS[name](Path(value).expanduser())]
    if name in ("training_run_script_link", "python_env_cache_dir") and value:
        return [f"{name}={value!r}: {text}" for text in path_problems(value)]
    return []


def raised_as_is(check: Callable[[Any], Any], value: Any) -> list[str]:
    try:
        check(value)
    except OpsError as error:
        return [str(error)]
    return []


def path_problems(value: Any) -> list[str]:
    if not isinstance(value, str) or not value.strip():
        return ["is empty; give an absolute path"]
    if "\0" in value or "\n" in value:
        return ["has a line break; give an absolute path"]
    if not value.startswith(("/", "~")):
        return ["is not absolute; begin it with / or ~"]
    return []


def root_problems(value: Any) -> list[str]:
    found = path_problems(value)
    if not found and len(Path(os.path.normpath(value)).parts) < 2:
        found = ["is the whole file system; give a folder of its own, as /opt/dflash"]
    return found


def workspace_problems(value: Any) -> list[str]:
    return [] if value in ("", AUTO, None) else path_problems(value)


def profile_problems(value: Any) -> list[str]:
    if value not in PROFILES:
        return [f"is unknown; choose one of {', '.join(PROFILES)}"]
    return []


def config_problems(value: Any, repo: Path) -> list[str]:
    """Want the name of a TOML file below trainer/configs."""
    configs = repo / "trainer/configs"
    known = ", ".join(sorted(str(path.relative_to(configs)) for path in configs.rglob("*.toml"))) or "none"
    if not isinstance(value, str) or not value:
        return [f"is empty; choose a file below trainer/configs: {known}"]
    path = (configs / value).resolve()
    if not path.is_relative_to(configs.resolve()):
        return ["lies outside trainer/configs, so it would not be part of the release; put it there"]
    if path.is_dir():
        return ["is a folder; give a .toml file in it"]
    if not path.is_file():
        return [f"is not there; choose a file below trainer/configs: {known}"]
    return []


def override_problems(value: Any) -> list[str]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return ["is not a list; write ['section.key=value']"]
    return [f"{one!r} is not section.key=value" for one in value if not OVERRIDE.fullmatch(str(one))]


def python_problems(value: Any) -> list[str]:
    text = str(value or "")
    if not text or text.startswith("/") or PYTHON_VERSION.fullmatch(text):
        return []
    return ["is neither a version as 3.12 nor an absolute path; give one of them, or leave it empty"]


def index_problems(value: Any) -> list[str]:
    if not isinstance(value, Mapping):
        return ["is not a mapping of default, uv or a package to a URL; write {default: https://mirror.example/simple}"]
    found = []
    for name, url in value.items():
        parts = urllib.parse.urlsplit(str(url))
        if url != "none" and not ((parts.scheme in ("http", "https") and parts.hostname) or parts.scheme == "file"):
            found.append(f"entry {name} is no http, https or file URL and not `none`; correct it")
    return found


def find_links_problems(value: Any) -> list[str]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return ["is not a list; write ['/path/to/wheels']"]
    return [f"{one!r} {text}" for one in value for text in path_problems(one)]


def lock_file_problems(value: Any) -> list[str]:
    """Want a lock that can be read here and is complete."""
    try:
        path = Path(str(value)).expanduser()
        lockfile.require_complete(path.read_text(), name=path.name)
    except OSError as error:
        return [f"{error.strerror} on the controller; give the path of a lock, as those in trainer/locks"]
    except OpsError as error:
        return [str(error)]
    except (ValueError, RuntimeError):  # no text, a NUL in the path, ~ of nobody
        return ["cannot be read as text; give the path of a lock, as those in trainer/locks"]
    return []


def profile_of_lock_problems(words: Mapping[str, Any]) -> list[str]:
    """Want a lock that was made for the profile; an image that brings its torch may have either."""
    value, profile = words.get("python_env_lock_file"), words.get("dflash_profile")
    if not value or profile not in ("cpu", "cu128") or lock_file_problems(value):
        return []
    made_for = lockfile.parse(Path(str(value)).expanduser().read_text()).profile
    if made_for == profile:
        return []
    return [f"python_env_lock_file={value!r}: is a lock for the profile {made_for}; set dflash_profile={made_for}"]


def wheelhouse_problems(value: Any) -> list[str]:
    if not value:
        return []
    path = Path(str(value)).expanduser()
    if path.is_file():
        return ["is a file on the controller; give a folder of wheels (`make wheelhouse` makes one)"]
    if not path.is_dir():
        return ["is no folder on the controller; make one with `make wheelhouse`"]
    if not any(path.glob("*.whl")):
        return ["holds no wheel; make one with `make wheelhouse`"]
    return []


def archive_problems(path: Path) -> list[str]:
    """Want an archive of a compile cache, whole, with its note beside it."""
    if not path.is_file():
        return ["is no file on the controller; give an archive that -e compile_cache_fetch=FOLDER brought"]
    recorded = cache_archive.read_note(path).get("sha256")
    if not recorded:
        return [f"has no note {cache_archive.note_of(path).name} beside it; keep the two files of an archive together"]
    if files.file_sha256(path) != recorded:
        return ["is damaged: its sha256 is not the one of its note; fetch it again, or prewarm without it"]
    return []


def fetch_problems(path: Path) -> list[str]:
    """Want a folder, or a place for one."""
    return ["is a file on the controller; give a folder"] if path.is_file() else []


CONTROLLER_PATHS: dict[str, Callable[[Path], list[str]]] = {
    "compile_cache_restore": archive_problems,
    "compile_cache_fetch": fetch_problems,
}


def require_config(config: str, overrides: Sequence[str], repo: Path) -> None:
    """Let the trainer's own code read the configuration, without torch.

    Raises:
        OpsError: the configuration is wrong; with the trainer's words.
    """
    path = repo / "trainer/configs" / config
    command = [sys.executable, "-m", "dflash_trainer", "config", "--json", "--config", str(path)]
    command += [word for one in overrides for word in ("--set", str(one))]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=repo / "trainer",
        env={**os.environ, "PYTHONPATH": str(repo / "trainer"), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise OpsError(
            f"dflash_config={config}{' with dflash_overrides' if overrides else ''}: {said[0]}",
            remedy=f"correct trainer/configs/{config} or dflash_overrides",
        )
