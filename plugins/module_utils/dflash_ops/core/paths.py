"""Layout of the folders on a box; no other file contains their names."""
from __future__ import annotations

import dataclasses
import os
import pwd
from pathlib import Path

WORKSPACE = Path("/workspace")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def home() -> str:
    """Return this user's home from the password database, because HOME may come from another user or machine."""
    return pwd.getpwuid(os.getuid()).pw_dir


def at_home(path: str | Path) -> Path:
    """Expand a leading ~ to this user's home, where Ansible copies files, even if HOME is another user's (sudo)."""
    head, slash, rest = str(path).partition("/")
    return Path(f"{home()}{slash}{rest}") if head == "~" else Path(path).expanduser()


@dataclasses.dataclass(frozen=True)
class Layout:
    """Folders below `dflash_root`, and the run folders, which may be on another mount.

    Args:
        root: absolute path of `dflash_root`.
        workspace: absolute path of the parent of `runs/`; equal to the root without a separate mount.
    """

    root: Path
    workspace: Path

    @classmethod
    def of(cls, root: str | Path, workspace: str | Path | None = None) -> Layout:
        """Return the layout for operator input.

        Args:
            root: `dflash_root`.
            workspace: `dflash_workspace`; empty for the root, `auto` for /workspace if it exists.
        """
        top = at_home(root).absolute()
        if workspace == "auto":
            workspace = WORKSPACE if WORKSPACE.is_dir() else None
        return cls(root=top, workspace=at_home(workspace).absolute() if workspace else top)

    @property
    def envs(self) -> Path:
        """Return the folder of the environments."""
        return self.root / "envs"

    def python(self, env_id: str) -> Path:
        """Return the interpreter of an environment."""
        return self.env(env_id) / "bin" / "python"

    @property
    def releases(self) -> Path:
        """Return the folder of the releases."""
        return self.root / "releases"

    @property
    def configs(self) -> Path:
        """Return the folder of the resolved configurations."""
        return self.root / "configs"

    @property
    def caches(self) -> Path:
        """Return the folder of the compile caches."""
        return self.root / "caches"

    @property
    def archives(self) -> Path:
        """Return the folder of the cache archives."""
        return self.root / "archives"

    @property
    def uv_cache(self) -> Path:
        """Return the folder of uv's package cache."""
        return self.root / "uv-cache"

    @property
    def jobs(self) -> Path:
        """Return the folder of the jobs."""
        return self.root / "jobs"

    @property
    def ops(self) -> Path:
        """Return the folder of the copies of this package that jobs run."""
        return self.root / "ops"

    @property
    def tmp(self) -> Path:
        """Return the folder for temporary files."""
        return self.root / "tmp"

    @property
    def runs(self) -> Path:
        """Return the folder of the runs."""
        return self.workspace / "runs"

    @property
    def current(self) -> Path:
        """Return the symlink to the current run."""
        return self.root / "current"

    @property
    def known_good(self) -> Path:
        """Return the file with the history of known-good runs."""
        return self.root / "known-good.json"

    @property
    def operator_lock(self) -> Path:
        """Return the file of the operator lock."""
        return self.root / "operator.lock"

    @property
    def tmux_socket(self) -> Path:
        """Return the socket of the tmux server."""
        return self.root / "tmux.sock"

    def env(self, env_id: str) -> Path:
        """Return the folder of an environment."""
        return self.envs / env_id

    def release(self, release_id: str) -> Path:
        """Return the folder of a release."""
        return self.releases / release_id

    def is_built(self, env_id: str, release_id: str) -> bool:
        """Return whether an environment and a release are given and complete."""
        if not (env_id and release_id):
            return False
        return (self.env(env_id) / "env.json").is_file() and (self.release(release_id) / "release.json").is_file()

    def cache(self, cache_id: str) -> Path:
        """Return the folder of a compile cache."""
        return self.caches / cache_id

    def job(self, job_id: str) -> Path:
        """Return the folder of a job."""
        return self.jobs / job_id

    def run(self, run_id: str) -> Path:
        """Return the folder of a run."""
        return self.runs / run_id
