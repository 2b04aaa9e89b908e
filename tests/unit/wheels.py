"""Small wheels with real package names, lockfiles of them, and a simple package index on loopback."""

from __future__ import annotations

import base64
import hashlib
import http.server
import threading
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

UV_LOCK = Path(__file__).resolve().parents[2] / "trainer/locks/uv.lock"
TORCH = """
__version__ = "{version}"
class version:
    cuda = {cuda!r}
class cuda:
    @staticmethod
    def init():
        raise RuntimeError("{gpu_error}")
"""


def torch_files(
    version: str, *, cuda: str | None, gpu_error: str = "Found no NVIDIA driver on your system"
) -> dict[str, str]:
    """Return the files of a torch package that has versions only."""
    return {
        "torch/__init__.py": TORCH.format(version=version, cuda=cuda, gpu_error=gpu_error),
        "torch/functional.py": "def einsum():\n    return 1\n",
    }


TRANSFORMERS = {
    "transformers/__init__.py": "",
    "transformers/utils/__init__.py": "",
    "transformers/utils/import_utils.py": "def is_flash_linear_attention_available():\n    return True\n",
}


def make_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str], *, tag: str = "py3-none-any", script: str = ""
) -> Path:
    """Write a wheel with a correct RECORD; `script` names a console script that calls `main`."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = name.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    if script:
        content[f"{info}/entry_points.txt"] = f"[console_scripts]\n{script} = {stem}:main\n"
    rows = []
    path = folder / f"{stem}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file, text in content.items():
            wheel.writestr(zipfile.ZipInfo(file, (2024, 1, 1, 0, 0, 0)), text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{file},sha256={digest},{len(text.encode())}")
        wheel.writestr(
            zipfile.ZipInfo(f"{info}/RECORD", (2024, 1, 1, 0, 0, 0)), "\n".join([*rows, f"{info}/RECORD,,", ""])
        )
    return path


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_lock(
    wheels: Iterable[Path],
    *,
    profile: str = "cpu",
    indexes: Mapping[str, str] | None = None,
    cuda: str = "",
    python: str = "3.10 3.11 3.12 3.13",
) -> str:
    """Return the text of a lockfile of exactly these wheels."""
    lines = [f"# profile: {profile}", f"# python: {python}", "# platform: x86_64-manylinux_2_28"]
    lines += [f"# index {name}: {url}" for name, url in (indexes or {}).items()]
    lines += [f"# cuda: {cuda}"] if cuda else []
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        lines.append(f"{name.replace('_', '-')}=={version} \\\n    --hash=sha256:{sha256(wheel)}")
    return "\n".join(lines) + "\n"


class Index:
    """Simple package index on loopback with one server thread, which ends on close().

    Attributes:
        truncate_at: fraction of its length at which a file is truncated, by file name.
        truncations_left: number of truncated responses before files are sent whole.
        requests: path of each request.
        hold: while set, requests are not answered until `resume`.
    """

    def __init__(self, wheels: Iterable[Path] = ()) -> None:
        self.files = {path.name: path.read_bytes() for path in wheels}
        self.truncate_at: dict[str, float] = {}
        self.truncations_left = 1 << 30
        self.requests: list[str] = []
        self.hold = threading.Event()
        self._resume = threading.Event()
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.respond(self)

            def log_message(self, *_: Any) -> None:
                """Stay silent."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"

    def respond(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """Serve a package's page or a file."""
        self.requests.append(request.path)
        if self.hold.is_set():
            self._resume.wait(60)
        name = request.path.rstrip("/").rpartition("/")[2].replace("%2B", "+")
        if name in self.files:
            fraction = self.truncate_at.get(name, 1.0) if self.truncations_left > 0 else 1.0
            self.truncations_left -= fraction < 1.0
            self.send(request, self.files[name], fraction=fraction)
            return
        links = [
            f'<a href="/files/{file.replace("+", "%2B")}">{file}</a>'
            for file in self.files
            if file.split("-")[0].replace("_", "-").lower() == name
        ]
        if not links:
            request.send_error(404)
            return
        self.send(request, "\n".join(links).encode(), kind="text/html")

    @staticmethod
    def send(
        request: http.server.BaseHTTPRequestHandler,
        data: bytes,
        *,
        fraction: float = 1.0,
        kind: str = "application/octet-stream",
    ) -> None:
        """Send the first `fraction` of the data with the full length in the header."""
        request.send_response(200)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data[: int(len(data) * fraction)])

    def resume(self) -> None:
        """Answer the held requests."""
        self._resume.set()

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
