"""Where everything lies on a box. The only file that knows folder names."""
from __future__ import annotations

import dataclasses
import os
import pwd
from pathlib import Path

WORKSPACE = Path("/workspace")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def home() -> str:
    """Return this user's home from the password file, not from a variable that travelled here."""
    return pwd.getpwuid(os.getuid()).pw_dir


def at_home(path: str | Path) -> Path:
    """Return a path with a leading ~ as ~USER: HOME may be another's (sudo), and what is copied here goes to ~USER."""
    head, slash, rest = str(path).partition("/")
    return Path(f"{home()}{slash}{rest}") if head == "~" else Path(path).expanduser()


@dataclasses.dataclass(frozen=True)
class Layout:
    """The folders below `dflash_root`, and the run folders, which may be on another mount.

    Args:
        root: absolute path of `dflash_root`.
        workspace: absolute path that holds `runs/`; the root itself when there is no other mount.
    """

    root: Path
    workspace: Path

    @classmethod
    def of(cls, root: str | Path, workspace: str | Path | None = None) -> Layout:
        """Build a layout from operator input; an empty workspace means the root, `auto` /workspace where it is."""
        top = at_home(root).absolute()
        if workspace == "auto":
            workspace = WORKSPACE if WORKSPACE.is_dir() else None
        return cls(root=top, workspace=at_home(workspace).absolute() if workspace else top)

    @property
    def envs(self) -> Path:
        return self.root / "envs"

    def python(self, env_id: str) -> Path:
        """Return the interpreter of an environment."""
        return self.env(env_id) / "bin" / "python"

    @property
    def releases(self) -> Path:
        return self.root / "releases"

    @property
    def configs(self) -> Path:
        """Return the folder of the resolved configurations."""
        return self.root / "configs"

    @property
    def caches(self) -> Path:
        return self.root / "caches"

    @property
    def archives(self) -> Path:
        return self.root / "archives"

    @property
    def uv_cache(self) -> Path:
        return self.root / "uv-cache"

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    @property
    def ops(self) -> Path:
        return self.root / "ops"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def runs(self) -> Path:
        return self.workspace / "runs"

    @property
    def current(self) -> Path:
        return self.root / "current"

    @property
    def known_good(self) -> Path:
        return self.root / "known-good.json"

    @property
    def operator_lock(self) -> Path:
        return self.root / "operator.lock"

    @property
    def tmux_socket(self) -> Path:
        return self.root / "tmux.sock"

    def env(self, env_id: str) -> Path:
        return self.envs / env_id

    def release(self, release_id: str) -> Path:
        return self.releases / release_id

    def is_built(self, env_id: str, release_id: str) -> bool:
        """Tell whether an environment and a release are named and complete."""
        if not (env_id and release_id):
            return False
        return (self.env(env_id) / "env.json").is_file() and (self.release(release_id) / "release.json").is_file()

    def cache(self, cache_id: str) -> Path:
        return self.caches / cache_id

    def job(self, job_id: str) -> Path:
        return self.jobs / job_id

    def run(self, run_id: str) -> Path:
        return self.runs / run_id
