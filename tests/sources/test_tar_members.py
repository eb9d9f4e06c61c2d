"""What stands beside documents in tar shards is read, or asked about; tokens are counted."""

from __future__ import annotations

import ast
import bz2
import gzip
import io
import json
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streampack import ConfigError, ContentError, PackedDataset, Topology, sources
from tests.support.corpora import byte_tokenizer
from tests.support.labelled import ALL, EXPECTED, IDS, LABELS, MASKS, learnt

PACK: dict[str, Callable[[bytes], bytes]] = {
    "tar": bytes,
    "tar.gz": gzip.compress,
    "tar.bz2": bz2.compress,
    "tar.zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}


def write(samples: Sequence[Mapping[str, Any]], ending: str = "tar") -> str:
    """A shard of samples: by what their files end in, arrays, records or bytes."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for number, sample in enumerate(samples):
            for name, content in sample.items():
                data = content
                if name.endswith("npy"):
                    buffer = io.BytesIO()
                    np.save(buffer, np.asarray(content))
                    data = buffer.getvalue()
                elif name.endswith("json"):
                    data = json.dumps(content).encode()
                member = tarfile.TarInfo(f"{number:06d}.{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    Path(f"a.{ending}").write_bytes(PACK[ending](stream.getvalue()))
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
@pytest.mark.parametrize("ids", ["npy", "input_ids", "tokens"])
@pytest.mark.parametrize("mask", ["labels", "loss_mask", "assistant_masks"])
def test_masks_beside_ids_are_found(ending: str, ids: str, mask: str) -> None:
    values = LABELS if mask == "labels" else MASKS
    path = write(columns(**{mask: values, ids: IDS}), ending)
    key = ids if ids == "npy" else f"{ids}.npy"
    for source in (path, sources.open(path, key=key), sources.WebDataset(path, key=key)):
        assert learnt(source) == EXPECTED
    for none in (sources.open(path, loss_mask=[]), sources.WebDataset(path, loss_mask=[])):
        assert learnt(none) == ALL


def test_masks_beside_bare_arrays_and_in_npz_and_json_are_found() -> None:
    rows = list(zip(IDS, LABELS, strict=True))
    bare = [{"bin": np.array(i, np.uint16).tobytes(), "labels.npy": la} for i, la in rows]
    assert learnt(sources.WebDataset(write(bare), key="bin", dtype="uint16")) == EXPECTED
    packed = [{"npz": npz(input_ids=i, labels=la)} for i, la in rows]
    assert learnt(sources.WebDataset(write(packed), key="npz", tokens="input_ids")) == EXPECTED
    records = [{"json": {"url": "a", "input_ids": i, "labels": la}} for i, la in rows]
    path = write(records)
    for source in (path, sources.WebDataset(path, key="json", tokens="input_ids")):
        assert learnt(source) == EXPECTED


def test_a_mask_is_read_by_the_name_that_is_passed() -> None:
    path = write(columns(npy=IDS, learn=MASKS, other=MASKS))
    assert learnt(path) == ALL
    assert learnt(sources.WebDataset(path, loss_mask="learn")) == EXPECTED
    assert learnt(sources.open(path, loss_mask=["learn", "other"])) == EXPECTED
    records = [{"json": {"ids": i, "learn": la}} for i, la in zip(IDS, LABELS, strict=True)]
    assert learnt(sources.open(write(records), loss_mask="learn")) == EXPECTED
    path = write(columns(npy=IDS, learn=MASKS))
    with pytest.raises(ContentError, match='no field "nothing"'):
        learnt(sources.WebDataset(path, loss_mask="nothing"))


@pytest.mark.parametrize("name", ["mask", "loss_masks"])
def test_what_may_be_a_mask_is_asked_about(name: str) -> None:
    path = write(columns(npy=IDS, **{name: MASKS}))
    with pytest.raises(ConfigError, match=f'"{name}" beside the token ids') as raised:
        learnt(path)
    answers: Any = re.findall(r"loss_mask=(\S+)", raised.value.remedy)
    for answer, expected in zip(map(ast.literal_eval, answers), (EXPECTED, ALL), strict=True):
        assert learnt(sources.open(path, loss_mask=answer)) == expected


def test_padding_beside_ids_is_left_out() -> None:
    padded = [[*ids, 0, 0] for ids in IDS]
    ones = [[*np.ones(len(ids), np.uint8), 0, 0] for ids in IDS]
    labels = [[*row, -100, -100] for row in LABELS]
    assert learnt(write(columns(attention_mask=ones, input_ids=padded))) == ALL
    path = write(columns(attention_mask=ones, input_ids=padded, labels=labels))
    assert learnt(path) == EXPECTED


def test_a_label_that_is_not_the_id_is_named() -> None:
    path = write(columns(npy=IDS, labels=[[*row[1:], -100] for row in LABELS]))
    with pytest.raises(ContentError, match=r"Document 0 of .*a\.tar has the label 13 at token 1"):
        learnt(path)


def test_masks_are_no_documents() -> None:
    for name in ("labels.npy", "mask.npy", "attention_mask.npy"):
        assert not sources.open(write([{name: [1], "txt": b"a text"}])).tokenized


def test_masks_in_other_files_than_the_ids_are_not_passed_over() -> None:
    path = write([{"json": {"input_ids": i}, "labels.npy": i} for i in IDS])
    with pytest.raises(ContentError, match='no field "labels"'):
        learnt(path)
    assert learnt(sources.open(path, loss_mask=[])) == ALL


def test_of_several_files_of_a_sample_the_documents_are_asked_for() -> None:
    path = write(columns(chosen=IDS, rejected=MASKS))
    with pytest.raises(ConfigError, match=r"end in chosen\.npy, rejected\.npy") as raised:
        sources.open(path)
    call = re.search(r"sources\.WebDataset\(.*?\)", raised.value.remedy)
    assert call is not None
    assert learnt(eval(call[0])) == ALL
    with pytest.raises(ConfigError, match=r"input_ids\.npy, tokens\.npy"):
        sources.open(write(columns(input_ids=IDS, tokens=IDS)))


def test_records_in_json_are_what_they_are() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with pytest.raises(ConfigError, match=r"sources\.Chat reads.*files of JSON lines") as raised:
        sources.open(write([{"json": {"messages": messages}}]))
    assert "input_ids" not in str(raised.value)
    with pytest.raises(ConfigError, match=r'the fields "a", "b".*None of them is known') as raised:
        sources.open(write([{"json": {"a": "x", "b": "y"}}]))
    call = re.search(r"sources\.WebDataset\(.*?\)", raised.value.remedy)
    assert call is not None
    assert not eval(call[0]).tokenized
    path = write([{"json": {"text": "x", "input_ids": ids}} for ids in IDS])
    assert learnt(path) == ALL
    with pytest.raises(ConfigError, match="Either may be the documents"):
        PackedDataset(path, seq_len=8, tokenizer=byte_tokenizer())


def short_samples(count: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    lengths = rng.integers(5, 25, count).tolist()
    return [
        {"npy": rng.integers(0, 50_000, n).astype(np.uint16), "json": {"url": f"u/{i}"}}
        for i, n in enumerate(lengths)
    ]


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


@pytest.mark.parametrize("key", ["npy", "txt", "json", "ids.npy"])
def test_tokens_are_estimated_whatever_holds_them(key: str) -> None:
    files = {"npy": list(range(50)), "txt": b"abcd" * 50, "json": {"ids": list(range(50))}}
    files["ids.npy"] = files["npy"]
    path = write([{**files, "jpg": bytes(3000)}] * 300)
    named = {"tokens": "ids"} if key == "json" else {}
    estimate = sources.WebDataset(path, key=key, **named).estimate_tokens()
    assert estimate is not None
    assert abs(estimate - 50 * 300) < 500


def test_what_is_broken_is_said_once_and_by_who_reads_it(caplog: pytest.LogCaptureFixture) -> None:
    samples = [{"npy": [1.5]}] + [{"npy": list(range(50))}] * 2000 + [{"npy": [1.5]}] * 1500
    source = sources.open(write(samples), key="npy")
    estimate = source.estimate_tokens()
    assert estimate is not None
    assert abs(estimate - 100_000) < 20_000
    assert not caplog.records


def test_a_sample_longer_than_what_is_looked_at_is_estimated_too() -> None:
    path = write([{"npy": np.arange(3 << 20, dtype=np.uint16)}])
    estimate = sources.WebDataset(path, key="npy").estimate_tokens()
    assert estimate is not None
    assert 1 << 20 < estimate < 9 << 20
