"""The ledger of runs on shards of `streampack convert` reads lengths, and no ids."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streampack
from streampack import PackedDataset, PackedLoader, TokenRules, Topology, packing, sources
from streampack.conversion.shards import NUM_TOKENS, OF_IDS
from streampack.errors import StreampackError
from streampack.ledger.replay import Replayed
from streampack.ledger.seen import Seen, seen

COUNT = 240
RNG = random.Random(3)
SIZES = [1 + RNG.randrange(90) * (1 + 5 * (i % 50 == 0)) for i in range(COUNT)]
IDS = [np.array([1 + RNG.randrange(200) for _ in range(size)], "u2") for size in SIZES]
NAMES = [f"name {i}" for i in range(COUNT)]


def longer(documents: Any, seeds: Any) -> Any:
    return documents.lengths > 3


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of documents with loss masks and names."""
    folder = tmp_path_factory.mktemp("shards")
    masks = [np.arange(len(ids)) % 3 > 0 for ids in IDS]
    table = pa.table({"ids": IDS, "loss_mask": masks, "name": NAMES, "number": range(COUNT)})
    pq.write_table(table, folder / "0.parquet", row_group_size=100)
    source = sources.open(str(folder / "0.parquet"), tokens="ids")
    streampack.convert(source, str(folder / "out"), keep=["name", "number"], shard_bytes=20_000)
    return folder / "out"


def dataset_of(files: Any, **settings: Any) -> PackedDataset:
    rules = TokenRules(pad_id=0, eos_id=250, eos=settings.pop("eos", "as-is"))
    settings = {"seq_len": 64, "batch_size": 2, "lanes": 2, **settings}
    return PackedDataset(files, token_rules=rules, topology=Topology(), **settings)


def found(dataset: PackedDataset, state: Any, folder: Path, keys: Any) -> tuple[list[Seen], Any]:
    replayed = Replayed(folder)
    return list(seen(dataset, state, keys, replayed=replayed)), replayed.counts


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("settings", "by_lengths"),
    [
        ({}, True),
        ({"eos": "append", "packer": packing.Concat(seq_len=64), "seq_len": None}, True),
        ({"document_fields": {"name": "text", "number": "int64"}, "epochs": 2}, True),
        ({"eos": "ensure"}, False),
        ({"on_error": "skip"}, False),
        ({"filter": streampack.Hook("longer", longer)}, False),
        ({"where": "number != 7 and number > 20"}, True),
    ],
)
def test_documents_are_found_as_in_the_corpus(
    settings: Any, by_lengths: bool, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = settings.get("where")
    settings = {name: value for name, value in settings.items() if name != "where"}
    files = sources.Parquet(str(shards), where=where)
    loader = PackedLoader(dataset_of(files, **settings))
    for _ in islice(loader, 24):
        pass
    state = loader.state_dict()
    keys = {"name": NAMES[::7]}
    short, counts = found(dataset_of(files, **settings), state, tmp_path / "a", keys)
    assert (counts["corpus"] == 0) == by_lengths
    assert bool(counts["lengths"]) == by_lengths
    monkeypatch.setattr("streampack.ledger.shards.has_lengths", lambda schema: False)
    whole, counts = found(dataset_of(files, **settings), state, tmp_path / "b", keys)
    assert counts["lengths"] == 0
    assert short == whole
    again, counts = found(dataset_of(files, **settings), state, tmp_path / "a", keys)
    assert again == whole
    assert counts["corpus"] == 0 or "document_fields" not in settings


def test_ids_are_not_read(shards: Path, tmp_path: Path) -> None:
    mixture = {
        str(n): sources.Parquet(str(path)) for n, path in enumerate(shards.glob("*.parquet"))
    }
    files = sources.Mixture(mixture, weights=dict.fromkeys(mixture, 1))
    loader = PackedLoader(dataset_of(files))
    for _ in islice(loader, 9):
        pass
    state, keys = loader.state_dict(), {"name": NAMES[::7]}
    whole, _ = found(dataset_of(files), state, tmp_path / "a", keys)
    for path in shards.glob("*.parquet"):
        data, footer = bytearray(path.read_bytes()), pq.read_metadata(path)
        for group in range(footer.num_row_groups):
            for number in range(footer.num_columns):
                column = footer.row_group(group).column(number)
                if column.path_in_schema.partition(".")[0] in ("tokens", "loss_mask"):
                    begin = column.dictionary_page_offset or column.data_page_offset
                    data[begin : begin + column.total_compressed_size] = bytes(
                        column.total_compressed_size
                    )
        path.write_bytes(data)
    short, counts = found(dataset_of(files), state, tmp_path / "b", keys)
    assert short == whole
    assert counts["corpus"] == 0
    with pytest.raises(StreampackError):
        list(PackedLoader(dataset_of(files)))


def test_a_column_of_that_name_from_elsewhere_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "0.parquet"
    wrong = [len(ids) + 1 for ids in IDS]
    for metadata in (None, OF_IDS):
        kind = pa.field(NUM_TOKENS, pa.uint32(), metadata=metadata)
        table = pa.table({"tokens": IDS, "name": NAMES}).append_column(
            kind, [pa.array(wrong, "u4")]
        )
        pq.write_table(table, file)
        loader = PackedLoader(dataset_of(str(file)))
        for _ in islice(loader, 20):
            pass
        keys, state = {"name": NAMES[:3]}, loader.state_dict()
        if metadata is None:
            pieces, counts = found(dataset_of(str(file)), state, tmp_path / "a", keys)
            assert counts["lengths"] == 0
            assert {each.piece.index for each in pieces} == {0, 1, 2}
        else:  # of lengths that are wrong the windows are not the state's
            with pytest.raises(StreampackError):
                found(dataset_of(str(file)), state, tmp_path / "b", keys)
