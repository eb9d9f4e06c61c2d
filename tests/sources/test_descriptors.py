"""Runs over many sources, in processes that may have few open files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from tests.support.flat_files import write_megatron
from tests.support.forked import Host
from tests.support.servers import HTTPServer

SOURCES, DOCUMENTS, LENGTH = 40, 8, 300
#: A process with torch has a dozen open files; connections to one server are another dozen.
MOST_OPEN = 48

PROGRAM = """
import resource, sys
from streampack import PackedDataset, PackedLoader, WindowConfig, sources

resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
kind, endings, places = sys.argv[2], sys.argv[3].split(","), sys.argv[4:]
arguments = {"eos_id": 0} if kind == "Tokens" else {}
parts = {
    place: getattr(sources, kind)([place + ending for ending in endings], **arguments)
    for place in places
}
dataset = PackedDataset(
    sources.Mixture(parts), seq_len=1024, lanes=4, window=WindowConfig(rows=32)
)
print(sum(batch.num_tokens for batch in PackedLoader(dataset)))
"""


def _tokens(path: Path, ids: np.ndarray) -> None:
    np.save(f"{path}.npy", ids.ravel())


def _parquet(path: Path, ids: np.ndarray) -> None:
    pq.write_table(_table(ids), f"{path}.parquet", row_group_size=4)


def _arrow(path: Path, ids: np.ndarray) -> None:
    feather.write_feather(_table(ids), f"{path}.feather", chunksize=4)


def _lines(path: Path, ids: np.ndarray) -> None:
    lines = (f'{{"input_ids": {own.tolist()}}}\n' for own in ids)
    Path(f"{path}.jsonl").write_text("".join(lines))


def _megatron(path: Path, ids: np.ndarray) -> None:
    write_megatron(path, [[own] for own in ids], "uint16")


def _table(ids: np.ndarray) -> pa.Table:
    return pa.table({"input_ids": pa.array(list(ids), pa.list_(pa.uint16()))})


FORMATS: dict[str, tuple[Callable[[Path, Any], None], str]] = {
    "Tokens": (_tokens, ".npy"),
    "Parquet": (_parquet, ".parquet"),
    "Arrow": (_arrow, ".feather"),
    "JSONL": (_lines, ".jsonl"),
    "MegatronIndexed": (_megatron, ".bin,.idx"),
}


def _total(host: Host, folder: Path, kind: str, places: list[str]) -> int:
    (folder / "program.py").write_text(PROGRAM)
    statuses, output = host.run(
        folder / "program.py",
        MOST_OPEN,
        kind,
        FORMATS[kind][1],
        *places,
        environments=({"XDG_CACHE_HOME": str(folder / "cache")},),
    )
    assert statuses == [0], output
    return int(output.splitlines()[-1])


def _write(kind: str, folder: Path) -> list[str]:
    rng = np.random.default_rng(0)
    for number in range(SOURCES):
        ids = rng.integers(1, 50_000, (DOCUMENTS, LENGTH), np.uint16)
        ids[:, -1] = 0
        FORMATS[kind][0](folder / str(number), ids)
    return [str(number) for number in range(SOURCES)]


def _kinds(*quick: str) -> list[Any]:
    slow = [kind for kind in FORMATS if kind not in quick]
    return [*quick, *(pytest.param(kind, marks=pytest.mark.slow) for kind in slow)]


@pytest.mark.parametrize("kind", _kinds("JSONL"))
def test_a_mixture_of_many_local_sources_needs_few_descriptors(
    kind: str, host: Host, tmp_path: Path
) -> None:
    places = [str(tmp_path / name) for name in _write(kind, tmp_path)]
    assert _total(host, tmp_path, kind, places) == SOURCES * DOCUMENTS * LENGTH


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_a_mixture_of_many_remote_sources_needs_few_descriptors(
    kind: str, host: Host, http: HTTPServer, tmp_path: Path
) -> None:
    places = [f"{http.url}/{name}" for name in _write(kind, http.folder)]
    assert _total(host, tmp_path, kind, places) == SOURCES * DOCUMENTS * LENGTH
