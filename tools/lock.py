"""Re-make the hash locks with uv and say what moved.

    make lock                                  keep every pin that still fits
    make lock ARGS='cu128'                     one lock
    make lock ARGS='cpu --upgrade-package datasets'     move one package
    make lock ARGS='--upgrade'                 move everything that may move
    make lock ARGS='cu128 --add-wheel causal_conv1d-1.6.1-cp312-cp312-linux_x86_64.whl'     record a wheel built by hand

torch comes from an index of its own with builds of several gigabytes. Only its file hashes and its requirements are
needed here: trainer/locks/torch.json records them, and they are compared with the index where it can be reached.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "plugins/module_utils"))

from dflash_ops.core import files  # noqa: E402
from dflash_ops.environment import lockfile  # noqa: E402

LOCKS = REPO / "trainer/locks"
BUILT = LOCKS / "built.json"
PLATFORM = "x86_64-manylinux_2_28"
PROFILES = ("cpu", "cu128")
PLAIN = {
    "controller": REPO / "requirements/controller",
    "trainer-tests": REPO / "requirements/trainer-tests",
    "uv": LOCKS / "uv",
}


def compile_lock(source: Path, target: Path, *options: str) -> str:
    """Resolve `source` for all its pythons; keep the pins of `target` that still fit; return the lock's text."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / target.name
        if target.exists():
            shutil.copy(target, fresh)
        command = [
            uv,
            "pip",
            "compile",
            str(source.relative_to(REPO)),
            "--universal",
            "--generate-hashes",
            "--no-header",
            "--no-emit-index-url",
            "--only-binary",
            ":all:",
            "--quiet",
            "--output-file",
            str(fresh),
            *options,
        ]
        subprocess.run(command, check=True, cwd=REPO)
        return fresh.read_text()


def stub_wheels(torch: dict[str, Any], folder: Path) -> None:
    """Write wheels that hold only METADATA, under torch's real file names: enough to resolve."""
    version, info = torch["version"], f"torch-{torch['version']}.dist-info"
    metadata = "".join(f"Requires-Dist: {one}\n" for one in torch["requires"])
    for tag in torch["hashes"]:
        with zipfile.ZipFile(folder / f"torch-{version}-{tag}-{tag}-manylinux_2_28_x86_64.whl", "w") as wheel:
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n{metadata}\n")
            wheel.writestr(
                f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}-{tag}-linux_x86_64\n"
            )
            wheel.writestr(f"{info}/RECORD", "")


def index_hashes(torch: dict[str, Any]) -> dict[str, str] | None:
    """Return tag to SHA-256 as the index lists them; None when it cannot be reached."""
    try:
        with urllib.request.urlopen(f"{torch['index']}/torch/", timeout=10) as answer:
            page = urllib.parse.unquote(answer.read().decode())
    except (urllib.error.URLError, TimeoutError):
        return None
    name = rf"torch-{re.escape(torch['version'])}-(cp\d+)-\1-manylinux_2_28_x86_64\.whl#sha256=([0-9a-f]{{64}})"
    return dict(re.findall(name, page))


def check_recorded(profile: str, torch: dict[str, Any]) -> None:
    """Compare the recorded hashes with the index and say which it was."""
    listed = index_hashes(torch)
    if listed is None:
        print(f"{profile}: torch's index cannot be reached from here; its hashes are the recorded ones")
        return
    wrong = {tag: hash_ for tag, hash_ in torch["hashes"].items() if listed.get(tag) != hash_}
    if wrong:
        sys.exit(f"{profile}: trainer/locks/torch.json and {torch['index']} differ for {', '.join(wrong)}: {listed}")
    print(f"{profile}: torch's recorded hashes are those of its index")


