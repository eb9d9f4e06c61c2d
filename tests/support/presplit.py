"""Kinds of data, whole or as one of two ranks would split them before streampack divides them."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
from datasets.distributed import split_dataset_by_node
from torch.utils.data import IterableDataset, Subset

from streampack import PackedDataset, sources
from streampack.documents.blocks import Documents, make_origin
from streampack.sources.base import LaneReader, Source
from tests.support.corpora import byte_tokenizer, write_tar
from tests.support.memory_source import MemorySource

N = 120
IDS = [[i + 1] * (1 + i % 5) for i in range(N)]
TEXTS = [f"document {i}" for i in range(N)]
CHATS = [
    {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}]}
    for text in TEXTS
]
TEMPLATE = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
Kind = Callable[[slice, Path], Any]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__.replace("_", " ")] = function
    return function


class Augmented:
    """A map-style dataset with random tokens after each document, which it draws in `seeded`."""

    def __init__(self, documents: list[list[int]], draw: Callable[[], float]) -> None:
        self.documents, self.draw = documents, draw

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> list[int]:
        return [*self.documents[index], 1 + int(250 * self.draw())]


class Iterated(IterableDataset[list[int]]):
    def __init__(self, documents: list[list[int]]) -> None:
        self.documents = documents

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.documents)


def jsonl(path: Path, part: slice) -> Path:
    path.write_text("".join(json.dumps({"ids": [1 + i] * 3}) + "\n" for i in range(N)[part]))
    return path


def own_folder(folder: Path, part: slice) -> Path:
    """A folder on a disk of the rank's own."""
    own = folder / f"disk-{os.getpid()}-{part.start}-{part.step}"
    own.mkdir(exist_ok=True)
    return own


def numbered_files(folder: Path, part: slice) -> list[str]:
    return [str(folder / f"{i}.jsonl") for i in range(8)[part]]


# ---------------------------------------------------------------------- in memory


@kind
def lists(part: slice, folder: Path) -> Any:
    return IDS[part]


