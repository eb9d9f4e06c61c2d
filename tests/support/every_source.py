"""The same small corpus in every format, and mixtures of them; and every packer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.decomposition import Decomposition
from streampack import sources
from streampack.packers.kinds import packer_kinds, with_rows
from streampack.packing import Concat, Packer, Pad, Seamless
from tests.support.chats import messages, write_lines
from tests.support.corpora import write_mds, write_tar
from tests.support.flat_files import write_datatrove, write_megatron

SEQ_LEN = 32
PACKERS: list[Packer] = [
    *(with_rows(kind, SEQ_LEN) for kind in packer_kinds().values()),
    Decomposition(seq_lens=(8, 16, SEQ_LEN)),
    Concat(seq_len=SEQ_LEN, atom=SEQ_LEN // 4),
    Pad(seq_len=SEQ_LEN, atom=2 * SEQ_LEN),
    Seamless(seq_len=SEQ_LEN, mask_repeated=True),
]


def lengths(count: int = 52) -> list[int]:
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


def json_array(folder: Path) -> str:
    records = [{"id": i, "text": text} for i, text in enumerate(text_documents())]
    (folder / "texts.json").write_text(json.dumps(records, indent=2))
    return str(folder / "texts.json")


def text_files(folder: Path) -> list[str]:
    paths = [folder / f"{number:03}.txt" for number in range(len(text_documents()))]
    for path, text in zip(paths, text_documents(), strict=True):
        path.write_bytes(text.replace("\0", "0").encode())
    return [str(path) for path in paths]


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


def delta(folder: Path) -> str:
    """A Delta table of two files, by a log of one version."""
    fields = [{"name": "text", "type": "string", "nullable": True, "metadata": {}}]
    metadata = {
        "id": "documents",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {},
    }
    log: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata},
    ]
    (folder / "_delta_log").mkdir()
    half = len(text_documents()) // 2
    for number, part in enumerate((text_documents()[:half], text_documents()[half:])):
        path = folder / f"{number}.parquet"
        pq.write_table(pa.table({"text": part}), path, row_group_size=13)
        added = {"path": path.name, "size": path.stat().st_size, "partitionValues": {}}
        log.append({"add": {**added, "modificationTime": 0, "dataChange": True}})
    lines = "".join(json.dumps(action) + "\n" for action in log)
    (folder / "_delta_log" / f"{0:020}.json").write_text(lines)
    return str(folder)


def arrow(folder: Path, table: pa.Table, writer: Any) -> str:
    with writer(folder / "a.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=13)
    return str(folder / "a.arrow")


def two_tars(folder: Path, compressed: bool) -> list[str]:
    documents = token_documents()
    half = len(documents) // 2
    suffix = "tar.gz" if compressed else "tar"
    return [
        str(write_tar(folder / f"{number}.{suffix}", part))
        for number, part in enumerate((documents[:half], documents[half:]))
    ]


def ended_documents() -> np.ndarray:
    return np.concatenate([np.append(tokens, 250) for tokens in token_documents()])


def end_token_files(folder: Path) -> list[str]:
    paths = [str(folder / f"{number}.npy") for number in range(2)]
    for path, part in zip(paths, np.array_split(ended_documents(), 2), strict=True):
        np.save(path, part.astype(np.uint16))
    return paths


def raw_tokens(folder: Path) -> str:
    ended_documents().astype("<i4").tofile(folder / "a.bin")
    return str(folder / "a.bin")


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
    return sources.HFStream(stream, text="text", reading=sources.ReadOptions(block_documents=9))


def chat_records() -> list[dict[str, Any]]:
    texts = [text[:20] for text in text_documents()]
    pairs = [{"prompt": a, "completion": b} for a, b in zip(texts[:20], texts[20:40], strict=True)]
    talks = [{"messages": messages(a, b)} for a, b in zip(texts[40:46], texts[46:52], strict=True)]
    return pairs + talks


def chat_lines(folder: Path) -> str:
    return write_lines(folder / "chat.jsonl", chat_records())


def chat_table(folder: Path) -> str:
    ids = [d.tolist() for d in token_documents()]
    labels = [[-100, *d[1:]] if len(d) > 1 else d for d in ids]
    pq.write_table(pa.table({"input_ids": ids, "labels": labels}), folder / "chat.parquet")
    return str(folder / "chat.parquet")


SMALL = {"reading": sources.ReadOptions(block_documents=9)}
SOURCES: dict[str, Callable[[Path], Any]] = {
    "mds-tokens": lambda f: sources.MDS(write_mds(f, token_documents()), **SMALL),
    "mds-text": lambda f: sources.MDS(write_mds(f, text_documents()), **SMALL),
    "mds-zstd": lambda f: sources.MDS(write_mds(f, token_documents(), compression="zstd"), **SMALL),
    "tar": lambda f: sources.WebDataset(two_tars(f, False), tokens="npy", **SMALL),
    "tar-gz": lambda f: sources.WebDataset(two_tars(f, True), tokens="npy", **SMALL),
    "parquet-tokens": lambda f: sources.Parquet(
        parquet(f, "ids", pa.array([d.tolist() for d in token_documents()])), tokens="ids", **SMALL
    ),
    "parquet-text": lambda f: sources.Parquet(parquet(f, "text", text_documents()), **SMALL),
    "delta": lambda f: sources.Delta(delta(f), text="text", **SMALL),
    "arrow-stream": lambda f: sources.Arrow(
        arrow(f, pa.table({"ids": [d.tolist() for d in token_documents()]}), pa.ipc.new_stream),
        tokens="ids",
        **SMALL,
    ),
    "arrow-file": lambda f: sources.Arrow(
        arrow(f, pa.table({"text": text_documents()}), pa.ipc.new_file), **SMALL
    ),
    "table": lambda f: sources.Table(
        pa.table({"ids": [d.tolist() for d in token_documents()]}), tokens="ids", **SMALL
    ),
    "jsonl": lambda f: sources.JSONL(str(jsonl(f)), **SMALL),
    "jsonl-gz": lambda f: sources.JSONL(two_gzip_files(f), **SMALL),
    "json-array": lambda f: sources.JSONL(json_array(f), **SMALL),
    "text-files": lambda f: sources.TextFiles(text_files(f), **SMALL),
    "megatron": lambda f: sources.MegatronIndexed(
        write_megatron(f / "a", [np.array_split(d, 2) for d in token_documents()], "int32"), **SMALL
    ),
    "npy": lambda f: sources.Tokens(end_token_files(f), eos_id=250, **SMALL),
    "raw": lambda f: sources.Tokens(raw_tokens(f), dtype="int32", eos_id=250, **SMALL),
    "datatrove": lambda f: sources.Tokens(
        write_datatrove(f / "a.ds", token_documents()), dtype="uint16", **SMALL
    ),
    "chat": lambda f: sources.Chat(chat_lines(f), **SMALL),
    "chat-parquet": lambda f: sources.Chat(chat_table(f), **SMALL),
    "chat-list": lambda f: sources.Chat(chat_records(), **SMALL),
    "chat-generator": lambda f: sources.Chat(
        lambda lane, lanes: iter(chat_records()[lane::lanes]), **SMALL
    ),
    "list": lambda f: sources.Items(text_documents(), **SMALL),
    "iterable": lambda f: sources.Iterable(lambda: iter(text_documents()), **SMALL),
    "lane-factory": lambda f: sources.Iterable(
        lambda lane, lanes: token_documents()[lane::lanes], **SMALL
    ),
    "huggingface": hf_stream,
    "wide-ids": lambda f: sources.Iterable(wide_documents, **SMALL),
    "mixture": lambda f: mixture(f, ["mds-tokens", "jsonl"]),
}
MIXTURES: dict[str, Callable[[Path], Any]] = {  # every kind of member in one of them
    "mds": lambda f: mixture(f, ["mds-text", "mds-zstd"]),
    "columns": lambda f: mixture(f, ["parquet-tokens", "jsonl"], at_end="stop"),
    "compressed": lambda f: mixture(f, ["tar", "tar-gz", "jsonl-gz"], at_end="stop"),
    "wide": lambda f: mixture(f, ["wide-ids", "mds-tokens", "lane-factory"]),
    "conversations": lambda f: mixture(f, ["chat", "tar"]),
    "streams": lambda f: mixture(f, ["huggingface", "parquet-text"]),
    "list": lambda f: mixture(f, ["list", "jsonl"]),
    "iterable": lambda f: mixture(f, ["iterable", "list"]),
}
