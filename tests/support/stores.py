"""Object stores as real servers, each with one bucket, to be read through the same tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streampack.remote.filesystems import open_filesystem
from tests.support.hub_server import hub_server
from tests.support.servers import s3_server

__all__ = ["AZURE_ACCOUNT", "AZURE_KEY", "HUB_TOKEN", "STORES", "Store", "free_port"]

START_S = 60.0
AZURE_ACCOUNT = "devstoreaccount1"
#: The documented key of every Azurite.
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
HUB_TOKEN = "hf_token-of-this-test"


@dataclass(frozen=True)
class Store:
    """A running server.

    Attributes:
        root: URL of its bucket.
        other_root: URL of a bucket that it does not have.
        options: `storage_options` that reach it with all rights.
        elsewhere: the same for an address where nothing listens.
        write: stores an object: its name in the bucket, and its bytes.
        endpoint: address of the server.
    """

    root: str
    other_root: str
    options: dict[str, Any]
    elsewhere: dict[str, Any]
    write: Callable[[str, bytes], None]
    endpoint: str

    def write_folder(self, folder: Path, prefix: str) -> None:
        """Store every file below `folder`."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.write(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def free_port() -> int:
    """A port on which nothing listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _program(command: list[str], port: int) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + START_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    assert process.poll() is None, f"{command[0]} has ended"
                    assert time.monotonic() < deadline, f"{command[0]} does not start"
                    time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait(START_S)


@contextmanager
def s3(folder: Path) -> Iterator[Store]:
    """moto's server."""
    with s3_server("corpora") as server:
        options = {"key": "test", "secret": "testtest", "endpoint_url": server.endpoint}
        yield Store(
            "s3://corpora",
            "s3://no-such-bucket",
            options,
            {**options, "endpoint_url": "http://127.0.0.1:9"},
            lambda name, data: server.client.put_object(Bucket="corpora", Key=name, Body=data),
            server.endpoint,
        )


@contextmanager
def google(folder: Path) -> Iterator[Store]:
    """gcp-storage-emulator, in this process."""
    from gcp_storage_emulator.server import create_server

    port = free_port()
    server = create_server("127.0.0.1", port, in_memory=True, default_bucket="corpora")
    server.start()
    options = {"endpoint_url": f"http://127.0.0.1:{port}", "token": "anon"}
    try:
        filesystem = open_filesystem("gs", options, 10.0)
        yield Store(
            "gs://corpora",
            "gs://no-such-bucket",
            options,
            {**options, "endpoint_url": "http://127.0.0.1:9"},
            lambda name, data: filesystem.pipe_file(f"corpora/{name}", data),
            options["endpoint_url"],
        )
    finally:
        server.stop()


@contextmanager
def azure(folder: Path) -> Iterator[Store]:
    """Azurite's blob service; its program is named by AZURITE or found on the path."""
    program = os.environ.get("AZURITE") or shutil.which("azurite-blob")
    assert program, "needs azurite: npm install azurite, and set AZURITE to its azurite-blob"
    port = free_port()
    command = [program, "--location", str(folder), "--blobPort", str(port), "--silent"]
    with _program([*command, "--skipApiVersionCheck", "--disableTelemetry"], port):
        endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
        keys = f"AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY}"
        connection = f"DefaultEndpointsProtocol=http;{keys};BlobEndpoint="
        options = {"connection_string": connection + endpoint}
        filesystem = open_filesystem("abfs", options, 10.0)
        filesystem.mkdir("corpora")
        yield Store(
            "abfs://corpora",
            "abfs://no-such-bucket",
            options,
            {"connection_string": connection + f"http://127.0.0.1:9/{AZURE_ACCOUNT}"},
            lambda name, data: filesystem.pipe_file(f"corpora/{name}", data, overwrite=True),
            endpoint,
        )


@contextmanager
def hub(folder: Path) -> Iterator[Store]:
    """The Hub's endpoints, as far as its file system asks them; not the Hub's own server."""

    def write(name: str, data: bytes) -> None:
        path = folder / "me" / "corpora" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    with hub_server(folder, HUB_TOKEN) as endpoint:
        yield Store(
            "hf://datasets/me/corpora",
            "hf://datasets/me/no-such-dataset",
            {"endpoint": endpoint, "token": HUB_TOKEN},
            {"endpoint": "http://127.0.0.1:9", "token": HUB_TOKEN},
            write,
            endpoint,
        )


STORES = {"s3": s3, "google": google, "azure": azure, "hub": hub}
