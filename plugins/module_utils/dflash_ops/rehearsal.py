"""Compiles bytecode while uv still works: imports, from uv's cache, what the proof will import from the environment.

uv unpacks a wheel into its cache long before it copies it. A process of low priority imports each package from there as
soon as all that it needs has arrived, and puts the bytecode where the installed package will look for it. It is a help
and no more: what it does not do the proof does, and bytecode that does not run the proof finds.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .bytecode import SOURCE_TIME
from .jobs import child_environment

# Arguments: uv's cache; site-packages of the environment; `name==version` of the packages, imported ones marked by a
# final `!`; the time of every source; folders to search at last.
SCRIPT = r"""
import importlib, importlib.machinery, importlib.metadata, os, re, sys, time, warnings
from pathlib import Path
os.nice(19)
warnings.simplefilter("ignore")
sys.stdout = sys.stderr = open(os.devnull, "w")
cache, site, source_time = Path(sys.argv[1]), sys.argv[2], int(sys.argv[4])
pins = dict(word.rstrip("!").split("==") for word in sys.argv[3].split(","))
imported = [word.split("==")[0] for word in sys.argv[3].split(",") if word.endswith("!")]
sys.path += sys.argv[5:]
arrived = {}
spare = "%s/../.rehearsal-%d" % (site, os.getpid())

def normal(name):
    return re.sub("[-_.]+", "-", name).lower()

def set_data(loader, path, data, *, _mode=0o666):
    top = next((top for top in archives if path.startswith(top)), None)
    if top is None or not path.endswith(".pyc"):
        return
    target = site + path[len(top):]
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(spare, "wb") as stream:
        stream.write(data[:8] + source_time.to_bytes(4, "little") + data[12:])
    os.replace(spare, target)

def look():
    for info in cache.glob("archive-v*/*/*.dist-info"):
        name, _, version = info.name[:-10].partition("-")
        if pins.get(normal(name)) == version and normal(name) not in arrived:
            arrived[normal(name)] = importlib.metadata.Distribution.at(info)
            archives.append(str(info.parent))
            sys.path.append(str(info.parent))
            importlib.invalidate_caches()

def ready(name, asked=()):
    if name not in pins or name in asked:
        return True
    if name not in arrived:
        return False
    needs = [one for one in arrived[name].requires or () if "extra ==" not in one]
    return all(ready(normal(re.match("[A-Za-z0-9._-]+", one)[0]), (*asked, name)) for one in needs)

def modules(name):
    files = arrived[name].files or ()
    tops = {str(file).split("/")[0] for file in files if file.suffix in (".py", ".so")}
    return sorted({top.split(".")[0] for top in tops if top.split(".")[0].isidentifier() and top[0] != "_"})

archives, parent = [], os.getppid()
importlib.machinery.SourceFileLoader.set_data = set_data
while imported and os.getppid() == parent:
    look()
    now = [name for name in imported if ready(name)]
    for name in now:
        imported.remove(name)
        for module in modules(name):
            try:
                importlib.import_module(module)
            except BaseException:
                pass
    if not now:
        time.sleep(0.2)
"""


def start(
    python: Path, cache: Path, site: Path, pins: Mapping[str, str], *, imported: Sequence[str], also: Sequence[Path]
) -> subprocess.Popen[bytes]:
    """Start it; the caller ends it with `stop` when uv is done.

    Args:
        python: what will run the environment.
        cache: uv's.
        site: the site-packages folder that is being filled.
        pins: package to version.
        imported: the packages that the proof imports.
        also: folders that hold what the environment inherits.
    """
    words = [f"{name}=={version}{'!' if name in imported else ''}" for name, version in pins.items()]
    return subprocess.Popen(
        [python, "-I", "-S", "-c", SCRIPT, cache, site, ",".join(words), str(SOURCE_TIME), *also],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env=child_environment(),
    )


def stop(process: subprocess.Popen[bytes], site: Path) -> None:
    """End it, and remove the one file that it may have been writing."""
    process.kill()
    process.wait()
    (site.parent / f".rehearsal-{process.pid}").unlink(missing_ok=True)
