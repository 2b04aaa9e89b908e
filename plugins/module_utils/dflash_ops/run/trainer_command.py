"""Command and environment of the trainer, the same for prewarm, preflight checks and training."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import processes
from ..core.errors import OpsError
from ..core.paths import SYSTEM_PATH, Layout, home

SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)", re.IGNORECASE)
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that locate or disable the compile cache, or locate the code; a run must not set them.
RESERVED = re.compile(
    r"TORCHINDUCTOR_(CACHE_DIR|FORCE_DISABLE_CACHES|FX_GRAPH_CACHE|AUTOGRAD_CACHE)|TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE"
    r"|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|TRITON_(CACHE_DIR|ALWAYS_COMPILE|HOME)|FLA_CACHE_(DIR|RESULTS)|TMPDIR|PYTHONPATH|PYTHONHOME|DFLASH_.*"
)


@dataclasses.dataclass(frozen=True)
class Selection:
    """Environment, release and configuration of a trainer process.

    Args:
        env_id: environment whose Python runs the trainer.
        release_id: release of the trainer's code.
        config: TOML file below the release's `trainer/configs`, such as demo.toml.
        overrides: `section.key=value` strings that override values of the file.
        extra: additional environment variables, none of them secret.
    """

    env_id: str
    release_id: str
    config: str
    overrides: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Selection:
        """Return the selection of an earlier run from its run.json."""
        return cls(
            env_id=str(record["env_id"]),
            release_id=str(record["release_id"]),
            config=str(record["config_file"]),
            overrides=tuple(record.get("overrides") or ()),
            extra=tuple(sorted(dict(record.get("extra_environment") or {}).items())),
        )


def trainer_folder(layout: Layout, release_id: str) -> Path:
    """Return the folder `trainer/` of a release, the working directory of the trainer."""
    return layout.release(release_id) / "trainer"


def config_path(selection: Selection) -> str:
    """Return the path of the TOML file relative to the release's `trainer/`."""
    return f"configs/{selection.config}"


def check_environment(extra: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the additional environment variables, sorted by name.

    Raises:
        OpsError: a name is not a valid variable name, looks like a secret (it would be recorded), or is reserved.
    """
    for name in extra:
        if not VARIABLE_NAME.fullmatch(name):
            raise OpsError(
                f"training_run_environment has {name!r}, which is not a variable name.",
                remedy="use letters, digits and _",
            )
        if SECRET_NAME.search(name):
            raise OpsError(
                f"training_run_environment has {name}, which looks like a secret and would be recorded.",
                remedy="move it to training_run_secrets, which is kept only in a file with mode 0600",
            )
        if RESERVED.fullmatch(name):
            raise OpsError(
                f"training_run_environment has {name}, which is reserved: prewarm and run must use the same code and "
                "compile cache.",
                remedy=f"remove {name}; the compile cache is below dflash_root, and target.devices and "
                "drafter.devices select the GPUs",
            )
    return tuple(sorted((name, str(value)) for name, value in extra.items()))


def environment(
    layout: Layout, selection: Selection, *, cache: Path | None = None, run: Path | None = None
) -> dict[str, str]:
    """Return all environment variables of the trainer, which inherits none; `run` is the run's folder."""
    values = {
        "PATH": f"{layout.env(selection.env_id) / 'bin'}:{SYSTEM_PATH}",
        "HOME": home(),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(trainer_folder(layout, selection.release_id)),
        "PYTHONNOUSERSITE": "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        # Inductor keeps precompiled headers below TMPDIR, not below its cache; /tmp may be emptied.
        "TMPDIR": str(layout.tmp),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        # GPU indices are those of nvidia-smi, also with different GPU models in one box.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    if cache is not None:
        values |= {
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
            "FLA_CACHE_RESULTS": "1",
            "FLA_CACHE_DIR": str(cache / "fla"),
        }
    values |= dict(selection.extra)
    if run is not None:
        values |= {processes.RUN_MARK: run.name, processes.RUN_FOLDER: str(run)}
    return values


def command(layout: Layout, selection: Selection, verb: str, *arguments: str) -> list[str]:
    """Return the argv of a trainer command that reads the release's TOML file and the overrides."""
    overrides = [part for override in selection.overrides for part in ("--set", override)]
    return [*_trainer(layout, selection, verb), "--config", config_path(selection), *overrides, *arguments]


def resolved_command(layout: Layout, selection: Selection, verb: str, config: Path, *arguments: str) -> list[str]:
    """Return the argv of a trainer command that reads the resolved configuration `config`."""
    return [*_trainer(layout, selection, verb), "--config", str(config), *arguments]


def _trainer(layout: Layout, selection: Selection, verb: str) -> list[str]:
    return [str(layout.python(selection.env_id)), "-m", "dflash_trainer", verb]


def check_present(layout: Layout, selection: Selection) -> None:
    """Check that environment, release and configuration file of a selection are on the box.

    Raises:
        OpsError: environment or release is incomplete, or the release has no such configuration file.
    """
    if not selection.env_id or not (layout.env(selection.env_id) / "env.json").is_file():
        raise OpsError(
            f"environment {selection.env_id or '(none selected)'} is missing or incomplete in {layout.envs}.",
            remedy="build it with relaunch.yml --tags env",
        )
    folder = layout.release(selection.release_id) if selection.release_id else layout.releases
    if not selection.release_id or not (folder / "release.json").is_file():
        raise OpsError(
            f"release {selection.release_id or '(none selected)'} is missing or incomplete in {layout.releases}.",
            remedy="place it with relaunch.yml --tags release",
        )
    if not (folder / "trainer" / config_path(selection)).is_file():
        raise OpsError(
            f"dflash_config is {selection.config!r}, which release {selection.release_id} does not have.",
            remedy=f"choose one of: {', '.join(_configs(folder / 'trainer')) or 'none'}",
        )


def _configs(trainer: Path) -> Sequence[str]:
    return sorted(path.name for path in trainer.glob("configs/*.toml"))
