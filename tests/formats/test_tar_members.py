"""Files beside documents in tar shards are read, or the error asks for them; tokens are counted."""

from __future__ import annotations

import bz2
import gzip
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streampack import PackedDataset, Topology, sources
from streampack.errors import ConfigError, ContentError
from tests.support.corpora import npy_bytes, write_samples
from tests.support.labelled import ALL, EXPECTED, IDS, LABELS, MASKS, learnt

PACK: dict[str, Callable[[bytes], bytes]] = {
    "tar": bytes,
    "tar.gz": gzip.compress,
    "tar.bz2": bz2.compress,
    "tar.zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}


def write(samples: Sequence[Mapping[str, Any]], ending: str = "tar") -> str:
    """A shard of samples with arrays, records or bytes, by the ending of each file."""

    def file(name: str, content: Any) -> bytes:
        if name.endswith("json"):
            return json.dumps(content).encode()
        return npy_bytes(content) if name.endswith("npy") else bytes(content)

    made = [{name: file(name, content) for name, content in s.items()} for s in samples]
    data = write_samples(Path("plain"), made).read_bytes()
    Path(f"a.{ending}").write_bytes(PACK[ending](data))
    return f"a.{ending}"


def columns(**named: Sequence[Any]) -> list[dict[str, Any]]:
    """A sample per row, of `.npy` files; `npy` itself is the file without another name."""
    rows = zip(*named.values(), strict=True)
    names = [name if name == "npy" else f"{name}.npy" for name in named]
    return [dict(zip(names, row, strict=True)) for row in rows]


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("ending", PACK)
def test_masks_beside_ids_are_found(ending: str) -> None:
    path = write(columns(loss_mask=MASKS, input_ids=IDS), ending)
    for source in (path, sources.open(path, tokens="input_ids.npy")):
        assert learnt(source) == EXPECTED
    assert learnt(sources.WebDataset(path, loss_mask=[])) == ALL
    padded = {"input_ids": [[*ids, 0] for ids in IDS], "labels": [[*row, -100] for row in LABELS]}
    kept = [[*[1] * len(ids), 0] for ids in IDS]
    assert learnt(write(columns(attention_mask=kept, **padded), ending)) == EXPECTED


def test_masks_beside_bare_arrays_and_in_npz_and_json_are_found() -> None:
    rows = list(zip(IDS, LABELS, strict=True))
    bare = [{"bin": np.array(i, np.uint16).tobytes(), "labels.npy": la} for i, la in rows]
    assert learnt(sources.WebDataset(write(bare), tokens="bin", dtype="uint16")) == EXPECTED
    packed = [{"npz": npz(input_ids=i, labels=la)} for i, la in rows]
    assert learnt(sources.WebDataset(write(packed), tokens="npz:input_ids")) == EXPECTED
    records = [{"json": {"url": "a", "input_ids": i, "labels": la}} for i, la in rows]
    path = write(records)
    for source in (path, sources.WebDataset(path, tokens="json:input_ids")):
        assert learnt(source) == EXPECTED


def test_a_mask_is_read_by_the_name_that_is_passed() -> None:
    path = write(columns(npy=IDS, learn=MASKS, other=MASKS))
    assert learnt(path) == ALL
    assert learnt(sources.WebDataset(path, loss_mask="learn")) == EXPECTED
    assert learnt(sources.open(path, loss_mask=["learn", "other"])) == EXPECTED
    records = [{"json": {"ids": i, "learn": la}} for i, la in zip(IDS, MASKS, strict=True)]
    assert learnt(sources.open(write(records), loss_mask="learn")) == EXPECTED
    path = write(columns(npy=IDS, learn=MASKS))
    with pytest.raises(ContentError, match="nothing"):
        learnt(sources.WebDataset(path, loss_mask="nothing"))


def test_of_several_files_of_a_sample_the_documents_are_asked_for() -> None:
    path = write(columns(chosen=IDS, rejected=MASKS))
    with pytest.raises(ConfigError, match="rejected"):
        sources.open(path)
    assert learnt(sources.open(path, tokens="chosen.npy")) == ALL
    for several in (columns(input_ids=IDS, tokens=IDS), [{"npy": [1], "txt": b"a text"}]):
        with pytest.raises(ConfigError):
            sources.open(write(several))


def short_samples(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    lengths = rng.integers(5, 25, count).tolist()
    return [
        {"npy": rng.integers(0, 50_000, n).astype(np.uint16), "json": {"url": f"u/{i}"}}
        for i, n in enumerate(lengths)
    ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ending", PACK)
def test_a_shard_of_short_documents_gets_as_many_lanes_as_its_tokens_need(ending: str) -> None:
    samples = short_samples(5000)
    tokens = sum(len(sample["npy"]) for sample in samples)
    path = write(samples, ending)
    estimate = sources.open(path).estimate_tokens()
    assert estimate is not None
    assert abs(estimate - tokens) < 0.15 * tokens
    batches = list(PackedDataset(path, seq_len=256, batch_size=8, topology=Topology()))
    assert len(batches) <= tokens / (256 * 8) * 1.1 + 2
    assert all(batch.num_tokens for batch in batches)


@pytest.mark.parametrize("column", ["npy", "txt", "json:ids", "ids.npy"])
def test_tokens_are_estimated_in_any_container(column: str) -> None:
    files = {"npy": list(range(50)), "txt": b"abcd" * 50, "json": {"ids": list(range(50))}}
    files["ids.npy"] = files["npy"]
    path = write([{**files, "jpg": bytes(3000)}] * 300)
    named = {"text" if column == "txt" else "tokens": column}
    estimate = sources.WebDataset(path, **named).estimate_tokens()
    assert estimate is not None
    assert abs(estimate - 50 * 300) < 500
