"""Operator lock: acquire, renew, release and take over."""
from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time

import pytest
from dflash_ops.core import files, operator_lock
from dflash_ops.core.errors import OpsError
from dflash_ops.core.paths import Layout


def holder(name: str = "ann", *, pid: int | None = None, machine: str = "elsewhere") -> operator_lock.Holder:
    mine = operator_lock.holder_of(os.getpid() if pid is None else pid, operation="deploy.yml")
    return dataclasses.replace(mine, operator=name, host=f"{name}-laptop", machine=machine or mine.machine)


def test_second_operator_sees_the_holder_and_the_time(layout: Layout) -> None:
    operator_lock.acquire(layout, holder("ann"), now=1_700_000_000.0)
    with pytest.raises(OpsError, match=r"ann on ann-laptop .* since 2023-11-14 22:13:20 UTC .*deploy.yml"):
        operator_lock.acquire(layout, holder("bob", machine="other"), now=1_700_000_060.0)


def test_same_holder_renews_and_keeps_since(layout: Layout) -> None:
    first = operator_lock.acquire(layout, holder(), now=100.0)
    second = operator_lock.acquire(layout, holder(), now=200.0)
    assert second["since"] == first["since"]
    assert second["expires_at"] == first["expires_at"] + 100


def test_expired_lease_is_taken_over(layout: Layout) -> None:
    operator_lock.acquire(layout, holder("ann"), now=100.0, lease=60)
    taken = operator_lock.acquire(layout, holder("bob", machine="other"), now=161.0)
    assert (taken["operator"], taken["taken_over"]) == ("bob", "ann on ann-laptop")


def test_dead_holder_on_this_machine_is_replaced_at_once(layout: Layout) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    held = holder("ann", pid=child.pid, machine="")
    operator_lock.acquire(layout, held)
    with pytest.raises(OpsError, match="ann"):
        operator_lock.acquire(layout, holder("bob", machine=""))
    child.kill()
    child.wait()
    assert operator_lock.acquire(layout, holder("bob", machine=""))["taken_over"] == "ann on ann-laptop"


def test_caller_may_declare_the_holder_dead(layout: Layout) -> None:
    held = operator_lock.acquire(layout, holder("ann"))
    assert operator_lock.acquire(layout, holder("bob", machine="other"), dead_token=held["token"])["operator"] == "bob"


def test_only_the_holder_can_release(layout: Layout) -> None:
    mine, other = holder("ann"), holder("bob", machine="other")
    assert not operator_lock.release(layout, mine.token)
    operator_lock.acquire(layout, mine)
    assert not operator_lock.release(layout, other.token)
    assert operator_lock.release(layout, mine.token)
    assert operator_lock.read(layout) is None
    assert not operator_lock.release(layout, mine.token)


def test_only_the_holder_can_renew(layout: Layout) -> None:
    mine = holder()
    operator_lock.acquire(layout, mine, lease=1)
    assert operator_lock.renew(layout, mine.token)
    assert not operator_lock.renew(layout, "someone")
    held = operator_lock.read(layout)
    assert held is not None and held["expires_at"] > time.time() + 60


def test_truncated_lock_file_counts_as_free(layout: Layout) -> None:
    files.write_text(layout.operator_lock, '{"operator": "ann"')
    assert operator_lock.acquire(layout, holder("bob"))["operator"] == "bob"
