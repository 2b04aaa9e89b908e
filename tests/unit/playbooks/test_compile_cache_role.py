"""Role compile_cache: skipping the prewarm in a launch, and validation of an archive on the controller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dflash_controller import inventory_validation
from dflash_ops.core import files

PLAY = """
- hosts: localhost
  gather_facts: false
  vars_files:
    - {role}/defaults/main.yml
    - {role}/vars/main.yml
  tasks:
    - ansible.builtin.set_fact:
        dflash_ready: {{cache: {warm}}}
        cacheable: true
      tags: [always]
    - ansible.builtin.debug:
        msg: "idle={{{{ __compile_cache_idle | bool }}}}"
      tags: [always, warmup, launch, compile_cache_prewarm, env]
"""


@pytest.mark.parametrize(
    ("arguments", "warm", "idle"),
    [
        (["--tags", "launch"], True, True),
        (["--tags", "launch,verify", "-e", "compile_cache_wipe=false"], True, True),
        (["--tags", "launch"], False, False),
        ([], True, False),
        (["--tags", "warmup"], True, False),
        (["--tags", "launch,warmup"], True, False),
        (["--tags", "compile_cache_prewarm"], True, False),
        (["--tags", "launch", "-e", "compile_cache_wipe=true"], True, False),
        (["--tags", "launch", "-e", "compile_cache_archive=true"], True, False),
        (["--tags", "launch", "-e", "compile_cache_fetch=caches"], True, False),
        (["--tags", "launch", "-e", "compile_cache_restore=a.tar.zst"], True, False),
        (["--tags", "launch", "-e", "compile_cache_archived=/a.tar.zst"], True, False),
        (["--tags", "launch", "-e", "compile_cache_select=false"], True, False),  # resolved by an earlier play
    ],
    ids=str,
)
def test_only_a_launch_skips_the_prewarm_of_a_warm_cache(
    repo: Path, tmp_path: Path, arguments: list[str], warm: bool, idle: bool
) -> None:
    play = tmp_path / "play.yml"
    play.write_text(PLAY.format(role=repo / "roles/compile_cache", warm=str(warm).lower()))
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    done = subprocess.run(
        [program, "-i", "localhost,", "-c", "local", str(play), *arguments],
        cwd=repo,
        env={**os.environ, "ANSIBLE_CONFIG": str(repo / "ansible.cfg")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"idle={idle}" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"sha256": ""}, "has no metadata file a.tar.zst.json in its folder"),
        ([], "has no metadata file a.tar.zst.json in its folder"),
        ({"sha256": "0" * 64}, "is damaged: its sha256 differs from its metadata file"),
    ],
    ids=["empty", "none", "other"],
)
def test_archive_is_validated_before_it_is_copied(tmp_path: Path, metadata: object, problem: str) -> None:
    archive = tmp_path / "a.tar.zst"
    found = inventory_validation.range_problems("compile_cache_restore", str(archive))
    assert "is not a file on the controller" in found[0]
    archive.write_bytes(b"bytes")
    (tmp_path / "a.tar.zst.json").write_text(json.dumps(metadata))
    assert problem in inventory_validation.range_problems("compile_cache_restore", str(archive))[0]
    files.write_json(tmp_path / "a.tar.zst.json", {"sha256": files.file_sha256(archive)})
    assert inventory_validation.range_problems("compile_cache_restore", str(archive)) == []
    assert "give a folder" in inventory_validation.range_problems("compile_cache_fetch", str(archive))[0]
