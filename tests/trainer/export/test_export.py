"""Export: the files servers read, atomic, and equal to the checkpoint."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch
from dflash_trainer.checkpoint.tensors import write_tensors
from dflash_trainer.checkpoint.trained_drafter import find_trained
from dflash_trainer.config.schema import Config
from dflash_trainer.config.target_shape import locate, read_shape
from dflash_trainer.errors import InputError
from dflash_trainer.export import export_drafter
from dflash_trainer.export.check import check_export
from dflash_trainer.model import build_drafter
from safetensors.torch import load_file
from tiny_runs import TinyRun, process_environment

SERVER_KEYS = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "block_size": 4,
    "dflash_config": {"mask_token_id": 255, "target_layer_ids": [1, 5]},
    "num_target_layers": 8,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 8,
    "use_sliding_window": True,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "vocab_size": 256,
}


@pytest.fixture
def config(tiny: TinyRun) -> Config:
    """Return the configuration of a hybrid target, whose rotary settings must not leak into the export."""
    return tiny.config("target.path=random:qwen3.6-tiny")


@pytest.fixture
def checkpoint(config: Config, tmp_path: Path) -> Path:
    """Write the weights of a new drafter and return their folder."""
    folder = tmp_path / "weights"
    folder.mkdir()
    drafter = build_drafter(config, read_shape(locate(config.target.path)))
    write_tensors(folder / "model.safetensors", drafter.state_dict())
    return folder


def test_config_has_the_keys_servers_need_and_no_rotary_setting_of_the_target(
    config: Config, checkpoint: Path, tmp_path: Path
) -> None:
    export_drafter(config, find_trained(checkpoint), tmp_path / "out", "bfloat16")
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert {key: written[key] for key in SERVER_KEYS} == SERVER_KEYS
    assert written["dtype"] == "bfloat16"
    text = json.dumps(written)
    assert not any(leak in text for leak in ("partial_rotary_factor", "mrope", "rope_parameters", "linear_attention"))


def test_drafter_with_only_full_layers_has_no_window(checkpoint: Path, tiny: TinyRun, tmp_path: Path) -> None:
    full = tiny.config("target.path=random:qwen3.6-tiny", "drafter.sliding_window=0")
    export_drafter(full, find_trained(checkpoint), tmp_path / "out", "bfloat16")
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert (written["sliding_window"], written["use_sliding_window"]) == (None, False)
    assert written["layer_types"] == ["full_attention", "full_attention"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_all_tensors_are_exported_unfused_and_unprefixed(
    dtype: str, config: Config, checkpoint: Path, tmp_path: Path
) -> None:
    done = export_drafter(config, find_trained(checkpoint), tmp_path / "out", dtype)
    expected = load_file(checkpoint / "model.safetensors")
    found = load_file(tmp_path / "out/model.safetensors")
    assert done.tensors == len(found) == 3 + 2 * 11
    assert {"fc.weight", "hidden_norm.weight", "norm.weight", "layers.1.self_attn.q_norm.weight"} <= found.keys()
    assert all(torch.equal(found[name], value.to(getattr(torch, dtype))) for name, value in expected.items())


def test_existing_output_folder_is_not_changed(config: Config, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="exists already"):
        export_drafter(config, find_trained(checkpoint), tmp_path / "out", "bfloat16")
    assert list((tmp_path / "out").iterdir()) == []


def test_nan_and_inf_are_refused_and_leave_no_files(
    config: Config, checkpoint: Path, tmp_path: Path
) -> None:
    tensors = {name: value.clone() for name, value in load_file(checkpoint / "model.safetensors").items()}
    tensors["layers.1.mlp.up_proj.weight"][3, 2] = torch.inf
    write_tensors(checkpoint / "model.safetensors", tensors)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"hold NaN or Inf, such as layers\.1\.mlp\.up_proj\.weight"):
        export_drafter(config, find_trained(checkpoint), tmp_path / "out", "bfloat16")
    assert sorted(tmp_path.iterdir()) == before


def test_weights_of_another_shape_are_refused_by_tensor_name(tiny: TinyRun, checkpoint: Path, tmp_path: Path) -> None:
    other = tiny.config("target.path=random:qwen3.6-tiny", "drafter.num_layers=3")
    with pytest.raises(InputError, match=r"layers\.2\."):
        export_drafter(other, find_trained(checkpoint), tmp_path / "out", "bfloat16")


def test_check_detects_a_flipped_bit_and_a_changed_key(
    config: Config, checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    export_drafter(config, find_trained(checkpoint), out, "float32")
    values = json.loads((out / "config.json").read_text())
    tensors = load_file(checkpoint / "model.safetensors")
    check_export(out, values, tensors)
    with pytest.raises(InputError, match=r"config\.json: block_size"):
        check_export(out, values | {"block_size": 8}, tensors)
    data = bytearray((out / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (out / "model.safetensors").write_bytes(data)
    with pytest.raises(InputError, match="1 tensors"):
        check_export(out, values, tensors)


def test_best_checkpoint_of_a_run_is_exported_and_a_damaged_one_is_refused(tiny: TinyRun, tmp_path: Path) -> None:
    tiny.train("run", "optimizer.max_steps=10")
    checkpoints = tmp_path / "run/checkpoints"
    assert find_trained(tmp_path / "run").name == "step-00000010"
    (checkpoints / "best").symlink_to("step-00000005")
    assert find_trained(tmp_path / "run").name == "step-00000005"
    assert find_trained(checkpoints / "latest").name == "step-00000010"
    command = tiny.command("", subcommand="export")
    command += ["--checkpoint", str(tmp_path / "run"), "--output", str(tmp_path / "o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=process_environment())
    assert done.returncode == 0 and "exported step-00000005: 25 tensors" in done.stdout, done.stdout + done.stderr
    data = bytearray((checkpoints / "best/model.safetensors").read_bytes())
    data[-1] ^= 1
    (checkpoints / "best/model.safetensors").write_bytes(data)
    with pytest.raises(InputError, match="step-00000005 is damaged"):
        find_trained(tmp_path / "run")


def test_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no model\.safetensors found; name a checkpoint"):
        find_trained(tmp_path)
