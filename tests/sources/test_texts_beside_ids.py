"""Records with texts and token ids, as `map(tokenize)` leaves them: which of them is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.errors import ConfigError
from tests.support.corpora import byte_tokenizer

datasets = pytest.importorskip("datasets")
pandas = pytest.importorskip("pandas")

TEXTS = ["one text", "another"]
IDS = [[7, 8, 9], [5, 6]]
COLUMNS = {"text": TEXTS, "input_ids": IDS, "labels": [[-100, 8, 9], [-100, 6]]}


def lines(columns: dict[str, Any]) -> str:
    Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in records(columns)))
    return "a.jsonl"


def parquet(columns: dict[str, Any]) -> str:
    pq.write_table(pa.table(columns), "a.parquet")
    return "a.parquet"


def arrow(columns: dict[str, Any]) -> str:
    feather.write_feather(pa.table(columns), "a.feather")
    return "a.feather"


def records(columns: dict[str, Any]) -> Any:
    return pa.table(columns).to_pylist()


KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "JSON lines": lines,
    "Parquet": parquet,
    "Arrow": arrow,
    "Dataset": datasets.Dataset.from_dict,
    "streaming": lambda columns: datasets.Dataset.from_dict(columns).to_iterable_dataset(),
    "a table": pa.table,
    "a frame": lambda columns: pa.table(columns).to_pandas(),
    "records": records,
    "a generator": lambda columns: lambda: iter(records(columns)),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def packed(source: Any, **settings: Any) -> PackedDataset:
    return PackedDataset(source, seq_len=32, batch_size=1, topology=Topology(), **settings)


def documents(dataset: PackedDataset) -> set[tuple[int, ...]]:
    """The ids of every document, those without loss as -1."""
    found = set()
    for batch in PackedLoader(dataset):
        for number in range(batch.num_documents):
            own = batch.document_ids == number
            ids, labels = batch.input_ids[own].tolist(), batch.labels[own].tolist()
            found.add(
                tuple(i if label != -100 else -1 for i, label in zip(ids, labels, strict=True))
            )
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_which_of_texts_and_ids_are_read_has_to_be_named(kind: str) -> None:
    data = KINDS[kind](COLUMNS)
    with pytest.raises(ConfigError, match="'text' and 'input_ids' may be the documents"):
        packed(data, tokenizer=byte_tokenizer())
    ids = sources.open(data, tokens="input_ids")
    assert documents(packed(ids)) == {(-1, 8, 9), (-1, 6)}
    texts = sources.open(data, text="text")
    assert len(documents(packed(texts, tokenizer=byte_tokenizer()))) == 2
    assert sorted(map(str, read_all_of(texts))) == sorted(TEXTS)


def read_all_of(source: Any) -> list[Any]:
    (lane,) = source.lanes(1, seed=0, epoch=0, shuffle=False)
    from streampack.sources.skips import Skips

    return [text for block, _ in lane.read(None, Skips()) for text in block.texts]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "tokens", [[3, 1], [["one", "text"], ["another"]]], ids=["counts", "words"]
)
def test_what_is_named_like_ids_and_holds_none_leaves_the_texts(kind: str, tokens: Any) -> None:
    data = KINDS[kind]({"tokens": tokens, "text": TEXTS})
    assert len(documents(packed(data, tokenizer=byte_tokenizer()))) == 2
