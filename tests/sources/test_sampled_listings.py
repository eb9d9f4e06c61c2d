"""A listing opens some of its files; the others are opened when they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, sources
from streampack.errors import ContentError
from streampack.files.file_source import SAMPLED_FILES, FileSource
from streampack.sources.error_policy import ErrorPolicy
from tests.support.flat_files import write_megatron
from tests.support.source_contract import read_all, read_lane

FILES = 3 * SAMPLED_FILES  # of which a listing opens each third
IDS = [[1, 2, 3], [4], [5, 6]]


def _parquet(folder: Path, name: str) -> Path:
    pq.write_table(_table(), folder / f"{name}.parquet")
    return folder / f"{name}.parquet"


def _arrow(folder: Path, name: str) -> Path:
    feather.write_feather(_table(), folder / f"{name}.feather")
    return folder / f"{name}.feather"


def _megatron(folder: Path, name: str) -> Path:
    return write_megatron(folder / name, [[np.array(ids)] for ids in IDS], "uint16")


def _table() -> pa.Table:
    return pa.table({"input_ids": pa.array(IDS, pa.list_(pa.uint16()))})


@pytest.mark.parametrize("write", [_parquet, _arrow, _megatron])
def test_a_broken_file_is_found_when_it_is_opened_or_by_a_sample(
    write: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    files = [write(tmp_path, f"{number:03}") for number in range(FILES)]
    files[4].write_bytes(b"no such format" + files[4].read_bytes()[14:-4] + b"none")
    source = sources.open(tmp_path)
    assert isinstance(source, FileSource)
    dataset = PackedDataset(source, seq_len=8)
    assert dataset.plan.fingerprint["source"]["listing"] == "sampled"
    assert source.estimate_tokens()
    with pytest.raises(ContentError) as caught:
        read_all(source)
    assert Path(str(caught.value.path)).stem == files[4].stem
    documents = [tuple(ids) for ids in IDS]
    assert read_all(source, ErrorPolicy("skip")) == documents * (FILES - 1)


@pytest.mark.parametrize("write", [_parquet, _arrow, _megatron])
def test_lanes_are_dealt_the_stored_bytes(
    write: Callable[[Path, str], Path], tmp_path: Path
) -> None:
    for number in range(FILES):
        write(tmp_path, f"{number:03}")
    source = sources.open(tmp_path)
    assert isinstance(source, FileSource)
    manifest = source.manifest
    assert manifest.weights.tolist() == manifest.num_bytes.tolist()
    lanes = source.lanes(FILES, seed=0, epoch=0, shuffle=False)
    documents = [tuple(ids) for ids in IDS]
    for lane in (lanes[0], lanes[FILES - 1]):
        found = [document for block, _ in read_lane(lane, None) for _, document in block]
        assert found == documents
