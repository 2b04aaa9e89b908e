"""Every playbook begins with the boilerplate, which reports a command that cannot start with one message."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml


def play(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ansible-playbook in a folder."""
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    kept = {name: value for name, value in os.environ.items() if name != "ANSIBLE_CONFIG"}
    return subprocess.run(
        [program, *arguments], cwd=cwd, capture_output=True, text=True, check=False, env={**kept, **env}
    )


@pytest.mark.parametrize("playbook", ["relaunch.yml", "playbooks/status.yml"])
def test_in_another_folder_the_message_names_the_checkout(repo: Path, tmp_path: Path, playbook: str) -> None:
    done = play(str(repo / playbook), cwd=tmp_path)
    assert done.returncode != 0
    assert f"Remedy: cd {repo} first" in done.stderr
    assert f"ANSIBLE_CONFIG={repo}/ansible.cfg" in done.stderr


def test_the_remedy_works(repo: Path, tmp_path: Path) -> None:
    done = play(
        *(str(repo / "playbooks/runs.yml"), "-e", f"dflash_root={tmp_path}/root", "-e", "json_out=runs.json"),
        cwd=tmp_path,
        ANSIBLE_CONFIG=str(repo / "ansible.cfg"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs.json").is_file()


def test_an_inventory_without_a_box_is_an_error(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text("all: {hosts: {node: }}\n")
    done = play("deploy.yml", "-i", str(tmp_path / "mine.yml"), cwd=repo)
    assert done.returncode != 0
    assert done.stderr.startswith("[ERROR]: The inventory has no box in the group trainers"), done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("nope.yml", None, "does not exist. Nothing was done. Remedy: "),
        ("broken.yml", "trainers:\n  hosts: {a: {b: [}\n", "is not valid YAML in line 2: "),
    ],
)
@pytest.mark.parametrize("playbook", ["deploy.yml", "playbooks/provision.yml"])
def test_an_unreadable_inventory_is_reported_with_one_message(
    repo: Path, tmp_path: Path, name: str, text: str | None, problem: str, playbook: str
) -> None:
    if text:
        (tmp_path / name).write_text(text)
    done = play(playbook, "-i", str(tmp_path / name), cwd=repo)
    assert done.returncode == 1
    assert done.stderr.startswith(f"[ERROR]: The inventory {tmp_path / name} {problem}"), done.stderr
    assert "inventory/localhost.yml" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_a_vaulted_inventory_and_a_list_of_hosts_are_left_to_ansible(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yml").write_text("trainers: {hosts: {box: {secret: !vault $ANSIBLE_VAULT}}}\n")
    for inventory in (str(tmp_path / "mine.yml"), "localhost,"):
        assert "is not valid YAML" not in play("playbooks/status.yml", "-i", inventory, "--list-hosts", cwd=repo).stderr


@pytest.mark.skipif(not shutil.which("ssh"), reason="ssh is not installed")
@pytest.mark.parametrize(
    ("playbook", "code"),
    [("deploy.yml", 4), ("playbooks/status.yml", 4), ("playbooks/logs.yml", 4), ("playbooks/verify.yml", 4)],
)
def test_an_unreachable_box_is_reported_once_with_a_remedy(
    repo: Path, tmp_path: Path, playbook: str, code: int
) -> None:
    (tmp_path / "group_vars").symlink_to(repo / "group_vars")
    (tmp_path / "mine.yml").write_text("trainers: {hosts: {node: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n")
    done = play(playbook, "-i", str(tmp_path / "mine.yml"), cwd=repo)
    message = "No ssh connection to 127.0.0.1: ssh: connect to host 127.0.0.1 port 1: Connection refused. Remedy: Check"
    assert " ".join(done.stdout.split()).count(message) == 1, done.stdout
    assert "msg:" not in done.stdout
    assert done.returncode == code


def test_every_playbook_begins_with_the_boilerplate(repo: Path) -> None:
    for file in (repo / "playbooks").glob("*.yml"):
        first = yaml.safe_load(file.read_text())[0]
        if file.stem not in ("boilerplate", "validate_inventory", "provision"):
            assert first["ansible.builtin.import_playbook"] == "boilerplate.yml", file


def test_cached_facts_of_an_earlier_playbook_are_ignored(repo: Path, tmp_path: Path) -> None:
    kept = tmp_path / "facts"
    kept.mkdir()
    file = kept / "s1_localhost"  # as ansible-core 2.19 names it
    names = {"dflash_env": {"env_id": "stale"}, "dflash_release": {"release_id": "stale"}}
    stale = {**names, "dflash_ready": {"cache": True}}
    file.write_text(json.dumps({"__payload__": json.dumps(stale)}))
    done = play(
        *("relaunch.yml", "--tags", "warmup", "--check", "-e", f"dflash_root={tmp_path}/root"),
        cwd=repo,
        ANSIBLE_CACHE_PLUGIN="jsonfile",
        ANSIBLE_CACHE_PLUGIN_CONNECTION=str(kept),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stale" not in file.read_text()