def make_profile(profile: str, options: list[str]) -> str:
    """Return the text of a trainer lock."""
    torch = json.loads((LOCKS / "torch.json").read_text())[profile]
    check_recorded(profile, torch)
    with tempfile.TemporaryDirectory() as folder:
        stub_wheels(torch, Path(folder))
        text = compile_lock(
            LOCKS / f"{profile}.in",
            LOCKS / f"{profile}.lock",
            "--python-version",
            torch["python"][0],
            "--find-links",
            folder,
            "--overrides",
            "trainer/locks/overrides.txt",
            *options,
        )
    hashes = " \\\n".join(f"    --hash=sha256:{hash_}" for hash_ in sorted(torch["hashes"].values()))
    pin = f"torch=={torch['version']} \\\n"
    text, count = re.subn(
        rf"^{re.escape(pin)}(?:    --hash=\S+(?: \\)?\n)+",
        pin + hashes.replace("\\", r"\\") + "\n",
        text,
        flags=re.MULTILINE,
    )
    if count != 1:
        sys.exit(f"{profile}: torch=={torch['version']} is not in what uv resolved; change {profile}.in or torch.json")
    head = [
        f"# Made by `make lock` from {profile}.in; change that file, not this one.",
        f"# profile: {profile}",
        f"# python: {' '.join(torch['python'])}",
        f"# platform: {PLATFORM}",
        f"# index torch: {torch['index']}",
    ]
    head += [f"# {key}: {torch[key]}" for key in ("cuda", "data", "megabytes") if torch[key]]
    built = json.loads(BUILT.read_text())[profile]
    head += [f"# built: {' '.join(sorted({row['name'] for row in built}))}"] if built else []
    text = "\n".join(head) + "\n" + text + built_pins(built)
    lockfile.require_complete(text, name=f"{profile}.lock")
    return text


def add_wheel(profile: str, wheel: Path) -> None:
    """Record a wheel that was built by hand: its name, version, python and hash."""
    name, version, python, *_ = wheel.name.split("-")
    row = {
        "name": lockfile.normalized(name),
        "version": version,
        "python": f"{python[2]}.{python[3:]}",
        "sha256": files.file_sha256(wheel),
    }
    built = json.loads(BUILT.read_text())
    rows = [one for one in built[profile] if (one["name"], one["python"]) != (row["name"], row["python"])]
    built[profile] = sorted([*rows, row], key=lambda one: (one["name"], one["python"]))
    BUILT.write_text(json.dumps(built, indent=2) + "\n")


def built_pins(rows: list[dict[str, str]]) -> str:
    """Return the lock's lines of the wheels that were built by hand."""
    return "".join(
        f"{row['name']}=={row['version']} ; python_version == '{row['python']}' \\\n"
        f"    --hash=sha256:{row['sha256']}\n    # built by hand\n"
        for row in rows
    )


def moved(old: str, new: str) -> list[str]:
    """Return one line for each package that came, went, moved or has other files."""
    before, after = ({(pin.name, pin.marker): pin for pin in lockfile.parse(text).pins} for text in (old, new))
    lines = []
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key), after.get(key)
        name = f"{key[0]} ({key[1]})" if key[1] else key[0]
        if was is None and now is not None:
            lines.append(f"  + {name} {now.version}")
        elif now is None and was is not None:
            lines.append(f"  - {name} {was.version}")
        elif was is not None and now is not None and was.version != now.version:
            lines.append(f"    {name} {was.version} -> {now.version}")
        elif was is not None and now is not None and was.hashes != now.hashes:
            lines.append(f"    {name} {now.version}: other files ({len(was.hashes)} -> {len(now.hashes)} hashes)")
    return lines


def write(target: Path, text: str) -> None:
    """Replace a lock when it changed, and say what moved."""
    old = target.read_text() if target.exists() else ""
    lines = moved(old, text)
    print(
        f"{target.relative_to(REPO)}: {len(lines)} moved" if text != old else f"{target.relative_to(REPO)}: unchanged"
    )
    print("\n".join(lines), end="\n" if lines else "")
    if text != old:
        target.write_text(text)


def main() -> None:
    """Make each lock that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join([*PLAIN, *PROFILES])}; all when none is given")
    parser.add_argument("--add-wheel", type=Path, help="record a wheel built by hand in the one lock that is named")
    asked, options = parser.parse_known_args()
    unknown = [name for name in asked.names if name not in (*PLAIN, *PROFILES)]
    if unknown:
        parser.error(f"no such lock: {', '.join(unknown)}")
    if asked.add_wheel:
        if len(asked.names) != 1 or asked.names[0] not in PROFILES or not asked.add_wheel.is_file():
            parser.error("--add-wheel wants a file, and the one profile that it is for")
        add_wheel(asked.names[0], asked.add_wheel)
    for name in asked.names or [*PLAIN, *PROFILES]:
        if name in PROFILES:
            write(LOCKS / f"{name}.lock", make_profile(name, options))
        else:
            source = PLAIN[name]
            text = compile_lock(
                source.with_suffix(".in"), source.with_suffix(".lock"), "--python-version", "3.11", *options
            )
            write(source.with_suffix(".lock"), text)


if __name__ == "__main__":
    main()
