"""The endpoints of the Hugging Face Hub that its file system asks, over a folder of datasets."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["hub_server"]

_REVISION = "0123456789abcdef0123456789abcdef01234567"
_REVISIONS = ("main", _REVISION)
_LARGE = ".parquet"  # such files lie in another store, to which the Hub redirects
_COMMIT = {"id": _REVISION, "title": "first", "date": "2024-01-01T00:00:00.000Z"}


def _entry(root: Path, path: Path, expand: bool) -> dict[str, Any]:
    name = path.relative_to(root).as_posix()
    more = {"lastCommit": _COMMIT} if expand else {}
    if path.is_dir():
        return {"type": "directory", "oid": "0" * 40, "size": 0, "path": name, **more}
    data = path.read_bytes()
    oid = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()  # as git names it
    found = {"type": "file", "oid": oid, "size": len(data), "path": name, **more}
    if path.suffix == _LARGE:
        lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
        found |= {"oid": hashlib.sha1(lfs["oid"].encode()).hexdigest(), "lfs": lfs}
    return found


def _handler(folder: Path, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.respond()

        def do_GET(self) -> None:
            self.respond()

        def do_POST(self) -> None:
            self.respond()

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            is_api = parts[0] == "api"
            owner, name, *rest = [*(parts[1:] if is_api else parts)[1:], ""]
            root = folder / owner / name
            sent = self.headers.get("Authorization")
            if owner == "gated":
                self.refuse(403, "GatedRepo", "Access to dataset gated/x is restricted.")
            elif sent not in (None, f"Bearer {token}"):
                self.refuse(401, "", "Invalid credentials in Authorization header")
            elif not root.is_dir() or (owner == "private" and sent is None):
                self.refuse(401 if sent is None else 404, "RepoNotFound", "Repository not found")
            elif not is_api:
                self.send_file(root, root / "/".join(rest[2:]))
            elif (
                rest and rest[0] in ("tree", "paths-info", "revision") and rest[1] not in _REVISIONS
            ):
                self.refuse(404, "RevisionNotFound", f"Invalid rev id: {rest[1]}")
            elif rest and rest[0] == "tree":
                self.send_tree(root, root / "/".join(rest[2:]))
            elif rest and rest[0] == "paths-info":
                asked = parse_qs(body.decode())
                found = [root / path for path in asked["paths"] if (root / path).exists()]
                expand = asked.get("expand", [""])[0] == "True"
                self.send_json([_entry(root, path, expand) for path in found])
            else:
                self.send_json({"id": f"{owner}/{name}", "sha": _REVISION, "siblings": []})

        def send_tree(self, root: Path, below: Path) -> None:
            if not below.is_dir():
                self.refuse(404, "EntryNotFound", f"{below.name} does not exist")
                return
            deep = "recursive=True" in self.path or "recursive=true" in self.path
            paths = sorted(below.rglob("*") if deep else below.iterdir())
            self.send_json([_entry(root, path, "xpand=True" in self.path) for path in paths])

        def send_file(self, root: Path, path: Path) -> None:
            if not path.is_file():
                self.refuse(404, "EntryNotFound", "Entry not found")
                return
            data = path.read_bytes()
            asked = (self.headers.get("Range") or "").removeprefix("bytes=")
            entry = _entry(root, path, False)
            headers = {"ETag": f'"{entry["oid"]}"', "X-Repo-Commit": _REVISION}
            if "lfs" in entry and self.path.startswith("/datasets/"):
                headers |= {"X-Linked-Etag": f'"{entry["lfs"]["oid"]}"'}
                headers |= {"Location": self.path.replace("/datasets/", "/elsewhere/", 1)}
                self.send(302, b"", headers)
                return
            if "lfs" in entry:
                headers = {"ETag": '"of the other store"'}
            if not asked:
                self.send(200, data, headers)
                return
            first, last = asked.split("-")
            part = data[int(first) : int(last) + 1 if last else None]
            headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
            self.send(206, part, headers)

        def send_json(self, value: Any) -> None:
            self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def refuse(self, status: int, code: str, words: str) -> None:
            self.send(status, b"", {"X-Error-Code": code, "X-Error-Message": words})

        def send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "HEAD":
                return
            self.wfile.write(data)

    return Handler


@contextmanager
def hub_server(folder: Path, token: str) -> Iterator[str]:
    """Serve `folder`/OWNER/NAME as datasets on a free port; the URL of the endpoint.

    Owner "private" needs the token, and owner "gated" refuses everyone.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(folder, token))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
