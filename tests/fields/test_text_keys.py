"""Document fields of texts: equal keys from every source, and equal keys of two texts are found."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streampack import BestFitDecreasing, Hook, PackedDataset, PackedLoader, sources
from streampack.documents import text_keys
from streampack.documents.text_keys import TEXT_KEYS, text_key
from streampack.errors import ConfigError, StateError, StreampackError
from streampack.keep_last import KeepLast
from streampack.ordering import GroupBy
from streampack.packing import Separate
from tests.support.corpora import byte_tokenizer, npy_bytes, write_samples
from tests.support.mosaic import streaming_module

NAMES = ["org/a", "org/b", "größe/π", "org/a", "", "org/b", "org/a"]
RECORDS: list[dict[str, Any]] = [
    {"tokens": [1 + i] * (3 + i), "repo": name} for i, name in enumerate(NAMES)
]
FIELDS = {"document_fields": {"repo": "text"}}


def keys_by_token(dataset: PackedDataset) -> dict[int, int]:
    """The key that each document has in the batches, by the document's token."""
    found = {}
    for batch in PackedLoader(dataset):
        keys, ids = batch.document_fields["repo"].numpy(), batch.document_ids.numpy()
        tokens = batch.input_ids.numpy()
        found |= {int(tokens[ids == i][0]): int(key) for i, key in enumerate(keys)}
    return found


EXPECTED = {1 + i: text_key(name) for i, name in enumerate(NAMES)}


def test_records_in_memory_and_json_lines_have_the_keys_of_their_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    for source in (RECORDS, str(path)):
        assert keys_by_token(PackedDataset(source, seq_len=16, **FIELDS)) == EXPECTED


def tar_of_json(folder: Path) -> Any:
    samples = [{"json": json.dumps(record).encode()} for record in RECORDS]
    return sources.WebDataset(write_samples(folder / "a.tar", samples), tokens="json:tokens")


def tar_of_arrays(folder: Path) -> Any:
    samples = [
        {"npy": npy_bytes(record["tokens"]), "repo.npy": npy_bytes(record["repo"])}
        for record in RECORDS
    ]
    return sources.WebDataset(write_samples(folder / "a.tar", samples), tokens="npy")


def tar_of_npz(folder: Path) -> Any:
    samples = []
    for record in RECORDS:
        stream = io.BytesIO()
        np.savez(stream, **record)
        samples.append({"npz": stream.getvalue()})
    return sources.WebDataset(write_samples(folder / "a.tar", samples), tokens="npz:tokens")


def arrow(folder: Path, new: Any = pa.ipc.new_file) -> Any:
    table = pa.Table.from_pylist(RECORDS)
    with new(str(folder / "a.arrow"), table.schema) as file:
        file.write_table(table, max_chunksize=3)
    return sources.Arrow(folder / "a.arrow", tokens="tokens")


def mds(folder: Path) -> Any:
    columns = {"tokens": "ndarray:int32", "repo": "str"}
    with (
        streaming_module("base.format.mds") as module,
        module.MDSWriter(out=str(folder / "mds"), columns=columns) as writer,
    ):
        for record in RECORDS:
            writer.write({**record, "tokens": np.array(record["tokens"], np.int32)})
    return sources.MDS(folder / "mds", tokens="tokens")


FILES = {
    "tar of JSON": tar_of_json,
    "tar of .npy": tar_of_arrays,
    "tar of .npz": tar_of_npz,
    "Arrow file": arrow,
    "Arrow stream": lambda folder: arrow(folder, pa.ipc.new_stream),
    "MDS": mds,
}


@pytest.mark.parametrize("name", FILES)
def test_files_of_other_formats_have_the_keys_of_their_texts(tmp_path: Path, name: str) -> None:
    assert keys_by_token(PackedDataset(FILES[name](tmp_path), seq_len=16, **FIELDS)) == EXPECTED


@pytest.mark.parametrize("streamed", [False, True])
def test_datasets_of_hugging_face_have_the_keys_of_their_texts(streamed: bool) -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(RECORDS)
    data = data.to_iterable_dataset(num_shards=2) if streamed else data
    assert keys_by_token(PackedDataset(data, seq_len=16, lanes=2, **FIELDS)) == EXPECTED


def test_a_column_of_numbers_in_mds_is_not_a_column_of_names(tmp_path: Path) -> None:
    mds(tmp_path)
    source = sources.MDS(tmp_path / "mds", tokens="tokens")
    for fields in ({"tokens": "text"}, {"repo": "int64"}):
        with pytest.raises(ConfigError) as caught:
            list(PackedLoader(PackedDataset(source, seq_len=16, document_fields=fields)))
        assert caught.value.setting == "document_fields"


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
def test_columns_of_parquet_have_the_keys_of_their_texts(tmp_path: Path, kind: str) -> None:
    names = pa.array(NAMES)
    column = names.dictionary_encode() if kind == "dictionary" else names.cast(kind)
    ids = pa.array([record["tokens"] for record in RECORDS], pa.list_(pa.int32()))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"tokens": ids, "repo": column}), path)
    assert keys_by_token(PackedDataset(str(path), seq_len=16, **FIELDS)) == EXPECTED


