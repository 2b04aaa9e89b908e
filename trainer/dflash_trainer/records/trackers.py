"""wandb and TensorBoard: optional, and never able to stop a run or to wait at a prompt."""

from __future__ import annotations

import netrc
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from dflash_trainer.config.schema import Config, LoggingConfig

Log = Callable[[str], None]


class Tracker(Protocol):
    """Receives the metrics of each step."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics of a step."""

    def close(self) -> None:
        """Finish the run in the tracker."""


def open_trackers(config: Config, folder: Path, log: Log) -> list[Tracker]:
    """Return the configured trackers; one that cannot start is reported and omitted."""
    trackers: list[Tracker] = []
    mode = wandb_mode(config.logging, log)
    openers: list[Callable[[], Tracker]] = []
    if mode != "disabled":
        openers.append(lambda: WandbTracker(config, folder, mode))
    if config.logging.tensorboard:
        openers.append(lambda: TensorboardTracker(folder / "tensorboard"))
    for opener in openers:
        try:
            trackers.append(Guarded(opener(), log))
        except Exception as error:
            log(f"tracker disabled: {type(error).__name__}: {error}")
    return trackers


def wandb_mode(logging: LoggingConfig, log: Log) -> str:
    """Return disabled, offline or online; online without a key becomes offline, so that wandb never prompts."""
    if logging.wandb == "online" and not _has_wandb_key():
        log("wandb: no WANDB_API_KEY and no entry in .netrc, so this run is logged offline (wandb sync sends it later)")
        return "offline"
    return logging.wandb


class Guarded:
    """Tracker whose first failure is reported and disables it."""

    def __init__(self, tracker: Tracker, log: Log) -> None:
        self._tracker = tracker
        self._log = log
        self._failed = False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values unless the tracker has failed before."""
        if not self._failed:
            self._try(lambda: self._tracker.log(step, values))

    def close(self) -> None:
        """Flush and close the tracker."""
        self._try(self._tracker.close)

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            self._failed = True
            self._log(f"{type(self._tracker).__name__} stopped: {type(error).__name__}: {error}")


class WandbTracker:
    """wandb run in the given mode; its files are below the run's folder."""

    def __init__(self, config: Config, folder: Path, mode: str) -> None:
        import wandb

        settings = wandb.Settings(console="off", init_timeout=60, disable_git=True, quiet=True)
        self._run: Any = wandb.init(
            project=config.logging.wandb_project,
            name=os.environ.get("DFLASH_RUN_ID", folder.name),
            mode=mode,  # type: ignore[arg-type]
            dir=str(folder),
            config=config.to_dict(),
            settings=settings,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run in the tracker."""
        self._run.finish()


class TensorboardTracker:
    """TensorBoard event files."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the metrics of a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Finish the run in the tracker."""
        self._writer.close()


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1].split("/")[0]
    try:
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
