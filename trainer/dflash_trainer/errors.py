"""Errors with a name, an exit code and a remedy. Does not import torch."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Exit codes of the process; docs/trainer.md lists them."""

    FINISHED = 0
    CONFIG = 2
    INPUT = 3
    WORKER = 4
    NAN = 5
    COMPILE = 6
    DEVICE = 7


class TrainerError(Exception):
    """An error the operator can act on: `name` for programs, message and remedy for people."""

    name = "trainer_error"
    exit_code = ExitCode.WORKER

    def __init__(self, message: str, remedy: str = "", *, name: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        if name:
            self.name = name

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class ConfigError(TrainerError, ValueError):
    """A configuration key or command-line option has an invalid value."""

    name = "bad_config"
    exit_code = ExitCode.CONFIG

    def __init__(self, key: str, value: object, reason: str, remedy: str) -> None:
        super().__init__(f"{key} = {value!r}: {reason}", remedy)
        self.key = key


class InputError(TrainerError):
    """A dataset, a weights file or a checkpoint cannot be used."""

    name = "bad_input"
    exit_code = ExitCode.INPUT


class WorkerError(TrainerError):
    """A worker thread raised an exception, which is the cause of this error."""

    name = "worker_failed"
    exit_code = ExitCode.WORKER


class NanRunError(TrainerError):
    """Too many consecutive batches with NaN or Inf."""

    name = "nan_run"
    exit_code = ExitCode.NAN


class CompileError(TrainerError):
    """Compilation failed, or a function would recompile after the warm-up."""

    name = "recompile"
    exit_code = ExitCode.COMPILE


class DeviceError(TrainerError):
    """A GPU is missing, was lost, or ran out of memory."""

    name = "device_lost"
    exit_code = ExitCode.DEVICE
