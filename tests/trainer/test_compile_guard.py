"""Races that end runs: each is shown without the guard, then with it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
from dflash_trainer import compile_guard
from dflash_trainer.errors import CompileError
from tiny_runs import REPO

FX_RACE = """
import sys, threading
sys.path.insert(0, {trainer!r})
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from dflash_trainer import compile_guard
if {guarded}:
    compile_guard.install()
add = torch.compile(lambda x: x + 1, backend="aot_eager", dynamic=False)
x = torch.ones(4)
add(x)
tracing, go_on = threading.Event(), threading.Event()

def traces_slowly(graph, inputs):
    def traced(*values):
        tracing.set()
        go_on.wait(60)
        return graph(*values)
    return make_fx(traced)(*inputs)

def compile_another():
    if {inside_dynamo}:
        torch.compile(lambda x: torch.sin(x), backend=traces_slowly, dynamic=False)(torch.ones(3))
    else:
        traces_slowly(torch.sin, [torch.ones(3)])

thread = threading.Thread(target=compile_another)
thread.start()
assert tracing.wait(60)
try:
    add(x)
    print("works")
except RuntimeError as error:
    print(error)
finally:
    go_on.set()
    thread.join()
"""


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("inside_dynamo", [True, False], ids=["compilation", "later-trace"])
def test_a_compiled_call_survives_another_threads_tracing(inside_dynamo: bool, guarded: bool) -> None:
    """torch 2.10 to 2.13: a call fails while another thread traces, until the flag is kept per thread.

    torch 2.13 hides it while Dynamo itself compiles, but not when Inductor traces later, as for a backward pass.
    """
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version >= (2, 14) or (inside_dynamo and version >= (2, 13) and not guarded):
        pytest.skip("this torch does not fail here")
    values = {"trainer": str(REPO / "trainer"), "guarded": guarded, "inside_dynamo": inside_dynamo}
    code = textwrap.dedent(FX_RACE).format(**values)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    if guarded:
        assert done.stdout.strip() == "works"
    else:
        assert "using FX to symbolically trace a dynamo-optimized function" in done.stdout


class TunerLikeTriton:
    """What Triton's Autotuner.run does with its instance: keeps the call's arguments, works, forgets them."""

    def __init__(self) -> None:
        self.nargs: dict[str, int] | None = None

    def run(self, value: int) -> int:
        self.nargs = {"value": value}
        time.sleep(0.001)
        total = {**self.nargs}["value"]
        self.nargs = None
        return total


@pytest.mark.parametrize("guarded", [False, True])
def test_two_threads_in_one_autotuned_kernel(guarded: bool) -> None:
    """Without the guard one thread clears the other's arguments: 'NoneType' object is not a mapping."""
    run = compile_guard.one_thread_at_a_time(TunerLikeTriton.run) if guarded else TunerLikeTriton.run
    tuner, wrong = TunerLikeTriton(), []

    def work(value: int) -> None:
        for _ in range(50):
            try:
                if run(tuner, value) != value:
                    wrong.append("another thread's arguments")
            except TypeError as error:
                wrong.append(str(error))

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bool(wrong) != guarded


AUTOTUNER_RACE = """
import sys, threading, time
sys.path.insert(0, {trainer!r})
import triton
from triton.runtime.autotuner import Autotuner
from dflash_trainer import compile_guard
if {guarded}:
    compile_guard.install()

class Kernel:
    def fn(x, n):
        pass
    fn = staticmethod(fn)
    def run(self, x, n, **options):
        time.sleep(0.001)

def bench(call, quantiles):
    call()
    return [1.0, 1.0, 1.0]

configs = [triton.Config({{}}, num_warps=number) for number in (1, 2)]
tuner = Autotuner(Kernel(), ["x", "n"], configs, ["n"], None, None, do_bench=bench)
failed = []

def work(start):
    for n in range(start, start + 20):  # every n is tuned anew, as flash-linear-attention does for a new length
        try:
            tuner.run(1.0, n, grid=(1,), warmup=False)
        except TypeError as error:
            failed.append(str(error))

threads = [threading.Thread(target=work, args=(100 * number,)) for number in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(failed[0] if failed else "works")
"""


@pytest.mark.parametrize("guarded", [False, True])
def test_two_threads_in_one_kernel_of_the_real_autotuner(guarded: bool) -> None:
    """Triton's own autotuner over a kernel that only takes its time, so that no GPU is needed."""
    pytest.importorskip("triton")
    code = AUTOTUNER_RACE.format(trainer=str(REPO / "trainer"), guarded=guarded)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert not done.stderr.count("Traceback"), done.stderr
    if guarded:
        assert done.stdout.strip() == "works"
    else:
        assert "'NoneType' object is not a mapping" in done.stdout


def test_the_real_autotuner_is_guarded() -> None:
    autotuner = pytest.importorskip("triton.runtime.autotuner")
    compile_guard.install()
    assert autotuner.Autotuner.run._dflash_serialised
    compile_guard.install()
    assert not hasattr(autotuner.Autotuner.run.__wrapped__, "_dflash_serialised")


def test_tuners_do_not_wait_for_each_other() -> None:
    """One lock an instance: two kernels are tuned at once."""
    inside = threading.Barrier(2, timeout=20)
    meet = compile_guard.one_thread_at_a_time(lambda self: inside.wait())
    threads = [threading.Thread(target=meet, args=(TunerLikeTriton(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not inside.broken


def test_fx_tracing_still_works_with_the_flag_per_thread() -> None:
    compile_guard.install()
    traced = torch.fx.symbolic_trace(torch.nn.Linear(2, 2))
    assert traced(torch.ones(1, 2)).shape == (1, 2)
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    with pytest.raises(RuntimeError, match="symbolically trace a dynamo-optimized function"):
        torch.fx.symbolic_trace(compiled)


def test_a_new_shape_after_the_warmup_is_named() -> None:
    double = compile_guard.compile_once(_double)
    double(torch.ones(3))
    graphs = compile_guard.compiled_graphs()
    compile_guard.forbid_recompiles()
    try:
        double(torch.ones(3))
        failure = pytest.raises(CompileError, match=r"warm-up did not cover.*_double")
        with failure as caught, compile_guard.named_compile_failures():
            double(torch.ones(4))
        assert "data.buckets" in caught.value.remedy
        assert compile_guard.compiled_graphs() == graphs
    finally:
        compile_guard.allow_recompiles()


def test_limits_are_set_in_every_thread_and_passing_them_is_an_error() -> None:
    """8 devices x 4 shapes need more versions of one function than Dynamo's 8; a worker's thread has them too."""
    compile_guard.configure_thread(8, 4)
    seen: list[tuple[int, bool]] = []

    def worker() -> None:
        compile_guard.configure_thread()
        config = torch._dynamo.config
        seen.append((config.recompile_limit, config.fail_on_recompile_limit_hit))

    thread = threading.Thread(target=worker)
    thread.start()
    thread.join()
    assert seen[0][0] >= 32
    assert seen[0][1]


def test_one_function_is_compiled_once() -> None:
    assert compile_guard.compile_once(_double) is compile_guard.compile_once(_double)
    assert compile_guard.compile_once(_double) is not compile_guard.compile_once(_double, any_size=True)


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2
