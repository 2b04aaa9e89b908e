"""GPU survey with a working, failing, hanging or incomplete nvidia-smi."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from boxes import STAND_IN, Box
from dflash_ops.core import gpus
from dflash_ops.core.gpus import Survey

ROW = "{index}, GPU-{index}, NVIDIA H200, 570.86.15, 143771, {used}, {use}"


class Smi:
    """Folder with a stand-in nvidia-smi and its answers, and a /dev with device files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dev = folder / "dev"
        self.dev.mkdir(parents=True)
        shutil.copy(STAND_IN.with_name("nvidia-smi.sh"), folder / "nvidia-smi")
        self.answer("apps", "")

    def answer(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def gpus(self, count: int, *, files: int | None = None, used: int = 4) -> None:
        self.answer("gpus", "".join(ROW.format(index=i, used=used, use=0) + "\n" for i in range(count)))
        for index in range(count if files is None else files):
            (self.dev / f"nvidia{index}").touch()
        for name in ("nvidia-uvm", "nvidiactl"):
            (self.dev / name).touch()

    def survey(self, seconds: float = 10.0) -> Survey:
        return gpus.survey(nvidia_smi=str(self.folder / "nvidia-smi"), dev=self.dev, seconds=seconds)


@pytest.fixture
def smi(tmp_path: Path) -> Smi:
    return Smi(tmp_path / "smi")


def test_eight_gpus_have_no_problems(smi: Smi) -> None:
    smi.gpus(8)
    found = smi.survey()
    assert (found.state, len(found.gpus), found.problems) == ("ok", 8, ())
    assert found.gpus[0].total_mib == 143771
    assert gpus.count_problem(found, range(8)) == ""
    assert gpus.foreign_memory(found, range(8)) == []
    assert gpus.model(found) == "NVIDIA H200"


def test_lost_gpu_is_a_problem(smi: Smi) -> None:
    smi.gpus(7, files=8)
    found = smi.survey()
    assert found.problems == ("nvidia-smi lists 7 of 8 GPUs that have a device file",)
    reason = "(nvidia-smi lists 7 of 8 GPUs that have a device file)"
    assert gpus.count_problem(found, range(8)) == (
        f"the configuration uses cuda:7, which the box lacks: it has cuda:0 to cuda:6 {reason}"
    )
    assert gpus.count_problem(found, range(4)) == (
        f"the configuration uses cuda:0 to cuda:3, and a GPU of the box is lost: it has cuda:0 to cuda:6 {reason}"
    )


def test_error_with_rc_0_makes_the_state_unknown(smi: Smi) -> None:
    smi.gpus(8)
    smi.answer("gpus", "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.\n")
    found = smi.survey()
    assert found.state == "unknown"
    assert "GPU is lost" in found.problems[0]
    assert "could not be counted" in gpus.count_problem(found, range(8))


def test_error_in_one_cell_is_a_problem(smi: Smi) -> None:
    smi.gpus(2)
    smi.answer(
        "gpus", "0, GPU-0, NVIDIA H200, 570, 143771, 4, 0\n1, GPU-1, NVIDIA H200, 570, 143771, [Unknown Error], ERR!\n"
    )
    found = smi.survey()
    assert len(found.gpus) == 2
    assert found.gpus[1].used_mib is None
    assert any("Unknown Error" in text for text in found.problems)


def test_hanging_nvidia_smi_is_killed(smi: Smi) -> None:
    smi.gpus(8)
    smi.answer("sleep", "60")
    found = smi.survey(seconds=0.5)
    assert found.state == "unknown"
    assert "did not answer within 0.5 s" in found.problems[0]


def test_driver_error_is_reported(smi: Smi) -> None:
    smi.answer("gpus", "Failed to initialize NVML: Driver/library version mismatch\n")
    smi.answer("rc", "18")
    assert "Driver/library version mismatch" in smi.survey().problems[0]


def test_used_memory_counts_without_a_listed_process(smi: Smi) -> None:
    smi.gpus(2, used=70000)
    found = smi.survey()
    assert found.holders == ()
    problems = gpus.foreign_memory(found, range(8))
    assert len(problems) == 2
    assert "70000 MiB in use by a process that is not visible from here" in problems[0]


def test_foreign_process_is_reported_and_own_process_is_not(smi: Smi) -> None:
    smi.gpus(2, used=70000)
    smi.answer("apps", "GPU-0, 4711, python -m sglang, 69000\nGPU-1, 99, python, 69000\n")
    problems = gpus.foreign_memory(smi.survey(), range(8), own_pids={99})
    assert problems == ["GPU 0 is used by python -m sglang (pid 4711, 69000 MiB)"]


def test_problems_of_unused_gpus_are_ignored(smi: Smi) -> None:
    smi.gpus(2, used=70000)
    smi.answer("apps", "GPU-1, 4711, python -m sglang, 69000\n")
    first = gpus.indices({"gpus": 1, "devices": ["cpu", "cuda:0"]})
    assert gpus.foreign_memory(smi.survey(), first, own_pids={1}) == []
    assert "GPU 1 is used" in gpus.foreign_memory(smi.survey(), gpus.indices({"gpus": 1, "devices": ["cuda:1"]}))[0]
    assert gpus.count_problem(smi.survey(), gpus.indices({"gpus": 1, "devices": ["cuda:1"]})) == ""
    assert gpus.count_problem(smi.survey(), gpus.indices({"gpus": 1, "devices": ["cuda:0", "cuda:2"]})) == (
        "the configuration uses cuda:2, which the box lacks: it has cuda:0, cuda:1"
    )


def test_missing_gpus_are_named(smi: Smi) -> None:
    smi.gpus(2)
    assert gpus.count_problem(smi.survey(), range(8)) == (
        "the configuration uses cuda:2 to cuda:7, which the box lacks: it has cuda:0, cuda:1"
    )
    assert gpus.count_problem(gpus.Survey("none"), range(1)).endswith("uses cuda:0, which the box lacks: it has none")


def test_cpu_run_needs_no_gpu(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    found = gpus.survey(dev=tmp_path / "dev")
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has an NVIDIA driver")
    assert found.state == "none"
    assert gpus.count_problem(found, range(0)) == ""


def test_missing_uvm_device_is_named_as_the_cause(tmp_path: Path, smi: Smi) -> None:
    smi.gpus(1)
    (smi.dev / "nvidia-uvm").unlink()
    box = Box(tmp_path / "root")
    site = next((box.layout.env("e1") / "lib").glob("python3.*")) / "site-packages"
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text(
        "def ones(*a, **k):\n    raise RuntimeError('CUDA unknown error - this may be due to a wrong environment')\n"
    )
    found = gpus.probe_allocation(box.layout, "e1", [0], dev=smi.dev)
    assert len(found) == 1
    assert "GPU 0 fails an allocation" in found[0]
    assert f"{smi.dev / 'nvidia-uvm'} is missing" in found[0]
    assert smi.survey().state == "ok"
