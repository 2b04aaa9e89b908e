"""The command line that enters a container passes any command through unchanged."""
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from dflash_ops.core.errors import OpsError
from dflash_ops.proxmox.pct_command import check_vmid, pct_command

# a pct and a sudo that only drop their own arguments and run the rest, as the real ones do in the end
STAND_IN = '#!/bin/sh\nwhile [ "$1" != -- ]; do echo "$1" >> "$0.arguments"; shift; done; shift; exec "$@"\n'
SUDO = '#!/bin/sh\n[ "$1" = -n ] || exit 9\nshift; exec "$@"\n'


@pytest.fixture
def pct(tmp_path: Path) -> Path:
    """A stand-in pct in a folder with a space in its name."""
    folder = tmp_path / "a host"
    folder.mkdir()
    for name, text in (("pct", STAND_IN), ("lxc-attach", STAND_IN), ("sudo", SUDO)):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder / "pct"


def run_in_login_shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a line as the host's login shell does, with variables that must not reach the container."""
    leaking = {"PATH": f"{folder}:/usr/bin:/bin", "LD_LIBRARY_PATH": "/tmp/y", "SSL_CERT_FILE": "/nope", "LANG": "xx"}
    return subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False, env=leaking)


@pytest.mark.parametrize(
    "argument",
    ["plain", "two words", "it's", 'say "hi"', "$HOME", "`id`", "$(id)", "a;b", "a|b>c", "*", "\\", "\\n", "-x", "--",
     "", "ä€\u2028", "tab\there", "line\nbreak", "~", "#", "!", "%s", "{a,b}"],
)
def test_an_argument_arrives_unchanged(pct: Path, argument: str) -> None:
    line = pct_command(200, ["/usr/bin/printf", "<%s>", argument], executable=str(pct))
    assert run_in_login_shell(line, pct.parent).stdout == f"<{argument}>"


@pytest.mark.parametrize("method", ["pct", "lxc-attach"])
@pytest.mark.parametrize("sudo", [False, True])
def test_a_line_runs_in_the_containers_shell(pct: Path, method: str, sudo: bool) -> None:
    line = pct_command(200, "x='a  b'; echo \"$x\" | tr a z; exit 3", executable=str(pct), method=method, sudo=sudo)
    done = run_in_login_shell(line, pct.parent)
    assert (done.stdout, done.returncode) == ("z  b\n", 3)


def test_an_empty_line_does_nothing(pct: Path) -> None:
    done = run_in_login_shell(pct_command(200, "", executable=str(pct)), pct.parent)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_a_command_sees_only_the_fixed_environment(pct: Path) -> None:
    done = run_in_login_shell(pct_command(200, ["/usr/bin/env"], executable=str(pct)), pct.parent)
    names = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert names == {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG"}
    assert "/usr/local/bin" in done.stdout


def test_keep_env_is_disabled_explicitly(pct: Path) -> None:
    run_in_login_shell(pct_command(200, "true", executable=str(pct)), pct.parent)
    assert pct.with_name("pct.arguments").read_text(encoding="utf-8").split() == ["exec", "200", "--keep-env", "0"]


@pytest.mark.parametrize("value", ["", "abc", "12", "-200", "2 00", "200;id", "200.0", 99, 10**9, True, None, "2" * 12])
def test_an_invalid_vmid_is_refused_by_name(value: object) -> None:
    with pytest.raises(OpsError, match=r"pct_vmid = .*Remedy: "):
        check_vmid(value)


@pytest.mark.parametrize("value", [200, "200", " 200 ", 999_999_999])
def test_a_vmid_may_be_a_string_or_a_number(value: object) -> None:
    assert check_vmid(value) == int(str(value))


def test_an_unknown_method_is_refused_by_name() -> None:
    with pytest.raises(OpsError, match="pct_method = 'ssh'"):
        pct_command(200, "true", method="ssh")