@kind
def halves(part: slice, folder: Path) -> Any:
    return IDS if part.step is None else IDS[: N // 2] if part.start == 0 else IDS[N // 2 :]


@kind
def unequal_parts(part: slice, folder: Path) -> Any:
    return IDS if part.step is None else IDS[:50] if part.start == 0 else IDS[50:]


@kind
def arrays(part: slice, folder: Path) -> Any:
    return [np.array(ids, np.uint16) for ids in IDS[part]]


@kind
def pairs_of_arrays(part: slice, folder: Path) -> Any:
    ids = [[i + 1] * 3 for i in range(N)[part]]
    return np.concatenate(ids), np.arange(len(ids) + 1) * 3


@kind
def documents(part: slice, folder: Path) -> Any:
    ids = [np.full(3, i + 1, np.uint16) for i in range(N)[part]]
    return Documents.from_arrays(ids, make_origin(0, np.arange(len(ids))))


@kind
def records(part: slice, folder: Path) -> Any:  # a field that is a rank's own matters to nobody
    return [{"input_ids": ids, "process": os.getpid()} for ids in IDS[part]]


@kind
def tables(part: slice, folder: Path) -> Any:
    return pa.table({"input_ids": IDS[part]})


@kind
def data_frames(part: slice, folder: Path) -> Any:
    return pandas.DataFrame({"input_ids": IDS[part]})


@kind
def texts(part: slice, folder: Path) -> Any:
    return TEXTS[part]


@kind
def chats(part: slice, folder: Path) -> Any:
    return sources.Chat(CHATS[part], template=TEMPLATE)


@kind
def tables_of_chats(part: slice, folder: Path) -> Any:
    return sources.Chat(pa.Table.from_pylist(CHATS[part]), template=TEMPLATE)


@kind
def mixtures(part: slice, folder: Path) -> Any:
    return sources.Mixture({"all": IDS, "some": IDS[part]}, weights={"all": 1, "some": 1})


@kind
def subsets(part: slice, folder: Path) -> Any:
    return Subset(IDS, range(N)[part])  # type: ignore[arg-type]


@kind
def augmented_by_global_states(part: slice, folder: Path) -> Any:
    return Augmented(IDS[part], random.random)


@kind
def orders(part: slice, folder: Path) -> Any:
    return random.Random(part.start or 0).sample(IDS, N)


# ---------------------------------------------------------------------- datasets of Hugging Face


@kind
def nodes_of_a_dataset(part: slice, folder: Path) -> Any:
    whole = datasets.Dataset.from_dict({"input_ids": IDS})
    return whole if part.step is None else split_dataset_by_node(whole, part.start, 2)


@kind
def transformed_datasets(part: slice, folder: Path) -> Any:
    whole = datasets.Dataset.from_dict({"input_ids": IDS})
    own = whole if part.step is None else split_dataset_by_node(whole, part.start, 2)
    rng = np.random.default_rng()
    return own.with_transform(lambda rows: {"ids": [[*ids, int(rng.integers(5, 99))] for ids in
                                                    rows["input_ids"]]})  # fmt: skip


@kind
def files_of_a_stream(part: slice, folder: Path) -> Any:
    return datasets.load_dataset(
        "json",
        data_files=numbered_files(folder, part),
        split="train",
        streaming=True,
        cache_dir=str(folder / "cache"),
    )


@kind
def shards_of_a_stream(part: slice, folder: Path) -> Any:
    whole = files_of_a_stream(slice(None), folder)
    return whole if part.step is None else whole.shard(2, part.start)


# ---------------------------------------------------------------------- iterables


@kind
def generators(part: slice, folder: Path) -> Any:
    return (ids for ids in IDS[part])


@kind
def generators_of_records(part: slice, folder: Path) -> Any:  # the first is not looked at before
    return sources.Iterable(({"t": text} for text in TEXTS[part]), text="t")


@kind
def functions(part: slice, folder: Path) -> Any:
    return lambda: iter(IDS[part])


@kind
def functions_of_lanes(part: slice, folder: Path) -> Any:
    return lambda lane, lanes: IDS[part][lane::lanes]


@kind
def iterable_datasets(part: slice, folder: Path) -> Any:
    return Iterated(IDS[part])


@kind
def own_shards(part: slice, folder: Path) -> Any:
    return MemorySource([[np.array(ids, np.uint16) for ids in IDS[part]]])


class OwnSource(Source):
    """A source that only has the members that it must have."""

    tokenized = True

    def __init__(self, documents: list[list[int]]) -> None:
        self.documents = documents

    def prepare(self) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {"kind": "own"}

    def lanes(self, n: int, *, seed: int, epoch: int, shuffle: bool) -> list[LaneReader]:
        return [OwnLane(self.documents[lane::n], lane) for lane in range(n)]


@dataclass
class OwnLane(LaneReader):
    documents: list[list[int]]
    lane: int

    def read(self, cursor: Any, skips: Any) -> Iterator[tuple[Documents, Any]]:
        for i in range(cursor["at"] if cursor else 0, len(self.documents)):
            origin = make_origin(self.lane, np.array([i]))
            yield (
                Documents.from_arrays([np.array(self.documents[i], np.uint16)], origin),
                {"at": i + 1},
            )


@kind
def own_sources(part: slice, folder: Path) -> Any:
    return OwnSource(IDS[part])


# ---------------------------------------------------------------------- files


@kind
def files(part: slice, folder: Path) -> Any:
    return sources.open(numbered_files(folder, part), tokens="ids")


@kind
def equal_names(part: slice, folder: Path) -> Any:
    part = slice(N // 2) if part.step is None else part
    return sources.open(str(jsonl(own_folder(folder, part) / "part.jsonl", part)), tokens="ids")


@kind
def compressed(part: slice, folder: Path) -> Any:
    """Of its own time of compression, and of a size that tells nothing."""
    path = own_folder(folder, part) / "part.jsonl.gz"
    ids = [1 + i for i in range(N)[slice(N // 2) if part.step is None else part]]
    lines = "".join(json.dumps({"ids": [i] * 3}) + "\n" for i in ids).encode()
    path.write_bytes(gzip.compress(lines, 0, mtime=os.getpid()))
    return sources.open(str(path), tokens="ids")


@kind
def tars(part: slice, folder: Path) -> Any:
    part = slice(N // 2) if part.step is None else part
    path = own_folder(folder, part) / "part.tar"
    return sources.open(str(write_tar(path, [np.full(3, i, np.uint16) for i in range(N)[part]])))


@kind
def parquet(part: slice, folder: Path) -> Any:
    path = own_folder(folder, part) / "part.parquet"
    part = slice(N // 2) if part.step is None else part
    pq.write_table(
        pa.table({"ids": [[1 + i] * 3 for i in range(N)[part]]}), path, use_dictionary=False
    )
    return sources.open(str(path), tokens="ids")


def rarely(folder: Path) -> Any:
    rng = np.random.default_rng(os.getpid())
    return Augmented(IDS, lambda: rng.random() * (rng.random() < 0.5))


#: Whole data that differ between ranks in a way that is legitimate.
LEGITIMATE: dict[str, Callable[[Path], Any]] = {
    "augmented by generators of ranks": lambda folder: Augmented(
        IDS, np.random.default_rng().random
    ),
    "augmented in half": rarely,
}


def dataset_of(source: Any, **options: Any) -> PackedDataset:
    """A run of this data, with a tokenizer for texts."""
    return PackedDataset(source, seq_len=16, batch_size=2, tokenizer=byte_tokenizer(), **options)
