"""Failures with a name, an exit code and a remedy; imports no third-party package."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Exit codes of the process; docs/trainer.md has the table."""

    FINISHED = 0
    CONFIG = 2
    INPUT = 3
    WORKER = 4
    NAN = 5
    COMPILE = 6
    DEVICE = 7


class TrainerError(Exception):
    """Failure that an operator can act on: `name` for programs, message and remedy for people."""

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
    """Invalid value of a configuration key."""

    name = "bad_config"
    exit_code = ExitCode.CONFIG

    def __init__(self, key: str, value: object, reason: str, remedy: str) -> None:
        super().__init__(f"{key} = {value!r}: {reason}", remedy)
        self.key = key


class InputError(TrainerError):
    """Unusable dataset, weights or checkpoint."""

    name = "bad_input"
    exit_code = ExitCode.INPUT


class WorkerError(TrainerError):
    """A worker thread ended with an exception (its traceback is the cause)."""

    name = "worker_failed"
    exit_code = ExitCode.WORKER


class NanRunError(TrainerError):
    """Too many unusable batches in a row."""

    name = "nan_run"
    exit_code = ExitCode.NAN


class CompileError(TrainerError):
    """Compilation failed, or something recompiled after the warm-up."""

    name = "recompile"
    exit_code = ExitCode.COMPILE


class DeviceError(TrainerError):
    """A GPU is missing, was lost, or ran out of memory."""

    name = "device_lost"
    exit_code = ExitCode.DEVICE
