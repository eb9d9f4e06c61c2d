"""records=: a function of one record, which replaces a file that is rewritten."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import Hook, PackedDataset, PackedLoader, Topology, sources
from streampack.errors import ConfigError, ContentError, StateError
from streampack.sources.error_policy import ErrorPolicy
from tests.support.corpora import byte_tokenizer
from tests.support.source_contract import assert_source_contract, read_all

#: As in dolly.
RECORDS = [
    {"instruction": f"ask {i}", "context": "given" * (i % 3), "response": f"say {i}", "n": [i, 1]}
    for i in range(60)
]


def as_messages(record: dict[str, Any]) -> dict[str, Any] | None:
    if record["instruction"] == "ask 7":
        return None
    asked = f"{record['instruction']}\n{record['context']}"
    turns = [("user", asked), ("assistant", record["response"])]
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


def as_text(record: dict[str, Any]) -> dict[str, Any] | None:
    return {"text": f"{record.pop('instruction')}: {record['response']}"} if record else None


def as_ids(record: dict[str, Any]) -> dict[str, Any]:
    return {"input_ids": record["n"], "labels": [-100, record["n"][1]]}


def broken(record: dict[str, Any]) -> Any:
    if record["instruction"] == "ask 3":
        raise KeyError("question")
    return as_text(record) if record["instruction"] != "ask 4" else "a text"


def write_lines(folder: Path) -> str:
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return str(folder / "a.jsonl")


def write_array(folder: Path) -> str:
    (folder / "a.json").write_text(json.dumps(RECORDS, indent=1))
    return str(folder / "a.json")


def write_parquet(folder: Path) -> str:
    pq.write_table(pa.Table.from_pylist(RECORDS), folder / "a.parquet", row_group_size=9)
    return str(folder / "a.parquet")


def write_arrow(folder: Path) -> str:
    table = pa.Table.from_pylist(RECORDS)
    with pa.ipc.new_file(str(folder / "a.arrow"), table.schema) as file:
        file.write_table(table, max_chunksize=9)
    return str(folder / "a.arrow")


DATA: dict[str, Callable[[Path], Any]] = {
    "lines": write_lines,
    "array": write_array,
    "parquet": write_parquet,
    "arrow": write_arrow,
    "list": lambda folder: RECORDS,
    "table": lambda folder: pa.Table.from_pylist(RECORDS),
    "function": lambda folder: lambda: iter(RECORDS),
    "generator": lambda folder: (record for record in RECORDS),
}


def texts() -> list[str]:
    return [f"{record['instruction']}: {record['response']}" for record in RECORDS]


@pytest.mark.parametrize("kind", DATA)
def test_texts_of_a_function_are_read_from_any_format(kind: str, tmp_path: Path) -> None:
    data = DATA[kind](tmp_path)
    reading = sources.ReadOptions(block_documents=7)
    source = sources.open(data, records=as_text, reading=reading)
    assert source.describe()["record_function"].endswith("test_record_functions.as_text")
    if kind in ("function", "generator"):
        assert [t for b, _ in source.lanes(1, seed=0, epoch=0, shuffle=False)[0].read(
            None, ErrorPolicy()) for t in b.texts] == texts()  # type: ignore[union-attr]  # fmt: skip
    else:
        assert_source_contract(source, texts(), lane_counts=[1, 3])
    assert RECORDS[0]["instruction"] == "ask 0"  # the function gets copies


@pytest.mark.parametrize("kind", DATA)
def test_conversations_of_a_function_are_trained_on_and_counted(kind: str, tmp_path: Path) -> None:
    def loader(state: Any = None) -> PackedLoader:
        source = sources.Chat(DATA[kind](tmp_path), records=as_messages, template=TEMPLATE)
        dataset = PackedDataset(
            source, seq_len=64, batch_size=2, tokenizer=byte_tokenizer(), topology=Topology()
        )
        return PackedLoader(dataset)

    whole = loader()
    batches, states = [], []
    for batch in whole:
        batches.append(batch.input_ids.tolist())
        states.append(whole.state_dict())
    assert whole.metrics().documents == len(RECORDS) - 1
    assert whole.metrics().empty_documents == 1
    if kind != "generator":
        resumed = loader()
        resumed.load_state_dict(states[3])
        assert [batch.input_ids.tolist() for batch in resumed] == batches[4:]


TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def test_ids_and_labels_of_a_function_are_read(tmp_path: Path) -> None:
    for data in (write_parquet(tmp_path), RECORDS):
        source = sources.open(data, records=as_ids)
        assert source.tokenized
        assert sorted(read_all(source)) == sorted(tuple(r["n"]) for r in RECORDS)
        lane = source.lanes(1, seed=0, epoch=0, shuffle=False)[0]
        masks = [block.loss_mask for block, _ in lane.read(None, ErrorPolicy())]  # type: ignore[union-attr]
        assert np.concatenate(masks).reshape(-1, 2).tolist() == [[False, True]] * 60


def test_the_record_has_the_keys_of_its_path_and_a_result_keeps_declared_fields(
    tmp_path: Path,
) -> None:
    for i, lang in enumerate(("en", "fr")):
        folder = tmp_path / f"lang={lang}" / f"year=202{i}"
        folder.mkdir(parents=True)
        write_parquet(folder)

    def with_path(record: dict[str, Any]) -> dict[str, Any]:
        return {"text": f"{record['lang']} {record['year']}"}

    source = sources.open(tmp_path, records=Hook("path", with_path))
    assert read_all(source) == ["en 2020"] * 60 + ["fr 2021"] * 60
    dataset = PackedDataset(
        source, seq_len=16, tokenizer=byte_tokenizer(), document_fields={"year": "int32"},
        topology=Topology(),
    )  # fmt: skip
    years = {
        year for batch in PackedLoader(dataset) for year in batch.document_fields["year"].tolist()
    }
    assert years == {2020, 2021}


def test_an_error_of_the_function_names_the_record_and_follows_on_error(tmp_path: Path) -> None:
    source = sources.open(write_parquet(tmp_path), records=broken)
    with pytest.raises(ContentError, match="KeyError") as caught:
        read_all(source)
    assert str(caught.value.document).startswith("row 3 of")
    skips = ErrorPolicy("skip")
    assert read_all(source, skips) == [*texts()[:3], *texts()[5:]]
    assert skips.counts.skipped == 2


def nothing(record: dict[str, Any]) -> None:
    return None


def other_shape(record: dict[str, Any]) -> dict[str, Any]:
    return {"question": "a"}


@pytest.mark.parametrize(
    "function",
    [lambda record: record, nothing, str.lower, 3, lambda a, b: a, other_shape],
)
def test_a_function_that_cannot_work_is_refused(function: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        sources.Chat(RECORDS, records=function).prepare()
    assert caught.value.setting == "records" or caught.value.document


def test_a_state_of_another_function_is_refused() -> None:
    def loader(name: str) -> PackedLoader:
        source = sources.open(RECORDS, records=Hook(name, as_text))
        return PackedLoader(
            PackedDataset(source, seq_len=16, tokenizer=byte_tokenizer(), topology=Topology())
        )

    with pytest.raises(StateError) as caught:
        loader("b").load_state_dict(loader("a").state_dict())
    assert caught.value.setting == "source.record_function"


def test_a_source_with_a_function_can_be_sent_to_workers(tmp_path: Path) -> None:
    source = sources.open(write_lines(tmp_path), records=as_text)
    assert read_all(pickle.loads(pickle.dumps(source))) == texts()


@pytest.mark.parametrize("setting", ["map", "filter"])
def test_a_hook_of_one_argument_names_records(setting: str) -> None:
    for function in (str.lower, Hook("a", lambda document: document)):
        with pytest.raises(ConfigError) as caught:
            PackedDataset([[1]], seq_len=8, **{setting: function})  # type: ignore[arg-type]
        assert caught.value.setting == setting
        assert "records=function" in caught.value.remedy
