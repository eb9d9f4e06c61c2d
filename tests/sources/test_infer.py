"""The source for a path that the caller names no format of."""

from __future__ import annotations

import bz2
import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import sources
from streampack.errors import ConfigError
from streampack.sources.infer import as_source
from tests.support.corpora import write_mds, write_tar
from tests.support.source_contract import read_all

TEXTS = ["a", "größer", "漢字"]
DOCUMENTS = [np.arange(n, dtype=np.uint16) for n in (3, 1, 5)]


def write(path: Path) -> Path:
    """The texts in the format that the name says."""
    if path.suffix.lower() in sources.Parquet.endings:
        pq.write_table(pa.table({"text": TEXTS}), path)
        return path
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    path.write_bytes(packed(lines, path.name.lower()))
    return path


def packed(data: bytes, name: str) -> bytes:
    """The data compressed as the name says."""
    if name.endswith("gz"):
        return gzip.compress(data)
    if name.endswith("bz2"):
        return bz2.compress(data)
    zstd = name.endswith(("zst", "zstd"))
    return pa.compress(data, "zstd", asbytes=True) if zstd else data


def remedy(error: ConfigError) -> list[Any]:
    """The sources that the remedy writes down, made as it says."""
    calls = re.findall(r"sources\.\w+\([^()]*\)", error.remedy)
    return [eval(call, {"sources": sources}) for call in calls]


@pytest.mark.parametrize("ending", [*sources.Parquet.endings, *sources.JSONL.endings])
def test_every_ending_of_a_source_that_needs_no_argument_is_known(
    tmp_path: Path, ending: str
) -> None:
    for name in (f"a{ending}", f"B{ending.upper()}"):
        path = write(tmp_path / name)
        for given in (path, str(path), [path], str(tmp_path / f"*{name[1:]}")):
            assert read_all(as_source(given)) == TEXTS
    assert len(read_all(type(as_source(path))(tmp_path))) == 2 * len(TEXTS), "of the directory"


@pytest.mark.parametrize("ending", sources.WebDataset.endings)
def test_tar_shards_ask_for_their_key(tmp_path: Path, ending: str) -> None:
    write_tar(tmp_path / "a.tar", DOCUMENTS)
    content = (tmp_path / "a.tar").read_bytes()
    (tmp_path / f"b{ending}").write_bytes(packed(content, ending))
    for given in (tmp_path / f"b{ending}", [str(tmp_path / f"b{ending}")]):
        with pytest.raises(ConfigError, match="WebDataset") as raised:
            as_source(given)
        (source,) = remedy(raised.value)
        assert read_all(source) == [tuple(ids.tolist()) for ids in DOCUMENTS]


@pytest.mark.parametrize("name", ["index.json", "shard.00000.mds", "*.mds"])
def test_mds_shards_ask_for_their_column(tmp_path: Path, name: str) -> None:
    folder = write_mds(tmp_path, DOCUMENTS, column="tokens")
    with pytest.raises(ConfigError, match="MDS") as raised:
        as_source(f"{folder}/{name}")
    (source,) = remedy(raised.value)
    assert read_all(source) == [tuple(ids.tolist()) for ids in DOCUMENTS]


def test_a_name_that_does_not_say_the_format_lists_the_sources(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl")
    with pytest.raises(ConfigError, match="does not say what format") as raised:
        as_source(str(tmp_path))
    found = {type(source): source for source in remedy(raised.value)}
    assert set(found) == {sources.MDS, sources.Parquet, sources.JSONL, sources.WebDataset}
    assert read_all(found[sources.JSONL]) == TEXTS


def test_files_of_two_formats_are_two_sources(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.jsonl"), write(tmp_path / "b.parquet")]
    with pytest.raises(ConfigError, match=r"b\.parquet' by Parquet"):
        as_source(paths)
    mixture = sources.Mixture({"a": paths[0], "b": paths[1]}, weights={"a": 1, "b": 1})
    assert [read_all(source) for source in mixture.sources.values()] == [TEXTS, TEXTS]


def test_texts_are_no_paths() -> None:
    assert isinstance(as_source(["one text", "another"]), sources.Iterable)
