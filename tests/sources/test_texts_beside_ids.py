"""Records with texts and token ids, as `map(tokenize)` leaves them: which of them is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.errors import ConfigError, ContentError
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
    from streampack.reading.skips import Skips

    return [text for block, _ in lane.read(None, Skips()) for text in block.texts]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "tokens", [[3, 1], [["one", "text"], ["another"]]], ids=["counts", "words"]
)
def test_what_is_named_like_ids_and_holds_none_leaves_the_texts(kind: str, tokens: Any) -> None:
    data = KINDS[kind]({"tokens": tokens, "text": TEXTS})
    assert len(documents(packed(data, tokenizer=byte_tokenizer()))) == 2


@pytest.mark.parametrize("kind", ["Dataset", "a frame", "records", "a table", "streaming"])
def test_the_advice_for_unknown_fields_works(kind: str) -> None:
    data = KINDS[kind]({"body": TEXTS, "url": TEXTS})
    with pytest.raises(ConfigError) as raised:
        packed(data, tokenizer=byte_tokenizer())
    advised = re.search(r"sources\.open\(.*?\)", raised.value.remedy)
    assert advised is not None
    named = eval(advised[0], {"sources": sources, "data": data})
    assert len(documents(packed(named, tokenizer=byte_tokenizer()))) == 2


@pytest.mark.parametrize(
    "record",
    [
        {"__key__": "000", "__url__": "a.tar", "txt": "hello"},
        {"__key__": "000", "txt": "hello", "json": {"lang": "en"}},
        {"__key__": "000", "text": "hello", "url": "x"},
    ],
)
def test_records_of_webdataset_are_read_by_their_text(record: dict[str, Any]) -> None:
    assert read_all_of(sources.Iterable([record])) == ["hello"]


def test_names_of_a_pipeline_are_never_advised() -> None:
    data = [{"__key__": "000", "caption": "hello", "title": "a"}]
    with pytest.raises(ConfigError) as raised:
        sources.Iterable(data)
    assert "__key__" not in str(raised.value)
    advised = re.search(r"sources\.open\(.*?\)", raised.value.remedy)
    assert advised is not None
    assert read_all_of(eval(advised[0], {"sources": sources, "data": data})) == ["hello"]


@pytest.mark.parametrize("text", ["hello</s>", "<p>one</p>", 'say/"it"', "a|b/c"])
def test_a_text_with_a_slash_among_marks_is_no_path(text: str) -> None:
    assert read_all_of(sources.open([text])) == [text]


@pytest.mark.parametrize("path", ["data/train", "a.jsonl", "/data/corpus", "x.bin"])
def test_a_list_of_paths_that_do_not_exist_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="No file"):
        sources.open([path])


@pytest.mark.parametrize(
    ("values", "words"),
    [([1.0, 2.0], "wrong id"), ([True, False], "true or false"), (["a", "b"], "wrong id")],
)
def test_tokens_that_are_no_ids_are_called_so(values: list[Any], words: str) -> None:
    with pytest.raises(ContentError, match=f'{words} in "tokens"'):
        documents(packed(lines({"tokens": [values]})))


def test_answers_as_texts_are_not_called_conversations() -> None:
    data = [{"prompt": "1 + 1 = ", "completion": "2"}]
    with pytest.raises(ConfigError, match=r'With "completion" they are what sources\.Chat reads'):
        packed(data, tokenizer=byte_tokenizer())
    assert len(documents(packed(sources.Chat(data), tokenizer=byte_tokenizer()))) == 1


def test_messages_as_json_are_refused_and_following_the_advice_works() -> None:
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    data = [{"messages": json.dumps(talk)}]
    with pytest.raises(ContentError, match=r"json\.loads"):
        documents(packed(sources.Chat(data, template=template), tokenizer=byte_tokenizer()))
    loaded = [{"messages": json.loads(record["messages"])} for record in data]
    assert len(
        documents(packed(sources.Chat(loaded, template=template), tokenizer=byte_tokenizer()))
    )
