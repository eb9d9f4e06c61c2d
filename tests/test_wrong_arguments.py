"""Arguments of the wrong kind, as newcomers write them, and what the errors advise."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from streampack import (
    ConfigError,
    ContentError,
    Hook,
    PackedDataset,
    PackedLoader,
    SimilarityOrder,
    StateError,
    Topology,
    WindowConfig,
    merge_states,
    pack,
    packing,
    sources,
)
from tests.support.corpora import byte_tokenizer

DOCUMENTS = [[1, 2, 3]] * 20
ALONE: dict[str, Any] = {"seq_len": 16, "topology": Topology()}


@pytest.mark.parametrize("name", ["shuffle", "provenance"])
@pytest.mark.parametrize("value", ["no", "false", 0, 1, None])
def test_what_is_neither_true_nor_false_does_not_count_as_true(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is .*Pass {name}=True or False"):
        PackedDataset(DOCUMENTS, **ALONE, **{name: value})
    PackedDataset(DOCUMENTS, **ALONE, **{name: np.bool_(False)})


@pytest.mark.parametrize("name", ["filter", "map"])
def test_a_plain_function_is_no_hook(name: str) -> None:
    def function(documents: Any, seeds: Any) -> Any:
        return documents if name == "map" else np.ones(len(documents), dtype=bool)

    with pytest.raises(ConfigError, match=rf'{name}=Hook\("a-name", function\)'):
        PackedDataset(DOCUMENTS, **ALONE, **{name: function})
    following = {name: Hook("a-name", function)}
    assert next(iter(PackedDataset(DOCUMENTS, **ALONE, **following))).num_documents == 20


def test_a_loader_wants_a_dataset() -> None:
    for source in ("texts.jsonl", DOCUMENTS, None):
        with pytest.raises(ConfigError, match="PackedLoader\\(PackedDataset"):
            PackedLoader(source)  # type: ignore[arg-type]


@pytest.mark.parametrize("indent", [None, 2])
def test_of_one_json_array_it_is_said_what_to_pass(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "texts.json"
    path.write_text(json.dumps([{"text": f"text {i}"} for i in range(30)], indent=indent))
    arguments = {**ALONE, "tokenizer": byte_tokenizer()}
    with pytest.raises((ContentError, ConfigError), match=re.escape("pass json.load(file)")):
        next(iter(PackedDataset(str(path), **arguments)))
    with path.open() as file:
        assert next(iter(PackedDataset(json.load(file), **arguments))).num_documents > 0


def test_of_a_csv_file_it_is_said_what_to_pass(tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    pd.DataFrame({"text": ["one", "two"] * 10}).to_csv(path)
    arguments = {**ALONE, "tokenizer": byte_tokenizer()}
    for named in (path, tmp_path):
        with pytest.raises(ConfigError, match=re.escape("pandas.read_csv(path)")):
            PackedDataset(str(named), **arguments)
    table = pd.read_csv(path)[["text"]]
    assert next(iter(PackedDataset(table, **arguments))).num_documents == 20


@pytest.mark.parametrize("name", ["JSONL", "Parquet", "WebDataset", "MDS", "Arrow"])
def test_records_are_no_paths(name: str) -> None:
    kind = getattr(sources, name)
    more = {"WebDataset": {"tokens": "npy"}}.get(name, {})
    for given in ([{"messages": [{"role": "user", "content": "a"}]}], 5, [1, 2], None):
        with pytest.raises(
            ConfigError, match=r"A path was expected.*conversations to sources\.Chat"
        ):
            kind(given, **more).prepare()


def test_a_file_whose_name_is_misspelt_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}')
    with pytest.raises(ConfigError, match=r'/text.jsonl".*Did you mean "texts.jsonl"') as found:
        PackedDataset(str(tmp_path / "text.jsonl"), **ALONE, tokenizer=byte_tokenizer())
    assert ".ndjson" not in str(found.value)  # the name says what is meant
    with pytest.raises(ConfigError, match=r"that ends in \.jsonl"):
        sources.JSONL(str(tmp_path / "other")).prepare()


def test_a_source_that_joins_a_mixture_is_told_how() -> None:
    weights = {"a": 1, "b": 1}
    parts = {"a": DOCUMENTS * 500, "b": DOCUMENTS * 500}
    loader = PackedLoader(PackedDataset(sources.Mixture(parts, weights=weights), **ALONE, lanes=1))
    next(iter(loader))
    weights["c"] = 1
    grown = sources.Mixture({**parts, "c": DOCUMENTS}, weights=weights)
    again = PackedLoader(PackedDataset(grown, **ALONE, lanes=1))
    with pytest.raises(StateError, match="If sources were added") as found:
        again.load_state_dict(loader.state_dict())
    assert 'allow={"source"}' in str(found.value)
    again.load_state_dict(loader.state_dict(), allow={"source"})
    assert next(iter(again)).num_documents


def test_a_text_as_a_field_is_told_how_to_become_a_number(tmp_path: Path) -> None:
    names = [f"prompt {i // 2}" for i in range(40)]
    records = [{"tokens": [1, 2, 3], "prompt": name} for name in names]
    arguments = {**ALONE, "document_fields": {"prompt": "int64"}}
    pd.DataFrame(records).to_parquet(tmp_path / "a.parquet")
    for data in (records, pd.DataFrame(records), str(tmp_path / "a.parquet")):
        with pytest.raises((ContentError, ConfigError), match="Texts, such as ids") as found:
            list(PackedDataset(data, **arguments))
        advice = re.search(r"field with (int\(.*?, 16\))", str(found.value))
        assert advice is not None
        number = {name: eval(advice[1], {"hashlib": hashlib, "text": name}) for name in names}
        followed = [{**record, "prompt": number[record["prompt"]]} for record in records]
        batches = list(PackedDataset(followed, **arguments))
        values = {n for batch in batches for n in batch.document_fields["prompt"].tolist()}
        assert values == {*number.values()}


def test_a_column_that_arrow_has_no_type_for_is_named() -> None:
    frame = pd.DataFrame({"tokens": DOCUMENTS, "other": [object()] * 20})
    with pytest.raises(ConfigError, match=r'the column "other" that Arrow has no type') as found:
        PackedDataset(frame, **ALONE)
    for advice in re.findall(r"data\.\w+\(.*?\)", str(found.value)):
        followed = eval(advice, {"data": frame})
        assert next(iter(PackedDataset(followed, **ALONE))).num_documents == 20


@pytest.mark.parametrize(
    "make",
    [
        lambda **wrong: PackedDataset(DOCUMENTS, **ALONE, **wrong),
        lambda **wrong: PackedLoader(PackedDataset(DOCUMENTS, **ALONE), **wrong),
        lambda **wrong: sources.Chat([{"messages": []}], **wrong),
        lambda **wrong: sources.JSONL("a.jsonl", **wrong),
        lambda **wrong: sources.Mixture({"a": "b"}, **wrong),
        lambda **wrong: sources.open("a", **wrong),
        lambda **wrong: packing.BestFitDecreasing(seq_len=8, **wrong),
        lambda **wrong: pack([3], seq_len=8, **wrong),
        lambda **wrong: WindowConfig(**wrong),
        lambda **wrong: sources.Storage(**wrong),
    ],
)
def test_a_wrong_argument_is_named_with_those_that_there_are(make: Any) -> None:
    with pytest.raises(TypeError, match=r"no argument 'max_lenght': it takes \w+, \w+"):
        make(max_lenght=8)


def test_an_argument_that_is_missing_is_named() -> None:
    with pytest.raises(TypeError, match="TextFiles needs paths"):
        sources.TextFiles()  # type: ignore[call-arg]
    assert pickle.loads(pickle.dumps(packing.Concat(seq_len=8))) == packing.Concat(seq_len=8)


def test_what_has_no_effect_is_said(caplog: pytest.LogCaptureFixture) -> None:
    weighted = [{"input_ids": [1, 2], "w": [0.5, 1.0]} for _ in range(8)]
    fields: dict[str, Any] = {"token_fields": {"w": "float32"}}
    PackedLoader(PackedDataset(weighted, **ALONE, **fields))
    assert not caplog.records
    PackedDataset(DOCUMENTS, **ALONE, order=SimilarityOrder(), attention="row")
    assert not caplog.records
    PackedDataset(DOCUMENTS, **ALONE, order=SimilarityOrder())
    assert 'Pass attention="row" too' in caplog.text


@pytest.mark.parametrize("allow", [True, None, "packer", ["packer", "nothing"]])
def test_what_may_change_is_named(allow: Any) -> None:
    loader = PackedLoader(PackedDataset(DOCUMENTS, **ALONE))
    with pytest.raises(StateError, match="Use a set of names from attention, balance"):
        loader.load_state_dict(loader.state_dict(), allow=allow)


def test_shares_by_row_length_are_not_taken_for_shares() -> None:
    with pytest.raises(ConfigError, match="one number per bucket, the shortest bucket first"):
        packing.Buckets(seq_lens=(64, 256), shares={64: 0.9, 256: 0.1})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a rotation and one share per bucket"):
        packing.Curriculum({0: (1, 0)})  # type: ignore[arg-type]


def test_epochs_of_a_mixture_are_by_name_or_those_of_the_dataset() -> None:
    parts = {"a": DOCUMENTS, "b": [[4, 5]] * 10}
    advice = r'epochs=\{"a": 2\}.*PackedDataset\(mixture, epochs=2\)'
    with pytest.raises(ConfigError, match=advice):
        sources.Mixture(parts, weights={"a": 1, "b": 1}, epochs=2)  # type: ignore[arg-type]
    mixture = sources.Mixture(parts, weights={"a": 1, "b": 1}, epochs={"a": 2})
    assert sum(batch.num_documents for batch in PackedDataset(mixture, **ALONE)) == 50
    mixture = sources.Mixture(parts, weights={"a": 1, "b": 1})
    assert sum(batch.num_documents for batch in PackedDataset(mixture, **ALONE, epochs=2)) == 60


@pytest.mark.parametrize("name", ["token_fields", "document_fields"])
@pytest.mark.parametrize("value", [["reward"], "reward", ("reward",)])
def test_fields_without_dtypes_are_told_how_to_be_declared(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf'{name}=\{{"\w+": "float32"\}}'):
        PackedDataset(DOCUMENTS, **ALONE, **{name: value})


def test_two_columns_of_one_name_are_told_apart_as_advised() -> None:
    data = pd.DataFrame([["a", "b"], ["c", "d"]] * 10, columns=["text", "text"])
    for make in (lambda: PackedDataset(data, **ALONE), lambda: sources.Table(data)):
        with pytest.raises(ConfigError, match=r"2 columns named \"text\".*columns\.duplicated"):
            make()
    kept = data.loc[:, ~data.columns.duplicated()]
    assert next(iter(PackedDataset(kept, **ALONE, tokenizer=byte_tokenizer()))).num_documents > 0


def test_tensors_that_numpy_does_not_take_are_no_ids() -> None:
    torch = pytest.importorskip("torch")
    ids, offsets = torch.arange(10), torch.tensor([0, 5, 10])
    for given in ((ids.bfloat16(), offsets), [ids.bfloat16()], [{"tokens": ids.bfloat16()}]):
        with pytest.raises(ConfigError, match="BFloat16"):
            PackedDataset(given, **ALONE)
    assert next(iter(PackedDataset((ids, offsets), **ALONE))).num_documents == 2


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (lambda: packing.Concat(8), "Concat(seq_len=8)"),  # type: ignore[misc]
        (lambda: packing.BestFitDecreasing(8, overflow="drop"), "BestFitDecreasing(seq_len=8)"),  # type: ignore[misc]
        (lambda: packing.Buckets((8, 16)), "Buckets(seq_lens=(8, 16))"),  # type: ignore[misc]
        (lambda: PackedDataset(DOCUMENTS, 16), "PackedDataset(source, seq_len=16)"),  # type: ignore[misc]
        (lambda: PackedDataset.evaluation(DOCUMENTS, 8), "PackedDataset(source, seq_len=8)"),
        (lambda: PackedLoader(None, 2), "PackedLoader(dataset, num_workers=2)"),  # type: ignore
    ],
)
def test_settings_by_position_are_refused_with_their_names(wrong: Any, right: str) -> None:
    with pytest.raises(TypeError, match=rf"by name\. Write {re.escape(right)}"):
        wrong()
    names = {"source": DOCUMENTS, "dataset": PackedDataset(DOCUMENTS, **ALONE)}
    eval(right, {**vars(packing), **globals(), **names})  # what it says works


def test_one_state_is_not_several() -> None:
    loader = PackedLoader(PackedDataset(DOCUMENTS, **ALONE))
    state = loader.state_dict()
    with pytest.raises(StateError, match=r"merge_states\(\[state\]\)"):
        merge_states(state)  # type: ignore[arg-type]
    loader.load_state_dict(merge_states([state]))


def test_of_a_state_without_lanes_it_is_said_in_words() -> None:
    def loader(rank: int) -> PackedLoader:
        place = Topology(rank, 2)
        return PackedLoader(PackedDataset([[1] * 9] * 400, seq_len=16, lanes=1, topology=place))

    first = loader(0)
    next(iter(first))  # the lane's latest batch is rank 1's
    with pytest.raises(StateError, match="The state holds no lane; rank 1 of 2 also needs 0"):
        loader(1).load_state_dict(first.state_dict())


def test_pieces_are_decoded_to_ids_without_a_tokenizer() -> None:
    batch = next(iter(PackedLoader(PackedDataset(DOCUMENTS, **ALONE))))
    assert batch.decode(0) == "1 2 3"


def test_the_loss_is_of_the_batchs_logits_alone() -> None:
    batch = next(iter(PackedLoader(PackedDataset(DOCUMENTS, batch_size=4, **ALONE))))
    logits = torch.zeros(4, 16, 9)
    assert batch.loss(logits) == batch.loss(logits.view(1, 64, 9)) == batch.loss(logits.view(64, 9))
    for wrong in (logits.transpose(0, 1), logits.view(64, 1, 9), logits.view(8, 8, 9)):
        with pytest.raises(ConfigError, match=r"\(4, 16, vocabulary\), \(1, 64, vocabulary\)"):
            batch.loss(wrong)
    with pytest.raises(ConfigError, match=r"a dict.*Pass the logits alone"):
        batch.loss({"loss": logits})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Pass output\.logits"):
        batch.loss(SimpleNamespace(logits=logits))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"vocabulary of 3 ids, and a label is 3\..*vocab_size="):
        batch.loss(torch.zeros(4, 16, 3))
    for weights in (torch.ones(4), torch.ones(4, 15), 2.0):
        with pytest.raises(ConfigError, match=r"weights have the .*, and labels \(4, 16\)"):
            batch.loss(logits, weights=weights)  # type: ignore[arg-type]
    weighted = batch.loss(logits, weights=torch.ones(64))
    assert weighted.item() == pytest.approx(batch.loss(logits).item())


@pytest.mark.parametrize("wrong", ["bfd", packing.Pad])
def test_of_a_packer_that_is_none_all_are_named(wrong: Any) -> None:
    for settings in ({"seq_len": 16}, {}):
        with pytest.raises(ConfigError, match="It cannot plan rows") as error:
            PackedDataset(DOCUMENTS, packer=wrong, topology=Topology(), **settings)  # type: ignore[arg-type]
        kinds = [getattr(packing, name) for name in packing.__all__]
        named = {k.__name__ for k in kinds if isinstance(k, type) and hasattr(k, "plan_window")}
        assert len(named) > 7
        assert all(name in error.value.remedy for name in named)


def test_weights_of_a_misspelt_source_name_it_and_the_one_that_lacks_them() -> None:
    with pytest.raises(ConfigError, match=r"lack books and also name boks\."):
        sources.Mixture({"web": [[1]], "books": [[2]]}, weights={"web": 1, "boks": 2})
