"""Documents of a group share a row, through packing, lanes, ranks, workers, resume and hooks."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streampack import (
    BestFitDecreasing,
    Buckets,
    Concat,
    ConfigError,
    FirstFitDecreasing,
    GroupBy,
    Hook,
    PackedLoader,
    Pad,
    PlanError,
    Seamless,
    SimulatedRanks,
    Topology,
    merge_states,
    sources,
)
from streampack.sources import Mixture
from tests.support.chats import CHATML, messages, write_lines
from tests.support.corpora import byte_tokenizer
from tests.support.grouped_runs import (
    FIELDS,
    LENGTHS,
    SHARDS,
    SIZES,
    VALUES,
    dataset,
    groups_of,
    source,
)
from tests.support.grouped_source import GroupedSource
from tests.support.runs import gone_on, identities


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("lanes", [1, 5, 16])
@pytest.mark.parametrize("packer", [BestFitDecreasing, FirstFitDecreasing])
def test_every_group_is_in_one_row_with_all_its_documents(
    shuffle: bool, lanes: int, packer: Any
) -> None:
    made = dataset(lanes=lanes, shuffle=shuffle, packer=packer(seq_len=64, overflow="drop"))
    assert sorted(groups_of(made)) == source().whole


def test_several_epochs_give_each_group_as_often() -> None:
    assert sorted(groups_of(dataset(epochs=3))) == sorted(3 * source().whole)


def on_ranks(number: int, function: Any) -> list[Any]:
    """What `function` returns for the loader of each simulated rank."""
    ranks = SimulatedRanks(number)

    def one(rank: int) -> Any:
        made = dataset(topology=Topology(rank, number))
        return function(PackedLoader(made, ranks=ranks[rank]))

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(one, range(number)))


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_give_the_same_groups(ranks: int) -> None:
    found = on_ranks(ranks, identities)
    assert sorted(i for rank in found for i in rank) == sorted(identities(PackedLoader(dataset())))


def test_workers_give_the_same_batches() -> None:
    batches = list(PackedLoader(dataset(), num_workers=2))
    assert identities(batches) == identities(PackedLoader(dataset()))
    assert sorted(groups_of(batches)) == source().whole


def test_a_run_that_is_stopped_anywhere_gives_every_group_once() -> None:
    expected = identities(PackedLoader(dataset()))
    for stop in range(1, len(expected), 3):
        batches = gone_on(PackedLoader(dataset()), stop, PackedLoader(dataset()))
        assert identities(batches) == expected
        if stop % 4 == 1:
            assert sorted(groups_of(batches)) == source().whole


def test_a_run_goes_on_with_longer_rows_and_parts_no_group() -> None:
    second = PackedLoader(dataset(seq_len=128, batch_rows=1))
    batches = gone_on(PackedLoader(dataset()), 7, second, {"packer", "batch_tokens", "window"})
    assert sorted(groups_of(batches)) == source().whole


def test_groups_that_do_not_fit_are_dropped_whole_and_counted() -> None:
    loader = PackedLoader(dataset(seq_len=24, batch_rows=4))
    sums = [sum(LENGTHS[i] for i in group) for group in source().whole]
    fit = [group for group, tokens in zip(source().whole, sums, strict=True) if tokens <= 24]
    assert 0 < len(fit) < len(sums)
    assert sorted(groups_of(loader)) == fit
    composition = loader.metrics().composition
    assert composition.documents_lost == len(LENGTHS) - sum(map(len, fit))
    assert composition.dropped == sum(tokens for tokens in sums if tokens > 24)
    assert composition.documents == sum(map(len, fit))
    error = BestFitDecreasing(seq_len=24, overflow="error")
    with pytest.raises(PlanError, match=r"The group that begins with document \d+ .* has \d+ tok"):
        list(dataset(packer=error))


def test_a_filter_or_an_empty_document_leaves_its_group_out_whole() -> None:
    refused = {i for i in range(len(LENGTHS)) if i % 7 == 0}
    kept = [group for group in source().whole if not refused & {*group}]

    def filtered(documents: Any, seeds: Any) -> Any:
        return ~np.isin(documents.document_fields["number"], [*refused])

    assert sorted(groups_of(dataset(filter=Hook("not the seventh", filtered)))) == kept

    def emptied(documents: Any, seeds: Any) -> Any:
        good = filtered(documents, seeds)
        made = [documents.document(i)[: None if good[i] else 0] for i in range(len(good))]
        fields = documents.document_fields
        made_fields = {name: fields[name] for name in FIELDS}  # knows nothing of groups
        from streampack import Documents

        return Documents.from_arrays(made, documents.origin, document_fields=made_fields)

    loader = PackedLoader(dataset(map=Hook("empties", emptied)))
    assert sorted(groups_of(loader)) == kept
    assert loader.metrics().empty_documents == len(LENGTHS) - sum(map(len, kept))


def test_a_mixture_parts_no_group() -> None:
    mixed = Mixture({"a": source(), "b": source()}, weights={"a": 2, "b": 1})
    assert sorted(groups_of(dataset(mixed))) == sorted(2 * source().whole)


def records() -> list[dict[str, Any]]:
    documents = source().documents
    return [
        {"tokens": documents[i].tolist(), "group": int(VALUES[i]), "number": i}
        for i in range(len(documents))
    ]


def test_records_of_iterables_and_files_are_grouped_alike(tmp_path: Path) -> None:
    expected = [np.flatnonzero(value == VALUES).tolist() for value in range(260)]
    assert sorted(groups_of(dataset(records(), lanes=None))) == expected
    for number, part in enumerate((records()[:400], records()[400:])):
        lines = "".join(json.dumps(record) + "\n" for record in part)
        (tmp_path / f"{number}.jsonl").write_text(lines)
    made = sources.JSONL(f"{tmp_path}/*.jsonl", tokens="tokens")
    cut = {*VALUES[:400].tolist()} & {*VALUES[400:].tolist()}  # a group ends with its file
    found = groups_of(dataset(made, lanes=7))
    assert [g for g in sorted(found) if VALUES[g[0]] not in cut] == [
        g for g in expected if VALUES[g[0]] not in cut
    ]
    assert sorted(i for g in found for i in g) == list(range(len(VALUES)))


def test_texts_that_are_tokenized_in_slices_are_grouped_too(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    texts = [{"text": f"{i:04d}", "group": int(VALUES[i])} for i in range(len(VALUES))]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    made = dataset(
        sources.JSONL(str(tmp_path / "texts.jsonl"), text="text"),
        tokenizer=str(tmp_path / "tokenizer.json"),
        document_fields={"group": "int64"},
        lanes=3,
    )
    found: list[int] = []
    for batch in made:
        ids, values = (batch.document_fields[name].numpy() for name in ("group_ids", "group"))
        for group in range(ids.max(initial=-1) + 1):
            assert len({*values[ids == group]}) == 1
            assert (ids == group).sum() == SIZES[values[ids == group][0]]
            found.append(int(values[ids == group][0]))
    assert sorted(found) == list(range(260))


def test_conversations_of_several_records_are_grouped_by_a_field(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    chats = [
        {"messages": messages("question", "answer " * (1 + i % 3)), "thread": int(VALUES[i])}
        for i in range(300)
    ]
    write_lines(tmp_path / "chats.jsonl", chats)
    made = dataset(
        sources.Chat(str(tmp_path / "chats.jsonl"), template=CHATML),
        seq_len=1024,
        tokenizer=str(tmp_path / "tokenizer.json"),
        group="thread",
        document_fields={"thread": "int64"},
        lanes=4,
    )
    found: list[int] = []
    for batch in made:
        ids, values = (batch.document_fields[name].numpy() for name in ("group_ids", "thread"))
        for group in range(ids.max(initial=-1) + 1):
            (value,) = {*values[ids == group].tolist()}
            assert (ids == group).sum() == (VALUES[:300] == value).sum()
            found.append(value)
    assert sorted(found) == sorted({*VALUES[:300].tolist()})


@pytest.mark.parametrize("attention", ["document", "row"])
def test_what_else_belongs_to_tokens_and_documents_stays_with_them(attention: Any) -> None:
    rng = np.random.default_rng(2)
    made = [
        {**record, "mask": (rng.random(n) < 0.5).tolist(), "weight": rng.random(n).tolist()}
        for record in records()
        if (n := len(record["tokens"]))
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
                torch.tensor(made[number]["weight"], dtype=torch.float32),
            )
            counts = (batch.labels[here] != -100).tolist()[1:]
            assert counts == made[number]["mask"][1:]
            seen.append(number)
    assert sorted(seen) == list(range(len(made)))


def test_pairs_are_the_chosen_and_the_rejected_pieces() -> None:
    rng = np.random.default_rng(4)
    made = [
        {"tokens": [pair] * int(rng.integers(1, 9)), "pair": pair, "chosen": chosen}
        for pair in range(60)
        for chosen in rng.permutation([True, False]).tolist()
    ]
    fields = {"pair": "int64", "chosen": "bool"}
    loader = PackedLoader(dataset(made, lanes=None, group="pair", document_fields=fields))
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
    with pytest.raises(ConfigError, match=r"some group is not one chosen and one rejected"):
        next(iter(dataset(made[:3], lanes=None, group="pair", document_fields=fields))).pairs()
    with pytest.raises(ConfigError, match=r"The batch has no groups"):
        next(iter(dataset(made, lanes=None, group=None, document_fields=fields))).pairs()


class OwnPairs(GroupedSource):
    """Two documents with one origin, as a record of a pair gives them."""

    own_groups = "group"


def test_a_source_that_groups_by_itself_has_records_that_are_groups() -> None:
    with pytest.raises(ConfigError, match='Two records have the same "group"'):
        list(dataset(OwnPairs(SHARDS, LENGTHS)))
    alone = [list(range(len(shard))) for shard in SHARDS]
    found = groups_of(dataset(OwnPairs(alone, LENGTHS)))
    assert sorted(found) == [[i] for i in range(len(LENGTHS))]


def test_settings_that_would_part_groups_are_refused() -> None:
    for packer in (
        Concat(seq_len=64),
        Pad(seq_len=64),
        Seamless(seq_len=64),
        Buckets(seq_lens=(32, 64)),
        BestFitDecreasing(seq_len=64),
        BestFitDecreasing(seq_len=64, overflow="truncate"),
        BestFitDecreasing(seq_len=64, overflow="drop", extra_capacity=3),
        BestFitDecreasing(seq_len=64, overflow="drop", align=8),
    ):
        with pytest.raises(ConfigError, match=r"may cut what lies in a row|rows have 32 or 64"):
            dataset(packer=packer)
    with pytest.raises(ConfigError, match="no document field is declared by that name"):
        dataset(group="pair")
    with pytest.raises(ConfigError, match="no document field is declared by that name"):
        dataset(group=["group"])
    with pytest.raises(
        ConfigError, match=r'field of float32.*document_fields=\{"group": "int64"\}'
    ):
        dataset(document_fields={**FIELDS, "group": "float32"})
    assert dataset(document_fields={**FIELDS, "group": "int64"})
    for settings in ({"on_error": "skip"}, {"balance": "attention"}, {"order": GroupBy("group")}):
        (name,) = settings
        with pytest.raises(ConfigError, match=f'group is "group", .*Leave out {name}='):
            dataset(**settings)
    with pytest.raises(ConfigError, match='A field is named "group_ids"'):
        dataset(document_fields={**FIELDS, "group_ids": "int32"})


def test_a_state_is_of_a_run_with_the_same_groups() -> None:
    loader = PackedLoader(dataset())
    next(iter(loader))
    other = PackedLoader(dataset(group=None, packer=BestFitDecreasing(seq_len=64, overflow="drop")))
    with pytest.raises(Exception, match="`group` was 'group'"):
        other.load_state_dict(loader.state_dict())


def test_states_of_ranks_merge() -> None:
    results = on_ranks(2, lambda loader: (list(islice(loader, 4)), loader.state_dict()))
    loader = PackedLoader(dataset())
    loader.load_state_dict(merge_states([state for _, state in results]))
    batches = [batch for taken, _ in results for batch in taken]
    assert sorted(groups_of([*batches, *loader])) == source().whole
