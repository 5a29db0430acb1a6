"""Real HTTP servers on this machine that play a package index and a model hub, well or badly."""

import base64
import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Site:
    """What a server has and how it behaves. ``files`` maps paths to content.

    ``status`` is the answer to everything, if set; ``cut_after`` ends each body early, after so many bytes;
    ``stall_after`` stops sending there and waits for ``release``; without ``ranges`` whole files are sent where
    a part is asked for. ``requests`` records what was asked.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    status: int | None = None
    cut_after: int | None = None
    stall_after: int | None = None
    ranges: bool = True
    stalled: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    url: str = ""

    def asked(self, path: str) -> list[dict[str, str]]:
        """The headers of each GET of ``path``."""
        return [headers for method, asked, headers in self.requests if (method, asked) == ("GET", path)]


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    """Serve ``site`` on a free port of 127.0.0.1; its ``url`` tells where."""

    class Handler(_Handler):
        def __init__(self, *args: object) -> None:
            self.site = site
            super().__init__(*args)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        site.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, with_body: bool) -> None:
        site = self.site
        site.requests.append((self.command, self.path, dict(self.headers)))
        body = site.files.get(self.path)
        status = site.status or (200 if body is not None else 404)
        start, end = 0, len(body or b"")
        if status == 200 and "Range" in self.headers and site.ranges:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            start, end, status = int(first), min(end, int(last or end) + 1), 206
        content = (body or b"")[start:end] if status in (200, 206) else b"no"
        self.send_response(status)
        for name, value in (site.headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        if body is not None:
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(body or b'')}")
        self.end_headers()
        if with_body:
            self._send(content)

    def _send(self, content: bytes) -> None:
        site = self.site
        is_file = self.path.endswith((".whl", ".gguf"))
        if is_file and site.cut_after is not None:
            self.wfile.write(content[: site.cut_after])
            self.close_connection = True
        elif is_file and site.stall_after is not None:
            self.wfile.write(content[: site.stall_after])
            self.wfile.flush()
            site.stalled.set()
            site.release.wait()
            self.close_connection = True
        else:
            self.wfile.write(content)


def wheel(name: str, members: dict[str, bytes]) -> bytes:
    """A valid wheel of version 1.0 with these members."""
    info = f"{name}-1.0.dist-info"
    members = members | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in members.items())
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in members.items():
            archive.writestr(path, data)
    return buffer.getvalue()


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def package_index(files: dict[str, bytes]) -> Site:
    """An index whose one project, tiny-model, has these files."""
    links = "".join(f'<a href="/files/{name}">{name}</a>' for name in files)
    pages = {"/simple/tiny-model/": f"<!DOCTYPE html><html><body>{links}</body></html>".encode()}
    return Site(pages | {f"/files/{name}": data for name, data in files.items()})


def hub(files: dict[str, bytes]) -> Site:
    """A hub with one repository, user/repo, at one commit; it tells which files there are."""
    about = {"id": "user/repo", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
    pages = {f"/user/repo/resolve/main/{name}": data for name, data in files.items()}
    return Site(pages | {"/api/models/user/repo": json.dumps(about).encode()}, {"X-Repo-Commit": COMMIT})
