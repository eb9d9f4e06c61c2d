"""Restoring after every single batch, for every source and every packer, gives the same rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import (
    PackedDataset,
    PackedLoader,
    SimilarityOrder,
    Topology,
    WindowConfig,
    sources,
)
from streampack.packing import (
    BestFitCrop,
    BestFitDecreasing,
    Buckets,
    Concat,
    FirstFitDecreasing,
    Packer,
    Pad,
    Seamless,
)
from tests.chats import CHATML, messages, with_template, write_lines
from tests.corpora import byte_tokenizer, write_mds, write_tar
from tests.servers import s3_server

SEQ_LEN = 32
PACKERS: list[Packer] = [
    BestFitDecreasing(seq_len=SEQ_LEN),
    FirstFitDecreasing(seq_len=SEQ_LEN),
    Concat(seq_len=SEQ_LEN),
    Pad(seq_len=SEQ_LEN),
    Buckets(seq_lens=(8, 16, SEQ_LEN)),
    Concat(seq_len=SEQ_LEN, atom=SEQ_LEN // 4),
    Pad(seq_len=SEQ_LEN, atom=2 * SEQ_LEN),
    BestFitCrop(seq_len=SEQ_LEN),
    Seamless(seq_len=SEQ_LEN, mask_repeated=True),
]


def lengths(count: int = 70) -> list[int]:
    values = np.exp(np.random.default_rng(3).normal(2.4, 1.0, count)).astype(int) + 1
    return values.tolist()


def token_documents() -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    return [rng.integers(0, 250, n).astype(np.uint16) for n in lengths()]


def text_documents() -> list[str]:
    return [tokens.astype(np.uint8).tobytes().decode("latin-1") for tokens in token_documents()]


def jsonl(folder: Path) -> Path:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in text_documents()))
    return path


def two_gzip_files(folder: Path) -> list[str]:
    import gzip

    half = len(text_documents()) // 2
    paths = []
    for number, part in enumerate((text_documents()[:half], text_documents()[half:])):
        path = folder / f"{number}.jsonl.gz"
        path.write_bytes(
            gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in part).encode())
        )
        paths.append(str(path))
    return paths


def parquet(folder: Path, column: str, values: Any) -> str:
    path = folder / f"{column}.parquet"
    pq.write_table(pa.table({column: values}), path, row_group_size=13)
    return str(path)


def two_tars(folder: Path, compressed: bool) -> list[str]:
    documents = token_documents()
    half = len(documents) // 2
    suffix = "tar.gz" if compressed else "tar"
    return [
        str(write_tar(folder / f"{number}.{suffix}", part))
        for number, part in enumerate((documents[:half], documents[half:]))
    ]


def mixture(folder: Path, kinds: list[str], **options: Any) -> Any:
    members = {}
    for number, kind in enumerate(kinds):
        (folder / kind).mkdir()
        members[f"{kind}-{number}"] = SOURCES[kind](folder / kind)
    weights = {name: 1 + number for number, name in enumerate(members)}
    return sources.Mixture(members, weights=weights, **{"quantum_documents": 5, **options})


def wide_documents(lane: int, lanes: int) -> list[np.ndarray]:
    return [tokens.astype(np.uint32) + 1000 for tokens in token_documents()[lane::lanes]]


def hf_stream(folder: Path) -> Any:
    datasets = pytest.importorskip("datasets", minversion="2.21")
    paths = []
    for number, part in enumerate(np.array_split(np.array(text_documents(), dtype=object), 2)):
        path = folder / f"{number}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
        paths.append(str(path))
    stream = datasets.load_dataset("json", data_files=paths, split="train", streaming=True)
    return sources.HFStream(stream, text="text", block_documents=9)


def chat_lines(folder: Path) -> str:
    texts = [text[:20] for text in text_documents()]
    pairs = [{"prompt": a, "completion": b} for a, b in zip(texts[:20], texts[20:40], strict=True)]
    talks = [{"messages": messages(a, b)} for a, b in zip(texts[40:46], texts[46:52], strict=True)]
    return write_lines(folder / "chat.jsonl", pairs + talks)


def chat_table(folder: Path) -> str:
    ids = [d.tolist() for d in token_documents()]
    labels = [[-100, *d[1:]] if len(d) > 1 else d for d in ids]
    pq.write_table(pa.table({"input_ids": ids, "labels": labels}), folder / "chat.parquet")
    return str(folder / "chat.parquet")


SMALL = {"block_documents": 9}
SOURCES: dict[str, Callable[[Path], Any]] = {
    "mds-tokens": lambda f: sources.MDS(write_mds(f, token_documents()), column="t", **SMALL),
    "mds-text": lambda f: sources.MDS(write_mds(f, text_documents()), column="t", **SMALL),
    "mds-zstd": lambda f: sources.MDS(
        write_mds(f, token_documents(), compression="zstd"), column="t", **SMALL
    ),
    "tar": lambda f: sources.WebDataset(two_tars(f, False), key="npy", **SMALL),
    "tar-gz": lambda f: sources.WebDataset(two_tars(f, True), key="npy", **SMALL),
    "parquet-tokens": lambda f: sources.Parquet(
        parquet(f, "ids", pa.array([d.tolist() for d in token_documents()])), tokens="ids", **SMALL
    ),
    "parquet-text": lambda f: sources.Parquet(parquet(f, "text", text_documents()), **SMALL),
    "jsonl": lambda f: sources.JSONL(str(jsonl(f)), **SMALL),
    "jsonl-gz": lambda f: sources.JSONL(two_gzip_files(f), **SMALL),
    "chat": lambda f: sources.Chat(chat_lines(f), **SMALL),
    "chat-parquet": lambda f: sources.Chat(chat_table(f), **SMALL),
    "list": lambda f: sources.Iterable(text_documents(), block_documents=9),
    "lane-factory": lambda f: sources.Iterable(
        lambda lane, lanes: token_documents()[lane::lanes], block_documents=9
    ),
    "huggingface": hf_stream,
    "wide-ids": lambda f: sources.Iterable(wide_documents, block_documents=9),
    "mixture": lambda f: mixture(f, ["mds-tokens", "jsonl"]),
}
MIXTURES: dict[str, Callable[[Path], Any]] = {  # every kind of member in one of them
    "mds": lambda f: mixture(f, ["mds-text", "mds-zstd"]),
    "columns": lambda f: mixture(f, ["parquet-tokens", "jsonl"], at_end="stop"),
    "whole-shards": lambda f: mixture(f, ["tar", "tar-gz", "jsonl-gz"], at_end="stop"),
    "wide": lambda f: mixture(f, ["wide-ids", "mds-tokens", "lane-factory"]),
    "conversations": lambda f: mixture(f, ["chat", "tar"]),
    "streams": lambda f: mixture(f, ["huggingface", "parquet-text"]),
    "list": lambda f: mixture(f, ["list", "jsonl"]),
}


def check_restores_everywhere(make: Callable[[], PackedDataset], **options: Any) -> None:
    """Save after every batch, through JSON; restore each and compare all that follows.

    Args:
        make: the dataset, again and again; options: of the loaders.
    """
    loader = PackedLoader(make(), **options)
    batches, states = [], []
    for batch in loader:
        batches.append((batch.lane, batch.step, batch.input_ids, batch.labels, batch.cu_seqlens))
        states.append(json.dumps(loader.state_dict()))
    assert len(batches) > 10
    for i, state in enumerate(states):
        again = PackedLoader(make(), **options)
        again.load_state_dict(json.loads(state))
        rest = list(again)
        assert len(rest) == len(batches) - i - 1
        for batch, expected in zip(rest, batches[i + 1 :], strict=True):
            lane, step, ids, labels, cu_seqlens = expected
            assert (batch.lane, batch.step) == (lane, step)
            assert batch.input_ids.equal(ids)
            assert batch.labels.equal(labels)
            assert batch.cu_seqlens.equal(cu_seqlens)


@pytest.mark.parametrize("packer", PACKERS[:4], ids=lambda packer: type(packer).__name__)
@pytest.mark.parametrize("rows", [1, 2])
def test_restoring_a_balanced_run_after_every_batch_gives_the_same_rest(
    rows: int, packer: Packer, tmp_path: Path
) -> None:
    source = SOURCES["mds-tokens"](tmp_path)
    source.prepare()
    check_restores_everywhere(
        lambda: PackedDataset(
            source,
            packer=packer,
            balance="attention",
            batch_tokens=rows * SEQ_LEN,
            window=WindowConfig(window_tokens=8 * SEQ_LEN),
            eos_id=256,
            lanes=2,
            topology=Topology(),
        )
    )


@pytest.mark.parametrize("packer", PACKERS, ids=lambda packer: type(packer).__name__)
@pytest.mark.parametrize("kind", SOURCES)
def test_restoring_after_every_batch_gives_the_same_rest(
    kind: str, packer: Packer, tmp_path: Path
) -> None:
    check_restores_everywhere(maker(SOURCES[kind](tmp_path), packer))


@pytest.mark.parametrize("kind", MIXTURES)
def test_restoring_mixtures_after_every_batch_gives_the_same_rest(
    kind: str, tmp_path: Path
) -> None:
    check_restores_everywhere(maker(MIXTURES[kind](tmp_path), BestFitDecreasing(seq_len=SEQ_LEN)))


@pytest.mark.parametrize("kind", ["mds-tokens", "tar", "jsonl-gz", "chat", "mixture"])
def test_restoring_a_run_that_stops_at_its_first_dry_lane_stops_there_too(
    kind: str, tmp_path: Path
) -> None:
    make = maker(SOURCES[kind](tmp_path), BestFitDecreasing(seq_len=SEQ_LEN), batch_rows=1)
    check_restores_everywhere(make, end="stop")


@pytest.mark.parametrize("kind", ["mds-text", "parquet-tokens", "chat", "list", "mixture"])
def test_restoring_ordered_documents_after_every_batch_gives_the_same_rest(
    kind: str, tmp_path: Path
) -> None:
    order = SimilarityOrder(order_window_documents=24, first_window_documents=8)
    make = maker(SOURCES[kind](tmp_path), Concat(seq_len=SEQ_LEN), order=order, attention="row")
    check_restores_everywhere(make)


def test_restoring_a_mixture_of_a_bucket_and_a_disk_after_every_batch(tmp_path: Path) -> None:
    write_mds(tmp_path, token_documents())
    with s3_server() as server:
        url = server.put_folder(tmp_path / "mds", "mds")
        remote = sources.MDS(
            url, column="t", storage=sources.Storage(cache_dir=tmp_path / "cache"), **SMALL
        )
        members = {"remote": remote, "local": sources.JSONL(str(jsonl(tmp_path)), **SMALL)}
        mixture = sources.Mixture(members, weights={"remote": 1, "local": 2}, quantum_documents=5)
        check_restores_everywhere(maker(mixture, BestFitDecreasing(seq_len=SEQ_LEN)))


def maker(
    source: Any, packer: Packer, batch_rows: int = 2, **options: Any
) -> Callable[[], PackedDataset]:
    """Makes the same dataset again and again."""
    source.prepare()
    tokenizer = with_template(byte_tokenizer(), CHATML)

    def make() -> PackedDataset:
        return PackedDataset(
            source,
            packer=packer,
            batch_tokens=batch_rows * SEQ_LEN,
            window=WindowConfig(window_tokens=6 * SEQ_LEN),
            tokenizer=None if source.tokenized else tokenizer,
            eos_id=256 if source.tokenized else None,
            vocab_size=2000,
            lanes=source.max_lanes() or 2,
            epochs=1,
            topology=Topology(),
            **options,
        )

    return make
