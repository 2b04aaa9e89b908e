"""Of tasks that reach a host at the same moment one logs in, and the others take its login."""
from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from dflash_controller import pct_login
from dflash_controller.pct_login import first_login


class Task(threading.Thread):
    """A task that starts ssh over the login at `shared`, and ends its start when it is told so."""

    def __init__(self, shared: Path) -> None:
        super().__init__(daemon=True)
        self.shared = shared
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.found_a_login = False

    def run(self) -> None:
        """Start ssh when it is this task's turn."""
        with first_login(self.shared):
            self.found_a_login = self.shared.exists()
            self.began.set()
            assert self.may_end.wait(20)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Where ssh puts the socket of a login."""
    return tmp_path / "login"


def started(shared: Path) -> Task:
    task = Task(shared)
    task.start()
    return task


def test_the_second_waits_until_the_first_has_logged_in_and_takes_that_login(shared: Path) -> None:
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


def test_when_the_first_login_fails_the_next_one_tries(shared: Path) -> None:
    first = started(shared)
    assert first.began.wait(20)
    second = started(shared)
    assert not second.began.wait(0.3)
    first.may_end.set()
    assert second.began.wait(20)
    assert not second.found_a_login
    second.may_end.set()


def test_a_host_that_does_not_answer_is_waited_for_only_so_long(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pct_login, "PATIENCE_S", 0.5)
    first = started(shared)
    assert first.began.wait(20)
    since = time.monotonic()
    second = started(shared)
    assert second.began.wait(20)
    assert time.monotonic() - since >= 0.5
    assert not second.found_a_login
    for task in (first, second):
        task.may_end.set()


def test_a_login_that_is_there_or_that_nobody_shares_is_not_waited_for(shared: Path) -> None:
    shared.touch()
    with first_login(shared), first_login(shared), first_login(None):
        assert list(shared.parent.iterdir()) == [shared]
