"""Shards that `streampack convert` writes are those of the formats' own writers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampack.conversion.mds_shards import MDSShards
from streampack.conversion.shard_writer import masked_ids
from streampack.conversion.tar_shards import TarShards
from streampack.errors import ConfigError
from streampack.reading.options import Reading
from streampack.reading.skips import Skips
from streampack.sources.mds.source import MDS
from tests.support.corpora import write_mds
from tests.support.mosaic import streaming_module

COMPRESSIONS = ["zstd", "zstd:1", "zstd:22", "gz", "gz:0", "br", "br:3", "bz2", "bz2:1", "snappy"]


def ids(dtype: str) -> list[np.ndarray]:
    """Lengths on either side of where a longer header begins."""
    rng = np.random.default_rng(0)
    counts = (0, 1, 2, 255, 256, 257, 65_535, 65_536)
    return [rng.integers(0, np.iinfo(dtype).max, count, dtype=dtype) for count in counts]


def write(folder: Path, documents: list[Any], dtype: str, compression: str | None = None) -> Any:
    """A corpus of one shard; its entry in the index."""
    folder.mkdir()
    writer = MDSShards(dtype, compression)
    writer.check()
    _, info = writer.write(folder, 0, 0, documents)
    index = writer.index([info])
    assert index is not None
    (folder / index[0]).write_bytes(index[1])
    return info


def by_mosaicml(folder: Path, documents: list[Any]) -> Any:
    column = "text" if isinstance(documents[0], str) else "tokens"
    out = Path(write_mds(folder, documents, column, size_limit=None))
    (info,) = json.loads((out / "index.json").read_text())["shards"]
    return info, (out / "shard.00000.mds").read_bytes()


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_a_shard_of_ids_is_that_of_mosaicml_streaming_to_the_byte(
    tmp_path: Path, dtype: str
) -> None:
    documents = ids(dtype)[1:]  # it writes no empty ones
    info = write(tmp_path / "own", documents, dtype)
    own = (tmp_path / "own/shard.00000.mds").read_bytes()
    assert (info, own) == by_mosaicml(tmp_path, documents)


def test_a_shard_with_loss_masks_is_that_of_mosaicml_streaming_to_the_byte(tmp_path: Path) -> None:
    documents = ids("uint16")[1:]
    masks = [tokens % 2 == 0 for tokens in documents]
    info = write(tmp_path / "own", list(map(masked_ids, documents, masks)), "uint16")
    columns = {"tokens": "ndarray:uint16", "loss_mask": "ndarray:uint8"}
    with (
        streaming_module("base.format.mds") as mds,
        mds.MDSWriter(out=str(tmp_path / "theirs"), columns=columns, size_limit=None) as writer,
    ):
        for tokens, mask in zip(documents, masks, strict=True):
            writer.write({"tokens": tokens, "loss_mask": mask.astype(np.uint8)})
    name = "shard.00000.mds"
    assert (tmp_path / "own" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    assert [info] == json.loads((tmp_path / "theirs/index.json").read_text())["shards"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1))
def test_a_shard_of_texts_is_that_of_mosaicml_streaming_to_the_byte(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("texts")
    info = write(folder / "own", texts, "str")
    assert (info, (folder / "own/shard.00000.mds").read_bytes()) == by_mosaicml(folder, texts)


def read_here(folder: Path) -> list[Any]:
    source = MDS(folder, column="tokens", reading=Reading(open_shards=1))
    (lane,) = source.lanes(1, seed=0, epoch=0, shuffle=False)
    blocks = [block for block, _ in lane.read(None, Skips())]
    return [block.document(i).tolist() for block in blocks for i in range(len(block))]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_shards_are_read_by_mosaicml_streaming_and_here(
    tmp_path: Path, compression: str | None
) -> None:
    documents = ids("uint16")
    write(tmp_path / "own", documents, "uint16", compression)
    with streaming_module("base") as streaming:
        dataset = streaming.StreamingDataset(
            remote=str(tmp_path / "own"), local=str(tmp_path / "cache"), batch_size=1
        )
        found = [dataset[i]["tokens"].tolist() for i in range(len(dataset))]
    assert found == [document.tolist() for document in documents]
    assert read_here(tmp_path / "own") == found


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression_is_undone_by_mosaicml_streaming_and_here(
    tmp_path: Path, compression: str
) -> None:
    documents = ids("uint16")
    info = write(tmp_path / "own", documents, "uint16", compression)
    write(tmp_path / "plain", documents, "uint16")
    with streaming_module("base.compression") as module:
        stored = (tmp_path / "own" / info["zip_data"]["basename"]).read_bytes()
        raw = module.decompress(compression, stored)
    plain = (tmp_path / "plain/shard.00000.mds").read_bytes()
    assert len(raw) == info["raw_data"]["bytes"]
    assert raw[-65_000:] == plain[-65_000:]  # before them is the compression's name
    assert read_here(tmp_path / "own") == [document.tolist() for document in documents]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_same_documents_give_the_same_bytes(tmp_path: Path, compression: str) -> None:
    written = []
    for name in "ab":
        info = write(tmp_path / name, ids("uint32"), "uint32", compression)
        written.append((tmp_path / name / info["zip_data"]["basename"]).read_bytes())
    assert written[0] == written[1]


@pytest.mark.parametrize(
    "compression", ["", "zip", "zstd:", "zstd:0", "zstd:23", "zstd:+3", "zstd:03", "gz:10", "br:12",
                    "bz2:0", "snappy:1", "snappy:0", "zstd:3:4", "ZSTD", "zstd:³"],
)  # fmt: skip
def test_a_compression_that_mosaicml_streaming_does_not_know_is_refused(compression: str) -> None:
    with streaming_module("base.compression") as module:
        assert not module.is_compression(compression)
    with pytest.raises(ConfigError, match="knows no compression"):
        MDSShards("uint16", compression).check()


def test_tar_shards_are_read_by_webdataset(tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    for dtype, documents in (("uint32", ids("uint32")), ("str", ["one", "", "é\n"])):
        file, _ = TarShards(dtype).write(tmp_path, len(dtype), 7, documents)
        samples = list(wds.WebDataset(str(file), shardshuffle=False).decode())
        assert [sample["__key__"] for sample in samples][:2] == ["000000007", "000000008"]
        found = [sample["txt" if dtype == "str" else "npy"] for sample in samples]
        assert all(np.array_equal(a, b) for a, b in zip(found, documents, strict=True))
