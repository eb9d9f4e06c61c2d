"""Documents of a record share a row, through packing, lanes, ranks, workers, resume and hooks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streampack import BestFitDecreasing, Concat, Hook, PackedLoader, Pad, TokenRules, sources
from streampack.documents import Documents
from streampack.errors import ConfigError, ContentError, StateError
from streampack.packing import Balance, FirstFitDecreasing
from streampack.sources import Mixture
from tests.support.grouped_runs import (
    LENGTHS,
    WHOLE,
    dataset,
    groups_of,
    records,
    source,
)
from tests.support.runs import gone_on


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("lanes", [1, 5, 16])
def test_every_group_is_in_one_row_with_all_its_documents(shuffle: bool, lanes: int) -> None:
    made = dataset(lanes=lanes, shuffle=shuffle)
    assert sorted(groups_of(made)) == WHOLE


def test_a_run_goes_on_with_longer_rows_and_parts_no_group() -> None:
    second = PackedLoader(dataset(seq_len=128, batch_size=1))
    batches = gone_on(PackedLoader(dataset()), 7, second, {"packer"})
    assert sorted(groups_of(batches)) == WHOLE


def test_a_filter_or_an_empty_document_leaves_the_rest_of_its_group_together() -> None:
    refused = {i for i in range(len(LENGTHS)) if i % 7 == 0}
    kept = [[i for i in group if i not in refused] for group in WHOLE]
    kept = [group for group in kept if group]

    def filtered(documents: Any, seeds: Any) -> Any:
        return ~np.isin(documents.document_fields["number"], [*refused])

    assert sorted(groups_of(dataset(filter=Hook("not the seventh", filtered)))) == kept

    def emptied(documents: Any, seeds: Any) -> Any:
        good = filtered(documents, seeds)
        made = [documents.document(i)[: None if good[i] else 0] for i in range(len(good))]
        fields = documents.document_fields
        return Documents.from_arrays(made, documents.origin, document_fields=fields)

    loader = PackedLoader(dataset(map=Hook("empties", emptied)))
    assert sorted(groups_of(loader)) == kept
    assert loader.metrics().empty_documents == len(refused)


def test_a_mixture_parts_no_group() -> None:
    mixed = Mixture({"a": source(), "b": source()}, weights={"a": 2, "b": 1})
    assert sorted(groups_of(dataset(mixed))) == sorted(2 * WHOLE)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["list", "arrays", "function", "lines", "named"])
def test_records_of_iterables_and_files_are_groups_alike(form: str, tmp_path: Path) -> None:
    of: Any = records()
    if form == "arrays":
        of = [{**r, "tokens": [np.array(ids) for ids in r["tokens"]]} for r in of]
    elif form == "function":
        of = sources.Iterable(lambda lane, lanes: records()[lane::lanes])
    elif form in ("lines", "named"):
        for number, part in enumerate((of[:100], of[100:])):
            lines = "".join(json.dumps(record) + "\n" for record in part)
            (tmp_path / f"{number}.jsonl").write_text(lines)
        of = f"{tmp_path}/*.jsonl"
        of = sources.JSONL(of, tokens="tokens", loss_mask=[]) if form == "named" else of
    assert sorted(groups_of(dataset(of))) == WHOLE


def test_a_record_with_a_broken_document_is_skipped_whole_and_once() -> None:
    broken: list[dict[str, Any]] = records()
    broken[20]["tokens"][0] = [1, -1]
    broken[30]["tokens"] = [[5] * 3, [10**6]]  # not in the vocabulary
    broken[30]["number"] = [0, 1]
    broken[40]["number"] = [0] * 7
    with pytest.raises(ContentError):
        list(dataset(source(broken)))
    rules = TokenRules(vocab_size=10**5)
    loader = PackedLoader(dataset(source(broken), on_error="skip", token_rules=rules))
    batches = list(loader)
    assert loader.metrics().skipped == 3
    lost = {20, 30, 40}
    assert sorted(groups_of(batches)) == [g for v, g in enumerate(WHOLE) if v not in lost]


@pytest.mark.parametrize("attention", ["document", "row"])
def test_fields_of_tokens_and_documents_stay_with_them(attention: Any) -> None:
    rng = np.random.default_rng(2)
    masks = [(rng.random(n) < 0.5).tolist() for n in LENGTHS]
    weights = [rng.random(n).tolist() for n in LENGTHS]
    made = [
        {**r, "mask": [masks[i] for i in r["number"]], "weight": [weights[i] for i in r["number"]]}
        for r in records()
    ]
    given = sources.Iterable(made, tokens="tokens", loss_mask="mask")
    loader = PackedLoader(
        dataset(given, lanes=1, attention=attention, token_fields={"weight": "float32"})
    )
    seen = []
    for batch in loader:
        assert (batch.labels != -100).sum() == batch.num_loss_tokens
        if attention == "row":
            assert batch.num_segments <= 2 * batch.rows
        for piece, number in enumerate(batch.document_fields["number"].tolist()):
            here = batch.document_ids == piece
            assert torch.equal(
                batch.fields["weight"][here],
                torch.tensor(weights[number], dtype=torch.float32),
            )
            counts = (batch.labels[here] != -100).tolist()[1:]
            assert counts == masks[number][1:]
            seen.append(number)
    assert sorted(seen) == list(range(len(LENGTHS)))


def pairs(longest: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(4)
    sizes = rng.integers(1, longest, (60, 2))
    order = [rng.permutation([True, False]).tolist() for _ in sizes]
    return [
        {"tokens": [[k] * n for n in sizes[k].tolist()], "pair": k, "chosen": order[k]}
        for k in range(60)
    ]


def test_pairs_are_the_chosen_and_the_rejected_pieces() -> None:
    made = pairs(9)
    fields = {"pair": "int64", "chosen": "bool"}
    loader = PackedLoader(dataset(made, document_fields=fields))
    found = 0
    for batch in loader:
        better, worse = batch.pairs()
        assert batch.document_fields["chosen"][better].all()
        assert not batch.document_fields["chosen"][worse].any()
        assert torch.equal(
            batch.document_fields["pair"][better], batch.document_fields["pair"][worse]
        )
        found += len(better)
    assert found == 60
    with pytest.raises(ConfigError, match=r'no document field "best"'):
        batch.pairs(chosen="best")
    alone = [{**made[0], "chosen": [True, True]}]
    with pytest.raises(ConfigError, match=r"some group is not one chosen and one rejected"):
        next(iter(dataset(alone, document_fields=fields, lanes=1))).pairs()


@pytest.mark.parametrize(
    "settings",
    [
        {"packer": Concat(seq_len=64)},
        {"packer": Pad(seq_len=64)},
        {"packer": FirstFitDecreasing(seq_len=64, overflow="drop")},
        {"packer": BestFitDecreasing(seq_len=64)},
        {"packer": BestFitDecreasing(seq_len=64, overflow="drop", align=8)},
        {"packer": BestFitDecreasing(seq_len=64, overflow="drop", choice=Balance("attention"))},
    ],
    ids=repr,
)
def test_packers_that_cannot_keep_documents_together_pack_them_apart_and_log_it(
    settings: dict[str, Any], caplog: Any
) -> None:
    fields = {"pair": "int64", "chosen": "bool"}
    loader = PackedLoader(
        dataset(
            pairs(9), document_fields=fields, lanes=1, token_rules=TokenRules(eos_id=99), **settings
        )
    )
    assert "packed apart" in caplog.text
    batches = list(loader)
    assert loader.metrics().composition.documents == 120
    with pytest.raises(ConfigError, match=r"The batch has no groups"):
        batches[0].pairs()


def test_a_state_is_of_a_run_with_the_same_groups() -> None:
    loader = PackedLoader(dataset())
    next(iter(loader))
    other = PackedLoader(dataset(packer=FirstFitDecreasing(seq_len=64, overflow="drop")))
    with pytest.raises(StateError, match="`grouped` was True"):
        other.load_state_dict(loader.state_dict(), allow={"packer"})
