"""Build the environment of tests/trainer from the CPU lockfile and pytest, if lockfiles or Python changed.

    python tools/trainer_venv.py .venv-trainer

NAME is a symlink to NAME-<hash> and is replaced only once that folder is complete. Wheels come from the folders in
pip's and uv's settings (PIP_FIND_LINKS, UV_FIND_LINKS), else from the lockfile's indexes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "plugins/module_utils"))

from dflash_ops.core.errors import OpsError  # noqa: E402
from dflash_ops.environment import interpreters, lockfile, sources, uv_command  # noqa: E402

LOCKS = (REPO / "trainer/locks/cpu.lock", REPO / "requirements/trainer-tests.lock")
COMPLETE = "made-from.lock"


def install(target: Path, python: interpreters.Interpreter) -> None:
    """Install both lockfiles into `target`."""
    uv = str(Path(sys.executable).parent / "uv")
    env_vars = {
        **os.environ,
        "UV_LINK_MODE": "copy",
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_SYSTEM_CERTS": "1",
    }
    subprocess.run(
        [uv, "venv", "--quiet", "--no-project", "--python", str(python.path), str(target)], check=True, env=env_vars
    )
    folders = sources.local_wheel_folders()
    for path in LOCKS:
        groups = sources.plan(lockfile.parse(path.read_text()), sources.Sources({}, folders), python=python.short)
        with tempfile.TemporaryDirectory() as scratch:
            request = uv_command.write(Path(scratch) / "request", groups, folders)
            subprocess.run(
                [
                    uv,
                    "pip",
                    "install",
                    "--quiet",
                    "--python",
                    str(target / "bin/python"),
                    "--no-deps",
                    "--require-hashes",
                    "--only-binary",
                    ":all:",
                    *request.arguments,
                ],
                check=True,
                env={**env_vars, **request.env_vars},
            )


def main() -> None:
    """Build the environment unless a complete one exists."""
    name = Path(sys.argv[1])
    try:
        python = interpreters.find(os.environ.get("TRAINER_PYTHON", ""), lockfile.parse(LOCKS[0].read_text()).pythons)
    except OpsError as error:
        sys.exit(str(error))
    text = "".join(path.read_text() for path in LOCKS) + python.version
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    made = Path(f"{name}-{key}")
    with Path(f"{name}.flock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if not (made / COMPLETE).exists():
            shutil.rmtree(made, ignore_errors=True)
            interpreter = f"{python.path} {python.version}"
            print(f"creating {made} from cpu.lock and trainer-tests.lock with {interpreter}", flush=True)
            install(made, python)
            shutil.copy(LOCKS[0], made / COMPLETE)
        spare = Path(f"{name}.new")
        spare.unlink(missing_ok=True)
        spare.symlink_to(made)
        os.replace(spare, name)
        for old in Path().glob(f"{name}-{'?' * 12}"):
            if old != made:
                shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    main()
