"""Of tasks that connect to a host at the same time, one logs in and the others share its login."""
from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from dflash_controller import pct_login
from dflash_controller.pct_login import serialized_login


class Task(threading.Thread):
    """A task that starts ssh with the ControlMaster socket `shared`, and finishes when `may_end` is set."""

    def __init__(self, shared: Path) -> None:
        super().__init__(daemon=True)
        self.shared = shared
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.found_a_login = False

    def run(self) -> None:
        """Start ssh once the lock is free."""
        with serialized_login(self.shared):
            self.found_a_login = self.shared.exists()
            self.began.set()
            assert self.may_end.wait(20)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Path of the ControlMaster's socket."""
    return tmp_path / "login"


def started(shared: Path) -> Task:
    task = Task(shared)
    task.start()
    return task


def test_a_second_task_waits_for_the_first_login_and_shares_it(shared: Path) -> None:
    first = started(shared)
    assert first.began.wait(20)
    second = started(shared)
    assert not second.began.wait(0.3)
    shared.touch()  # as the ssh of the first does
    assert second.began.wait(20)
    assert (first.found_a_login, second.found_a_login) == (False, True)
    for task in (first, second):
        task.may_end.set()
        task.join(20)
    assert list(shared.parent.iterdir()) == [shared]


def test_the_next_task_logs_in_when_the_first_login_fails(shared: Path) -> None:
    first = started(shared)
    assert first.began.wait(20)
    second = started(shared)
    assert not second.began.wait(0.3)
    first.may_end.set()
    assert second.began.wait(20)
    assert not second.found_a_login
    second.may_end.set()


def test_the_wait_for_a_host_that_does_not_answer_is_bounded(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pct_login, "MAX_WAIT_S", 0.5)
    first = started(shared)
    assert first.began.wait(20)
    since = time.monotonic()
    second = started(shared)
    assert second.began.wait(20)
    assert time.monotonic() - since >= 0.5
    assert not second.found_a_login
    for task in (first, second):
        task.may_end.set()


def test_an_existing_login_or_none_to_share_needs_no_wait(shared: Path) -> None:
    shared.touch()
    with serialized_login(shared), serialized_login(shared), serialized_login(None):
        assert list(shared.parent.iterdir()) == [shared]
