"""Two nodes of Ray on one machine, one of which is killed while it works."""

from __future__ import annotations

import importlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fsspec.asyn import sync

from streampack.conversion.shards import Destination
from streampack.corpus_order import search
from streampack.corpus_order.settings import CorpusOrder
from streampack.corpus_order.work import Work
from streampack.file_info import split_url
from streampack.tasks.on_ray import OnRay

HEAD, OTHER = "127.0.0.2", "127.0.0.3"  # addresses of the loopback, as of two machines
INDEX_SHARD = 100  # documents, so that a small corpus has several shards of its index
LONGEST_S = 60.0
#: The last file that a task writes, of each stage with tasks but the last.
LAST_FILES = re.compile(
    r"embed/\d+(\.copied)?\.json|index/\d+\.faiss|search/\d+\.\d+\.npy|"
    r"duplicates/\d+\.(pairs|whole)\.npy|path/\d+\.again\.npy"
)


@dataclass
class Nodes:
    """A head with one core, and one other node.

    Attributes:
        cluster: of Ray.
        other: the node that is killed.
        killed: functions that lost a task when it was killed.
    """

    cluster: Any
    other: Any = None
    killed: list[str] = field(default_factory=list)

    def join(self) -> None:
        """Another node comes, if there is none."""
        if self.other is None:
            self.other = self.cluster.add_node(num_cpus=1, node_ip_address=OTHER)

    def kill(self) -> None:
        """End all its processes without a word."""
        self.cluster.remove_node(self.other, allow_graceful=False)
        self.other = None


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """The cluster, gone in the end."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "node_ip_address": HEAD, "include_dashboard": False}
    nodes = Nodes(Cluster(initialize_head=True, head_node_args=head))
    try:
        nodes.join()
        yield nodes
    finally:
        nodes.cluster.shutdown()


def kill_in_every_stage(nodes: Nodes, markers: Path, patch: pytest.MonkeyPatch) -> None:
    """From now on the other node dies in each stage of a job that has tasks.

    Its first task stops at its last file, of which half is written, or in the middle of the upload
    of a shard; then the node is killed. The tasks of the head wait until then. Another node comes
    for the next stage.
    """
    original = OnRay.run

    def run(self: OnRay, function: Any, job: CorpusOrder, tasks: Any) -> Iterator[Any]:
        nodes.join()
        marker = markers / function.__name__
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.01):
                if marker.exists():
                    nodes.kill()
                    nodes.killed.append(function.__name__)
                    return

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            name = f"{function.__module__}:{function.__name__}"
            yield from original(self, stopping, job, [(name, str(marker), *task) for task in tasks])
        finally:
            over.set()
            watching.join()

    patch.setattr(OnRay, "run", run)


def stopping(job: CorpusOrder, name: str, marker: str, *task: int) -> None:
    """Do a task of a stage; on the node that is to die, do not end it."""
    import ray

    module, _, function = name.partition(":")
    search.SHARD_DOCUMENTS = INDEX_SHARD
    if ray.util.get_node_ip_address() == OTHER:
        _stop_at_last_file(Path(marker))
        _stop_in_upload(Path(marker))
    else:
        deadline = time.monotonic() + LONGEST_S
        while not Path(marker).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    getattr(importlib.import_module(module), function)(job, *task)


def _stop_at_last_file(marker: Path) -> None:
    original = Work.writing

    @contextmanager
    def writing(self: Work, name: str) -> Iterator[Path]:
        with original(self, name) as path:
            yield path
            if LAST_FILES.fullmatch(name):
                path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
                _await_the_end(marker)

    Work.writing = writing  # type: ignore[method-assign]


def _stop_in_upload(marker: Path) -> None:
    """At the first part of an upload in several parts."""

    def put(self: Destination, file: Path, name: str) -> None:
        filesystem = self._filesystem
        bucket, _, key = (split_url(self.url)[1] + "/" + name).partition("/")
        place = {"Bucket": bucket, "Key": key}

        async def begin() -> None:
            upload = await filesystem._call_s3("create_multipart_upload", **place)
            half = file.read_bytes()[: file.stat().st_size // 2]
            part = {"UploadId": upload["UploadId"], "PartNumber": 1, "Body": half}
            await filesystem._call_s3("upload_part", **place, **part)

        sync(filesystem.loop, begin)
        _await_the_end(marker)

    Destination.put = put  # type: ignore[method-assign]


def _await_the_end(marker: Path) -> None:
    marker.touch()
    time.sleep(LONGEST_S)
