"""What is no corpus is refused in a sentence, and what the sentence says to pass works."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.errors import ConfigError
from tests.support.corpora import byte_tokenizer
from tests.support.source_contract import read_all

TEXTS = ["one text", "another text"]
IDS = [[1, 2, 3], [4, 5]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    byte_tokenizer().save("tokenizer.json")
    for name in ("web.jsonl", "books.jsonl"):
        Path(name).write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    pq.write_table(pa.table({"url": TEXTS, "body": TEXTS}), "other.parquet")
    Path("chats.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}]}\n')
    Path("table.csv").write_text("text\nx\n")
    Path("empty").mkdir()
    Path("both").mkdir()
    Path("both/a.jsonl").write_text('{"text": "a"}\n')
    Path("both/b.txt").write_text("b")
    Path("note.txt").write_text("note")
    return tmp_path


def pandas_frame(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns)


def hf(kind: str, columns: dict[str, Any]) -> Any:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict(columns)
    if kind == "stream":
        return data.to_iterable_dataset()
    if kind == "splits":
        return datasets.DatasetDict({"train": data})
    if kind == "streamed splits":
        return datasets.IterableDatasetDict({"train": data.to_iterable_dataset()})
    return data


def dataset() -> PackedDataset:
    return PackedDataset(IDS, seq_len=8, topology=Topology())


def loads(data: Any, **options: Any) -> Any:
    return torch.utils.data.DataLoader(data, batch_size=2, **options)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "None": (lambda: None, "cannot be iterated"),
    "a number": (lambda: 5, "cannot be iterated"),
    "a float": (lambda: 0.5, "cannot be iterated"),
    "an object": (object, "cannot be iterated"),
    "a module": (lambda: sys, "cannot be iterated"),
    "a text": (lambda: "a text by itself\nof two lines", "single text"),
    "a short text": (lambda: "hello world", "single text"),
    "an empty text": (lambda: "", "single text"),
    "a missing path": (lambda: "nowhere/a.jsonl", "No file"),
    "a name on the Hub": (lambda: "someone/fineweb", "load_dataset"),
    "a path as bytes": (lambda: b"web.jsonl", "decoded"),
    "a file of another kind": (lambda: "table.csv", "read_csv"),
    "an empty folder": (lambda: Path("empty"), "is empty"),
    "a folder of two kinds": (lambda: "both", "2 kinds"),
    "paths of two kinds": (lambda: ["web.jsonl", "other.parquet"], "2 kinds"),
    "a missing path in a list": (lambda: ["web.jsonl", "nowhere.jsonl"], "No file"),
    "a path among texts": (lambda: ["web.jsonl", "a text of words"], "by itself"),
    "a path among ids": (lambda: [Path("web.jsonl"), [1, 2]], "by itself"),
    "sources in a list": (lambda: [sources.JSONL("web.jsonl")], "Mixture"),
    "lists of paths": (lambda: [["web.jsonl"], ["books.jsonl"]], "neither text nor token ids"),
    "paths that come one by one": (lambda: (p for p in [Path("web.jsonl")]), "list of the paths"),
    "names that come one by one": (lambda: (p for p in ["web.jsonl"]), "can be a path"),
    "names in a column": (lambda: pandas_frame({"p": ["web.jsonl"]})["p"], "can be a path"),
    "a dict of paths": (lambda: {"web": "web.jsonl", "books": "books.jsonl"}, "Mixture"),
    "a dict of weights": (lambda: {"web.jsonl": 0.5, "books.jsonl": 0.5}, "keys"),
    "a dict by number": (lambda: dict(enumerate(TEXTS)), "values"),
    "an empty dict": (dict, "keys"),
    "a record": (lambda: {"text": "one"}, r"\[data\]"),
    "a table as a dict": (lambda: {"text": TEXTS}, "pyarrow.table"),
    "a DatasetDict": (lambda: hf("splits", {"text": TEXTS}), "one split"),
    "an IterableDatasetDict": (lambda: hf("streamed splits", {"text": TEXTS}), "one split"),
    "a dataset without text": (lambda: hf("whole", {"url": TEXTS, "body": TEXTS}), '"url", "body"'),
    "a stream without text": (lambda: hf("stream", {"url": TEXTS, "n": [1, 2]}), "sources.open"),
    "a dataset of chats": (lambda: hf("whole", {"messages": [[], []], "id": [1, 2]}), "Chat"),
    "a frame without text": (lambda: pandas_frame({"a": TEXTS, "b": [1, 2]}), '"a", "b"'),
    "a frame of numbers": (lambda: pandas_frame({"text": [1.5, 2.5]}), "is double"),
    "an empty frame": (lambda: pandas_frame({"text": []}), r"is (double|null)"),
    "a table of both": (lambda: pa.table({"text": TEXTS, "tokens": IDS}), "may be the documents"),
    "an Arrow column": (lambda: pa.chunked_array([TEXTS]), "pyarrow.table"),
    "an Arrow column of ids": (lambda: pa.array(IDS), "pyarrow.table"),
    "a Parquet file": (lambda: pq.ParquetFile("other.parquet"), "cannot be iterated"),
    "ids of one document": (lambda: [1, 2, 3], r"pass \[ids\]"),
    "an array of one document": (lambda: np.arange(5), r"pass \[ids\]"),
    "a tensor of one document": (lambda: torch.arange(5), r"neither text"),
    "an array of floats": (lambda: np.ones((2, 2)), "float64"),
    "an array of three axes": (lambda: np.ones((2, 2, 2), dtype=np.int64), "dimension"),
    "negative ids": (lambda: [[-1, 2]], "negative"),
    "texts as bytes": (lambda: [b"one", b"two"], "Decode"),
    "words": (lambda: [["one", "text"], ["two"]], "Join"),
    "pairs": (lambda: list(enumerate(TEXTS)), "neither text"),
    "pairs with a label": (lambda: [("a text", 1)], "Join"),
    "no documents": (list, "no items"),
    "documents that are None": (lambda: [None, None], "neither text"),
    "a set": (lambda: set(TEXTS), "sorted"),
    "an open file": (lambda: open("web.jsonl"), "Pass its path"),  # noqa: SIM115
    "bytes in memory": (lambda: io.BytesIO(b"x"), "Pass its path"),
    "a class": (lambda: list, "the class list"),
    "a function of a path": (lambda: lambda path: TEXTS, r"\(lane, lanes\)"),
    "a function without a result": (lambda: lambda lane, lanes: None, "returned NoneType"),
    "a loader of texts": (lambda: loads(TEXTS), "neither text"),
    "a loader of tensors": (lambda: loads(torch.ones(4, 3, dtype=torch.int64)), "dimension"),
    "a PackedDataset": (dataset, "neither text"),
    "a PackedLoader": (lambda: PackedLoader(dataset()), "neither text"),
    "a tokenizer": (byte_tokenizer, "cannot be iterated"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_corpus_is_refused_in_three_sentences(name: str, folder: Path) -> None:
    make, words = WRONG[name]
    with pytest.raises(ConfigError, match=words) as raised:
        PackedDataset(make(), seq_len=8, tokenizer="tokenizer.json", topology=Topology())
    error = raised.value
    for sentence in (error.fact, error.consequence, error.remedy):
        assert sentence[0].isupper() or sentence[0] == '"' or sentence.startswith("data ")
        assert sentence.endswith(".")
        assert len(sentence) < 600


@pytest.mark.parametrize(
    ("wrong", "right", "expected"),
    [
        ({"text": "one"}, lambda data: [data], ["one"]),
        ({"text": TEXTS}, pa.table, TEXTS),
        ({"text": TEXTS}, lambda data: data["text"], TEXTS),
        (dict(enumerate(TEXTS)), lambda data: list(data.values()), TEXTS),
        ([1, 2, 3], lambda ids: [ids], [(1, 2, 3)]),
        ([b"a b", b"c d"], lambda data: [text.decode() for text in data], ["a b", "c d"]),
        (set(TEXTS), sorted, sorted(TEXTS)),
        ("one text", lambda text: [text], ["one text"]),
    ],
)
def test_following_the_advice_works(wrong: Any, right: Any, expected: Any) -> None:
    from streampack.sources.infer import as_source

    with pytest.raises(ConfigError):
        as_source(wrong)
    source: Any = as_source(right(wrong))
    assert read_all(source) == expected
