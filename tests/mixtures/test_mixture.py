"""Mixtures through datasets: shares, ends, identity of sources, skips, ranks, added sources."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import (
    Hook,
    PackedDataset,
    PackedLoader,
    SimilarityOrder,
    TokenRules,
    Topology,
    WindowConfig,
)
from streampack.errors import ConfigError, ContentError, StateError
from streampack.mixtures.cursors import changed_cursor
from streampack.mixtures.source import earlier_mixture
from streampack.packing import Concat
from streampack.sources import JSONL, Iterable, Mixture
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.reading import ReadOptions
from streampack.stages.preparation import Preparation
from streampack.streams.base import Opening, StreamPosition
from streampack.streams.lane_stream import open_stream
from streampack.streams.stream import StreamConfig
from tests.support.corpora import byte_tokenizer
from tests.support.memory_source import MemorySource
from tests.support.restoring import assert_restores_everywhere

SEQ_LEN = 64


def ids(first: int, count: int, length: int = 20, dtype: Any = np.uint16) -> MemorySource:
    """`count` documents of `length` copies of `first`, in shards of ten."""
    documents = [np.full(length, first, dtype=dtype)] * count
    shards = [documents[i : i + 10] for i in range(0, count, 10)]
    return MemorySource(shards, block_documents=7)


def dataset(source: Any, **options: Any) -> PackedDataset:
    values: dict[str, Any] = {
        "seq_len": SEQ_LEN,
        "batch_size": 1,
        "lanes": 2,
        "topology": Topology(),
        "window": WindowConfig(rows=8),
        "token_rules": TokenRules(vocab_size=70_000),
        "provenance": True,
    }
    return PackedDataset(source, **{**values, **options})


def tokens_by_source(batches: Any, count: int) -> list[int]:
    totals = np.zeros(count, dtype=np.int64)
    for batch in batches:
        pieces = batch.provenance
        np.add.at(totals, pieces["source"], pieces["stop"] - pieces["start"])
    return totals.tolist()  # type: ignore[no-any-return]


def lane_stream(
    mixture: Mixture, *, lanes: int = 1, position: StreamPosition | None = None, **options: Any
) -> Any:
    mixture.prepare()
    config = StreamConfig(source=mixture, lanes=lanes, preparation=Preparation(), **options)
    return open_stream(Opening(config, 0, ErrorPolicy(), position=position))


def read(stream: Any, count: int | None = None) -> list[tuple[int, int, int]]:
    """(source, shard, index) of the next documents, all of them if no number is given."""
    found: list[tuple[int, int, int]] = []
    while (count is None or len(found) < count) and (block := stream.peek()) is not None:
        block = block[: None if count is None else count - len(found)]
        found += [tuple(row) for row in block.origin.tolist()]
        stream.consume(len(block))
    return found


# ---------------------------------------------------------------------- shares


def test_shares_count_tokens_not_documents() -> None:
    mixture = Mixture(
        {"long": ids(1, 400, 90), "short": ids(2, 4000, 9)},
        weights={"long": 0.7, "short": 0.3},
        at_end="stop",
    )
    stream = lane_stream(mixture)
    drawn = np.zeros(2)
    while (block := stream.peek()) is not None:
        drawn[block.origin["source"][0]] += block.num_tokens
        stream.consume(len(block))
        share = drawn / drawn.sum()
        assert (np.abs(drawn - drawn.sum() * np.array([0.7, 0.3])) <= 7 * 90).all()
    assert share == pytest.approx([0.7, 0.3], abs=0.02)


def test_a_temperature_evens_out_the_sizes() -> None:
    def shares(temperature: float | None) -> list[float]:
        mixture = Mixture({"a": ids(1, 900), "b": ids(2, 100)}, temperature=temperature)
        mixture.prepare()
        return [share / 2**40 for share in mixture.shares.knots[0][1]]

    assert shares(None) == shares(1) == pytest.approx([0.9, 0.1])
    assert shares(2) == pytest.approx([0.75, 0.25])
    assert shares(1e9) == pytest.approx([0.5, 0.5])


def test_a_schedule_goes_by_the_tokens_of_the_run() -> None:
    mixture = Mixture(
        {"a": ids(1, 4000), "b": ids(2, 4000)},
        weights=[(0, {"a": 1, "b": 0}), (40_000, {"a": 0, "b": 1})],
        quantum_documents=1,
    )
    stream = lane_stream(mixture, lanes=4)  # 10,000 tokens of each lane
    assert {source for source, _, _ in read(stream, 500)} == {0}
    assert {source for source, _, _ in read(stream, 300)} == {1}


def test_a_place_of_a_schedule_may_be_a_float_with_a_whole_value() -> None:
    even = {"a": 1, "b": 1}
    mixture = Mixture({"a": ids(1, 1), "b": ids(2, 1)}, weights=[(0, even), (2e9, even)])  # type: ignore[list-item]
    assert [at for at, _ in mixture.shares.knots] == [0, 2_000_000_000, 2_000_000_000]


@pytest.mark.parametrize(("transition", "shares"), [("step", (1, 0.5)), ("linear", (0.75, 0.5))])
def test_weights_step_from_phase_to_phase_or_move_linearly(
    transition: Any, shares: tuple[float, float]
) -> None:
    mixture = Mixture(
        {"a": ids(1, 4000), "b": ids(2, 4000)},
        weights=[(0, {"a": 1, "b": 0}), (20_000, {"a": 1, "b": 1})],
        transition=transition,
        quantum_documents=1,
    )
    stream = lane_stream(mixture)
    for share in shares:  # of the first 20,000 tokens, and of as many after them
        drawn = [source for source, _, _ in read(stream, 1000)]
        assert drawn.count(0) == pytest.approx(1000 * share, abs=1)


# ---------------------------------------------------------------------- ends


def test_a_source_that_ends_leaves_its_weight_to_the_others_and_no_token_is_lost() -> None:
    mixture = Mixture({"a": ids(1, 30), "b": ids(2, 300)}, weights={"a": 1, "b": 1})
    assert tokens_by_source(PackedLoader(dataset(mixture)), 2) == [600, 6000]


def warned(mixture: Mixture, caplog: pytest.LogCaptureFixture, **options: Any) -> list[str]:
    """Names of the sources that a run warns of, once for each warning."""
    caplog.clear()
    with caplog.at_level("WARNING"):
        for _ in islice(PackedLoader(dataset(mixture, **options)), 400):
            pass
    found = [record for record in caplog.records if record.name.endswith(".shortfall")]
    return [str(record.args[0]) for record in found if isinstance(record.args, tuple)]


def test_a_source_that_ends_long_before_the_others_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = {"a": ids(1, 40), "b": ids(2, 400), "c": ids(3, 400)}
    weights = {"a": 8, "b": 1, "c": 1}
    assert warned(Mixture(parts, weights=weights), caplog, lanes=3) == ["a"]
    assert warned(Mixture(parts, weights=weights, at_end="stop"), caplog) == []
    assert warned(Mixture(parts, weights=weights, epochs={"a": None}), caplog) == []
    assert warned(Mixture(parts, temperature=1), caplog) == []
    assert warned(Mixture(parts, weights={"a": 0, "b": 1, "c": 1}), caplog) == []
    assert warned(Mixture(parts, weights=weights, epochs={"a": 2}), caplog, epochs=None) == ["a"]


def test_an_ended_source_is_warned_of_after_a_resume_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mixture = Mixture({"a": ids(1, 40), "b": ids(2, 400)}, weights={"a": 9, "b": 1})
    first = PackedLoader(dataset(mixture))
    for _ in islice(first, 20):
        pass
    again = PackedLoader(dataset(mixture))
    again.load_state_dict(first.state_dict())
    caplog.clear()
    with caplog.at_level("WARNING"):
        assert list(again)
    assert [record.name for record in caplog.records] == ["streampack.mixtures.shortfall"]


def test_sources_have_epochs_of_their_own() -> None:
    mixture = Mixture(
        {"a": ids(1, 30), "b": ids(2, 100)}, weights={"a": 1, "b": 1}, epochs={"a": 4}
    )
    assert tokens_by_source(PackedLoader(dataset(mixture, epochs=2)), 2) == [2400, 4000]


def test_an_endless_source_fills_up_until_the_others_have_ended() -> None:
    mixture = Mixture(
        {"a": ids(1, 300), "b": ids(2, 20)}, weights={"a": 3, "b": 1}, epochs={"b": None}
    )
    a, b = tokens_by_source(PackedLoader(dataset(mixture)), 2)
    assert a == 6000
    assert b == pytest.approx(2000, abs=2 * 7 * 20)


def test_the_run_may_stop_with_the_first_source_that_ends() -> None:
    mixture = Mixture({"a": ids(1, 40), "b": ids(2, 400)}, weights={"a": 1, "b": 1}, at_end="stop")
    a, b = tokens_by_source(PackedLoader(dataset(mixture)), 2)
    assert a == 800
    assert abs(b - 800) <= 2 * 7 * 20


def test_an_endless_run_outlives_its_finite_sources() -> None:
    mixture = Mixture({"a": ids(1, 10), "b": ids(2, 50)}, weights={"a": 9, "b": 1}, epochs={"a": 2})
    loader = iter(PackedLoader(dataset(mixture, epochs=None)))
    a, b = tokens_by_source((next(loader) for _ in range(100)), 2)
    assert a == 400
    assert b > 4000


@pytest.mark.parametrize(
    ("epochs", "own", "last"),
    [
        (1, {"a": None, "b": None}, {"a": 1, "b": 1}),
        (None, {"a": 1, "b": 2}, {"a": 1, "b": 1}),
        (1, {"a": None}, {"a": 1, "b": 0}),
    ],
)
def test_runs_without_a_clear_end_are_refused(
    epochs: int | None, own: dict[str, int | None], last: dict[str, float]
) -> None:
    mixture = Mixture({"a": ids(1, 9), "b": ids(2, 9)}, weights=last, epochs=own)
    with pytest.raises(ConfigError):
        dataset(mixture, epochs=epochs)


def test_a_source_with_fewer_documents_than_lanes_is_read_whole() -> None:
    mixture = Mixture({"few": ids(1, 3), "many": ids(2, 200)}, weights={"few": 1, "many": 1})
    assert tokens_by_source(PackedLoader(dataset(mixture, lanes=8)), 2) == [60, 4000]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("at", "shuffle"), [(0, True), (9, False)])
def test_an_endless_source_with_fewer_documents_than_lanes_repeats_in_every_lane(
    at: int, shuffle: bool
) -> None:
    def loader() -> PackedLoader:
        mixture = Mixture(
            {"few": ids(1, 3), "many": ids(2, 800)},
            weights={"few": 1, "many": 1} if not at else {"few": 0, "many": 1},
            epochs={"few": None},
        )
        return PackedLoader(dataset(mixture, lanes=8, shuffle=shuffle))

    first, found = loader(), []
    for step, batch in enumerate(first):
        found.append(batch)
        if step == at:
            first.set_weights({"few": 1, "many": 1})
        if step == 60:
            state = first.state_dict()
    few = {batch.lane for batch in found if (batch.source_ids == 0).any()}
    assert few == set(range(8))
    pieces = np.concatenate([batch.provenance for batch in found])
    assert {*pieces["index"][pieces["source"] == 0].tolist()} == {0, 1, 2}
    assert tokens_by_source(found, 2)[1] == 16_000
    again = loader()
    again.load_state_dict(state)
    for batch, expected in zip(again, found[61:], strict=True):
        assert batch.input_ids.equal(expected.input_ids)


def test_a_source_that_is_empty_in_every_lane_leaves_the_others_alone() -> None:
    nothing = Iterable(lambda lane, lanes: iter(()), tokens="ids")
    mixture = Mixture({"nothing": nothing, "b": ids(2, 40)}, weights={"nothing": 1, "b": 1})
    assert tokens_by_source(PackedLoader(dataset(mixture)), 2) == [0, 800]


# ---------------------------------------------------------------------- identity


def texts(folder: Path, name: str, lines: list[str]) -> JSONL:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return JSONL(str(path), reading=ReadOptions(block_documents=5))


def test_texts_and_ids_of_any_width_keep_their_source_through_the_batch(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "x" * 15})] * 60
    mixture = Mixture(
        {
            "text": texts(tmp_path, "t", lines),
            "wide": ids(69_000, 60, dtype=np.uint32),
            "narrow": ids(3, 60),
        },
        weights={"text": 1, "wide": 1, "narrow": 1},
    )
    seen = set()
    x = byte_tokenizer().token_to_id("x")
    for batch in PackedLoader(dataset(mixture, tokenizer=byte_tokenizer())):
        of_token = batch.document_ids.long()
        for source, expected in enumerate(({x, 256}, {69_000}, {3})):
            mine = (batch.source_ids == source).nonzero().ravel()
            here = batch.input_ids[(of_token[..., None] == mine).any(-1)]
            assert set(here.tolist()) <= expected
            if len(here):
                seen.add(source)
        assert (batch.source_ids.numpy() == batch.provenance["source"]).all()
    assert seen == {0, 1, 2}


def test_the_same_documents_get_other_seeds_in_another_source() -> None:
    seeds: dict[int, set[int]] = {0: set(), 1: set()}

    def note(documents: Any, values: Any) -> Any:
        for source, seed in zip(documents.origin["source"].tolist(), values.tolist(), strict=True):
            seeds[source].add(seed)
        return np.ones(len(documents), dtype=np.bool_)

    mixture = Mixture({"a": ids(1, 40), "b": ids(1, 40)}, weights={"a": 1, "b": 1})
    list(PackedLoader(dataset(mixture, filter=Hook("note", note))))
    assert len(seeds[0]) == len(seeds[1]) == 40
    assert not seeds[0] & seeds[1]


PARTS: dict[str, Any] = {
    "a number": lambda: 5,
    "no such file": lambda: "none.jsonl",
    "a kind of file that is not read": lambda: "table.csv",
    "fields without a choice": lambda: "fields.jsonl",
    "records without a choice": lambda: [{"x": 1, "y": "b"}],
    "no items": list,
    "texts without a tokenizer": lambda: ["one text"],
    "a generator in several lanes": lambda: ([1] for _ in range(9)),
    "a generator read twice": lambda: ([1] for _ in range(9)),
}


@pytest.mark.parametrize("kind", PARTS)
def test_a_wrong_part_is_named_by_its_name(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fields.jsonl").write_text('{"x": 1, "y": 2}\n')
    Path("table.csv").write_text("x\n1\n")

    def read() -> None:
        parts = {"good": ids(1, 9), "wrong": PARTS[kind]()}
        mixture = Mixture(parts, weights={"good": 1, "wrong": 1})
        for _ in PackedLoader(dataset(mixture, lanes=1 if "twice" in kind else 2, epochs=2)):
            pass

    with pytest.raises(ConfigError) as caught:
        read()
    assert caught.value.fact.count('"wrong"') == 1


def test_a_field_that_a_part_lacks_is_refused_with_the_name_of_the_part() -> None:
    mixture = Mixture({"a": [[1]] * 9, "b": [[2]] * 9}, weights={"a": 0, "b": 1})
    loader = PackedLoader(dataset(mixture, document_fields={"score": "int32"}))
    with pytest.raises(ConfigError) as caught:
        next(iter(loader))
    assert '"b"' in caught.value.fact


# ---------------------------------------------------------------------- broken content


BROKEN = '{"text": "mended"]'


def broken_mixture(folder: Path) -> Mixture:
    good = [json.dumps({"text": f"document {i}"}) for i in range(60)]
    members = {}
    for name, every in (("a", 7), ("b", 11)):
        lines = [BROKEN if i % every == 3 else line for i, line in enumerate(good)]
        members[name] = texts(folder, name, lines)
    return Mixture(members, weights={"a": 1, "b": 2}, quantum_documents=4)


def test_broken_documents_are_named_with_their_source(tmp_path: Path) -> None:
    mixture = broken_mixture(tmp_path)
    with pytest.raises(ContentError, match=r'In source "[ab]": '):
        list(PackedLoader(dataset(mixture, tokenizer=byte_tokenizer())))


@pytest.mark.sampled
def test_skips_are_recorded_by_source_and_repeated_from_any_batch(tmp_path: Path) -> None:
    mixture = broken_mixture(tmp_path)

    def make() -> PackedDataset:
        return dataset(mixture, tokenizer=byte_tokenizer(), on_error="skip", lanes=1)

    loader = PackedLoader(make())
    assert len(list(loader)) > 10
    assert loader.metrics().skipped == 9 + 6
    assert_restores_everywhere(make)


def test_a_resume_counts_skipped_documents_once(tmp_path: Path) -> None:
    mixture = broken_mixture(tmp_path)

    def make() -> PackedLoader:
        return PackedLoader(dataset(mixture, tokenizer=byte_tokenizer(), on_error="skip", lanes=1))

    loader = make()
    for _ in loader:
        found, again = loader.metrics().skipped, make()
        again.load_state_dict(loader.state_dict())
        assert all(batch.num_documents for batch in again)
        assert found + again.metrics().skipped == 9 + 6
        assert again.state_dict()["lanes"]["0"]["skipped"] == 9 + 6


def test_a_skipped_document_mended_since_is_refused_as_changed_data(tmp_path: Path) -> None:
    def make() -> PackedLoader:
        made = dataset(broken, tokenizer=byte_tokenizer(), on_error="skip", lanes=1)
        return PackedLoader(made)

    broken = broken_mixture(tmp_path)
    loader = make()
    for _ in zip(range(3), loader, strict=False):
        pass
    state = loader.state_dict()
    for path in sorted(tmp_path.glob("?.jsonl")):
        path.write_text(path.read_text().replace(BROKEN, BROKEN.replace("]", "}")))
    again = make()
    again.load_state_dict(state)
    with pytest.raises(StateError):
        list(again)


# ---------------------------------------------------------------------- settings and states


def test_a_state_of_another_mixture_is_refused_with_the_field() -> None:
    def make(weight: float) -> PackedLoader:
        mixture = Mixture({"a": ids(1, 40), "b": ids(2, 40)}, weights={"a": 1, "b": weight})
        return PackedLoader(dataset(mixture))

    loader = make(1)
    next(iter(loader))
    with pytest.raises(StateError, match=r"source\.shares"):
        make(2).load_state_dict(loader.state_dict())


@pytest.mark.sampled
def test_an_order_above_a_mixture_resumes_after_every_batch() -> None:
    rng = np.random.default_rng(1)
    members = {
        name: MemorySource([[rng.integers(0, 500, n).astype(np.uint16) for n in range(5, 45)]])
        for name in "ab"
    }

    def make() -> PackedDataset:
        mixture = Mixture(members, weights={"a": 1, "b": 2}, quantum_documents=6)
        return dataset(
            mixture,
            seq_len=None,
            packer=Concat(seq_len=SEQ_LEN),
            attention="row",
            order=SimilarityOrder(order_window_documents=5),
            epochs=2,
        )

    assert_restores_everywhere(make)


# ---------------------------------------------------------------------- an added source


def grown(weight: float) -> Mixture:
    return Mixture(
        {"a": ids(1, 600), "b": ids(2, 600), "new": ids(3, 600, 13)},
        weights={"a": 1, "b": 1, "new": weight},
        quantum_documents=4,
    )


def first_two() -> Mixture:
    return Mixture(
        {"a": ids(1, 600), "b": ids(2, 600)}, weights={"a": 3, "b": 1}, quantum_documents=5
    )


@pytest.mark.parametrize("behind", [0, 3, 40])
def test_an_added_source_starts_at_its_beginning_and_catches_nothing_up(behind: int) -> None:
    before = first_two()
    stream = lane_stream(before)
    expected = read(stream, 203)
    position = stream.position_before(203 - behind)
    cursor = json.loads(json.dumps(changed_cursor(position.cursor, before, 203)))
    again = lane_stream(grown(2), position=StreamPosition(position.serial, cursor))
    assert read(again, 203 - position.serial) == expected[position.serial :]
    later = again.position_before(again.serial)
    following = read(again, 400)
    rest = [source for source, _, _ in following]
    start = rest.index(2)
    assert start <= 5  # the rest of the quantum
    length = np.array([20, 20, 13])
    drawn = np.zeros(3)
    for source in rest[5:]:
        drawn[source] += length[source]
        due = drawn.sum() * np.array([0.25, 0.25, 0.5])
        assert (np.abs(drawn - due) <= 3 * 5 * 20).all()
    again = lane_stream(
        grown(2), position=StreamPosition(later.serial, json.loads(json.dumps(later.cursor)))
    )
    read(again, 203 - later.serial)
    assert read(again, 400) == following


def test_a_source_that_changed_or_went_is_not_an_added_source() -> None:
    before, now = first_two(), grown(1)
    other = Mixture({"b": ids(2, 600), "a": ids(1, 600)}, weights={"a": 1, "b": 1})
    for mixture in (before, now, other):
        mixture.prepare()
    with pytest.raises(StateError, match=r"sources\.a\.number"):
        earlier_mixture(other, before.describe(), other.describe())
    stream = lane_stream(now)
    read(stream, 50)
    position = stream.position_before(50)
    with pytest.raises(StateError, match="new"):
        lane_stream(before, position=position)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batches", [2, 30])
def test_a_source_is_added_to_a_run_and_every_document_comes_once(batches: int) -> None:
    def loader(mixture: Mixture) -> PackedLoader:
        return PackedLoader(dataset(mixture))

    begun = loader(first_two())
    found = [batch for _, batch in zip(range(batches), begun, strict=False)]
    state = json.dumps(begun.state_dict())
    with pytest.raises(StateError):
        loader(grown(2)).load_state_dict(json.loads(state))
    joined = loader(grown(2))
    joined.load_state_dict(json.loads(state), allow={"source"})
    states, rest = [], []
    for batch in joined:
        rest.append(batch)
        states.append(json.dumps(joined.state_dict()))
    assert tokens_by_source([*found, *rest], 3) == [12_000, 12_000, 7_800]
    pieces = np.concatenate([batch.provenance for batch in [*found, *rest]])
    place = ["source", "shard", "index", "start"]
    assert len(np.unique(pieces[place])) == len(pieces)
    for i in (0, 1, 3, 20, len(states) - 1):  # without a second allow=
        again = loader(grown(2))
        again.load_state_dict(json.loads(states[i]))
        for batch, expected in zip(again, rest[i + 1 :], strict=True):
            assert batch.input_ids.equal(expected.input_ids)


def test_a_source_is_added_twice_and_the_weights_may_change() -> None:
    members = {name: ids(i, 200) for i, name in enumerate("abc")}
    legs = [{"a": 1}, {"a": 1, "b": 4}, {"a": 5, "b": 1}, {"a": 1, "b": 1, "c": 1}]
    state, found = None, []
    for leg in legs:
        mixture = Mixture({name: members[name] for name in leg}, weights=leg)
        loader = PackedLoader(dataset(mixture))
        if state is not None:
            loader.load_state_dict(json.loads(state), allow={"source"})
        for batch in loader:
            found.append(batch)
            if len(found) % 5 == 0 and leg is not legs[-1]:
                break
        state = json.dumps(loader.state_dict())
    assert tokens_by_source(found, 3) == [4000, 4000, 4000]


def test_sources_that_cannot_join_a_run_are_refused() -> None:
    plain = PackedLoader(dataset(ids(1, 500)))
    next(iter(plain))
    with pytest.raises(StateError):
        PackedLoader(dataset(first_two())).load_state_dict(plain.state_dict(), allow={"source"})
    ended = PackedLoader(dataset(first_two()))
    for _ in ended:
        pass
    with pytest.raises(StateError):
        PackedLoader(dataset(grown(1))).load_state_dict(ended.state_dict(), allow={"source"})