def test_texts_beside_texts_have_keys_too_and_a_row_without_one_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = ["one two", "three", "four five six", "seven"]
    pq.write_table(pa.table({"text": texts, "repo": ["org/a", "org/b", None, "org/a"]}), path)
    dataset = PackedDataset(
        str(path), tokenizer=byte_tokenizer(), seq_len=16, on_error="skip", **FIELDS
    )
    loader = PackedLoader(dataset)
    found = np.concatenate([batch.document_fields["repo"].numpy() for batch in loader])
    assert sorted(found) == sorted(map(text_key, ["org/a", "org/b", "org/a"]))


@given(st.lists(st.none() | st.text(max_size=3), max_size=20), st.integers(0, 5))
def test_a_column_has_the_key_of_each_of_its_texts(texts: list[Any], start: int) -> None:
    array = pa.array(texts, pa.string())
    for column in (array, array.dictionary_encode(), array.cast(pa.large_string())):
        found = TEXT_KEYS.of_column(column.slice(start)).tolist()
        expected = [text and text_key(text) for text in texts[start:]]
        assert [key if text else text for key, text in zip(found, texts[start:], strict=True)] == (
            expected
        )


def test_texts_that_a_map_makes_become_keys() -> None:
    def named(documents: Any, seeds: Any) -> Any:
        names = np.array([NAMES[int(documents.document(i)[0]) - 1] for i in range(len(documents))])
        return replace(documents, document_fields={"repo": names})

    ids = [record["tokens"] for record in RECORDS]
    dataset = PackedDataset(ids, seq_len=16, map=Hook("named", named), **FIELDS)
    assert keys_by_token(dataset) == EXPECTED


def test_group_by_puts_documents_of_one_name_next_to_each_other() -> None:
    records = [{"tokens": [i % 7 + 1], "repo": f"org/{i % 7}"} for i in range(70)]
    dataset = PackedDataset(
        records, seq_len=10, batch_size=1, lanes=1, order=GroupBy("repo"), attention="row", **FIELDS
    )
    for batch in PackedLoader(dataset):
        assert len(set(batch.input_ids.ravel().tolist())) == 1


def test_documents_of_different_names_share_no_row() -> None:
    packer = BestFitDecreasing(seq_len=16, limits=[Separate("repo")])
    for batch in PackedLoader(PackedDataset(RECORDS, packer=packer, **FIELDS)):
        for tokens, ids in zip(batch.input_ids, batch.document_ids, strict=True):
            assert len({NAMES[token - 1] for token in tokens[ids >= 0].tolist()}) <= 1


def test_two_texts_with_one_key_are_an_error_that_names_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digest = text_keys._digest
    monkeypatch.setattr(text_keys, "_digest", lambda data: digest(data) % 5)  # 63 bits never meet
    monkeypatch.setattr(text_keys, "_texts", KeepLast(10))
    records = [{"tokens": [7], "repo": f"name-{i}"} for i in range(6)]
    with pytest.raises(ConfigError) as caught:
        list(PackedLoader(PackedDataset(records, seq_len=16, **FIELDS)))
    assert caught.value.setting == "document_fields"
    assert str(caught.value).count("name-") == 2


def test_a_process_remembers_a_bounded_number_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_keys, "_texts", KeepLast(3))
    for name in ("a", "b", "c", "a", "d"):
        text_key(name)
    assert list(text_keys._texts.values()) == [b"c", b"a", b"d"]


@pytest.mark.parametrize("value", [7, None, ["a"]])
def test_a_value_that_is_not_text_breaks_its_document(value: Any) -> None:
    records = [*RECORDS, {"tokens": [9], "repo": value}]
    with pytest.raises(StreampackError) as caught:
        list(PackedLoader(PackedDataset(records, seq_len=16, **FIELDS)))
    assert "repo" in str(caught.value)


def test_texts_in_a_field_of_numbers_are_refused_with_advice_that_works() -> None:
    with pytest.raises(StreampackError) as caught:
        list(PackedLoader(PackedDataset(RECORDS, seq_len=16, document_fields={"repo": "int64"})))
    assert '"text"' in str(caught.value)
    with pytest.raises(ConfigError):
        PackedDataset(RECORDS, seq_len=16, token_fields={"repo": "text"})


def test_a_state_of_a_field_of_numbers_is_refused_for_texts() -> None:
    numbers = [{**record, "repo": text_key(record["repo"])} for record in RECORDS]
    loader = PackedLoader(PackedDataset(numbers, seq_len=16, document_fields={"repo": "int64"}))
    other = PackedLoader(PackedDataset(numbers, seq_len=16, **FIELDS))
    next(iter(loader))
    with pytest.raises(StateError) as caught:
        other.load_state_dict(loader.state_dict())
    assert caught.value.setting == "fields.document.repo"
