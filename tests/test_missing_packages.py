"""Without an extra's packages: all else works, and errors name a pip command for the extra."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

from tests.support.ordered_corpora import documents_of, write_topics
from tests.support.program import output_of

#: Calls that need a package of each extra, in a process that can import no such package.
WITHOUT = """
import sys
for package in ("faiss", "ray", "PIL", "jinja2", "webdataset", "gigatoken", "s3fs", "aiohttp"):
    sys.modules[package] = None
from streampack.conversion.shards import Destination
from streampack.errors import ConfigError
from streampack.ordering import SimilarityOrder
from streampack.remote.filesystems import open_filesystem
from streampack.formats.tar.pipes import run_pipe
from streampack.tasks.on_ray import on_ray
from streampack.chats.templates.template import ChatTemplate

def images():
    from streampack.images import Images

for extra, use in {
    "ordering": lambda: SimilarityOrder(search="faiss"),
    "order": lambda: on_ray(None, 2).__enter__(),
    "vision": images,
    "chat": lambda: ChatTemplate("{{ messages }}", {}, []),
    "webdataset": lambda: run_pipe("pipe:cat x", None),
    "s3": lambda: open_filesystem("s3", {}, 1.0),
    "http": lambda: open_filesystem("https", {}, 1.0),
}.items():
    try:
        use()
    except ConfigError as error:
        print(extra, isinstance(error, ImportError), error.remedy)
"""


def packages_of(extra: str) -> set[str]:
    ends = rf"; extra == .{extra}.$"
    return {re.sub(ends, "", line) for line in requires("streampack") if re.search(ends, line)}


def test_a_missing_package_is_an_import_error_with_the_pip_command_for_its_extra() -> None:
    command = [sys.executable, "-c", WITHOUT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert [extra for extra, _, _ in lines] == [
        *("ordering", "order", "vision", "chat", "webdataset", "s3", "http")
    ]
    for extra, is_import_error, remedy in lines:
        assert is_import_error == "True", extra
        (packages,) = re.findall(r"`pip install (.*?)`", remedy)
        assert {*re.findall(r'"(.*?)"', packages)} == packages_of(extra), extra


def test_an_exact_order_in_one_process_needs_neither_faiss_nor_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_topics(tmp_path / "in", count=100)
    orders = []
    for search in ("auto", "exact"):
        output_of("order", source, tmp_path / search, "--workers", 0, "--search", search)
        orders.append(documents_of(tmp_path / search))
        monkeypatch.setitem(sys.modules, "faiss", None)
        monkeypatch.setitem(sys.modules, "ray", None)
    assert orders[0] == orders[1]
