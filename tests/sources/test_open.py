"""`sources.open`: what is there is taken for what it is, or what is missing is named."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, sources
from streampack.errors import ConfigError, ContentError
from streampack.sources.skips import Skips
from tests.support.corpora import write_mds, write_tar
from tests.support.flat_files import write_datatrove, write_megatron
from tests.support.source_contract import read_all

IDS = [(1, 2), (3,), (4, 5, 6)]
TEXTS = ["a", "größer", "漢字"]
ARRAYS = [np.array(ids, dtype=np.uint16) for ids in IDS]


def write_parquet(path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def write_arrow(path: Path, columns: dict[str, Any]) -> Path:
    feather.write_feather(pa.table(columns), str(path))
    return path


def write_jsonl(path: Path, columns: dict[str, Any]) -> Path:
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


RECORDS = {"a.parquet": write_parquet, "a.arrow": write_arrow, "a.jsonl": write_jsonl}


@pytest.mark.parametrize("name", RECORDS)
def test_the_field_of_records_is_found_as_in_tables(tmp_path: Path, name: str) -> None:
    path, write = tmp_path / name, RECORDS[name]
    for columns, expected in (
        ({"n": [1, 2, 3], "input_ids": IDS}, IDS),
        ({"tokens": IDS, "url": TEXTS}, IDS),
        ({"ids": IDS}, IDS),
        ({"content": TEXTS}, TEXTS),
        ({"text": TEXTS, "tokens": [1, 2, 3]}, TEXTS),
    ):
        write(path, columns)
        assert read_all(sources.open(path)) == expected
        assert list(PackedDataset(path, seq_len=8)) if expected is IDS else True
    write(path, {"body": TEXTS, "ids": IDS})
    assert read_all(sources.open(path, text="body")) == TEXTS
    assert read_all(sources.open(path, tokens="ids")) == IDS
    write(path, {"text": TEXTS, "input_ids": IDS})
    with pytest.raises(ConfigError, match="'text' and 'input_ids' may be"):
        sources.open(path)


@pytest.mark.parametrize("name", RECORDS)
def test_a_loss_mask_is_read_whether_it_is_named_or_not(tmp_path: Path, name: str) -> None:
    masks = [[True, False], [True], [True, True, False]]
    path = RECORDS[name](tmp_path / name, {"input_ids": IDS, "loss_mask": masks})
    for named in ({}, {"loss_mask": "loss_mask"}):
        source: Any = sources.open(path, **named)
        lane = source.lanes(1, seed=0, epoch=0, shuffle=False)[0]
        ((block, _),) = lane.read(None, Skips("raise"))
        assert block.loss_mask.tolist() == [m for mask in masks for m in mask]


def wrong_columns(folder: Path) -> dict[str, Callable[[], Any]]:
    """What names a wrong column, by the format; the right ones are "body" and "ids"."""
    columns = {"body": TEXTS, "ids": IDS}
    table, rows = pa.table(columns), pa.table(columns).to_pylist()
    with tarfile.open(folder / "a.tar", "w") as archive:
        data = json.dumps(rows[0]).encode()
        member = tarfile.TarInfo("0.json")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    for name, write in RECORDS.items():
        write(folder / name, columns)
    found: dict[str, Callable[[], Any]] = {
        name: lambda path=folder / name: sources.open(path, text="text") for name in RECORDS
    }
    found |= {
        f"loss mask of {name}": lambda path=folder / name: sources.open(
            path, tokens="ids", loss_mask="mask"
        )
        for name in RECORDS
    }
    found["tar"] = lambda: sources.open(folder / "a.tar", text="json:text")
    found["table"] = lambda: sources.open(table, text="text")
    found["records"] = lambda: sources.open(rows, text="text")
    found["function"] = lambda: sources.open(lambda: iter(rows), tokens="tokens")
    mds = write_mds(folder, ARRAYS, column="ids")
    found["MDS"] = lambda: sources.open(mds, tokens="tokens")
    found["loss mask of MDS"] = lambda: sources.open(mds, tokens="ids", loss_mask="mask")
    return found


FORMATS = (
    *(f"{of}{name}" for of in ("", "loss mask of ") for name in RECORDS),
    *("tar", "table", "records", "function", "MDS", "loss mask of MDS"),
)


@pytest.mark.parametrize("what", FORMATS)
def test_a_wrong_column_is_told_the_right_ones(tmp_path: Path, what: str) -> None:
    with pytest.raises((ConfigError, ContentError)) as raised:
        read_all(wrong_columns(tmp_path)[what]())
    assert "ids" in str(raised.value)
    assert what.endswith("MDS") or "body" in str(raised.value)


def test_files_of_tokens_are_asked_for_what_they_do_not_say(tmp_path: Path) -> None:
    write_megatron(tmp_path / "m", [[ids] for ids in ARRAYS], "uint16")
    datatrove = write_datatrove(tmp_path / "a.ds", ARRAYS)
    write_tar(tmp_path / "a.tar", ARRAYS)
    for path in (tmp_path / "m", tmp_path / "m.bin", datatrove, tmp_path / "a.tar"):
        assert read_all(sources.open(path)) == IDS
    flat = np.array([one for ids in IDS for one in (*ids, 0)], dtype=np.uint16)
    flat.tofile(tmp_path / "nanogpt.bin")
    np.save(tmp_path / "a.npy", flat)
    with pytest.raises(ConfigError, match=r"eos_id is not given.*nanogpt.*dtype"):
        sources.open(tmp_path / "nanogpt.bin")
    with pytest.raises(ConfigError, match=r"dtype is not given.*nanogpt"):
        sources.open(tmp_path / "nanogpt.bin", eos_id=0)
    ended = [(*ids, 0) for ids in IDS]
    assert read_all(sources.open(tmp_path / "nanogpt.bin", dtype="uint16", eos_id=0)) == ended
    assert read_all(sources.open(tmp_path / "a.npy", eos_id=0)) == ended


def test_an_argument_of_another_format_is_refused_with_those_it_takes(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", {"text": TEXTS})
    with pytest.raises(ConfigError, match=r"eos_id=3 .*Parquet.*takes text, tokens.*--eos-id"):
        sources.open(path, eos_id=3)
    with pytest.raises(ConfigError):
        sources.open(sources.open(path), tokens="npy")
    with pytest.raises(ConfigError, match="Leave eos_id out"):
        sources.open(TEXTS, eos_id=3)
