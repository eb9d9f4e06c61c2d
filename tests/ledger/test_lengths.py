"""Lengths that runs keep, and replays of lanes on them."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import Hook, PackedDataset, PackedLoader, Topology, merge_states, sources
from streampack.accounts import lengths
from streampack.accounts.lengths import Block, KeptLengths
from streampack.documents.blocks import Documents
from streampack.ledger.replay import Replayed
from streampack.ledger.seen import seen
from streampack.sources.reading import ReadOptions
from tests.support.corpora import byte_tokenizer

Rows = list[tuple[int, str]]


def few(documents: Documents, seeds: Any) -> Any:
    """A filter that empties many chunks and some blocks."""
    return documents.lengths == 31


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of texts with names; some are so long that few are tokenized at once."""
    folder, rng = tmp_path_factory.mktemp("texts"), random.Random(5)
    for shard in range(5):
        sizes = [rng.choice((3, 10, 30, 200)) for _ in range(rng.randrange(20, 70))]
        lines = [
            {"text": chr(97 + n % 26) * size, "name": f"{shard}-{n}", "size": size}
            for n, size in enumerate(sizes)
        ]
        path = folder / f"{shard}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are tokenized in chunks of few documents or of 150 characters."""
    monkeypatch.setattr("streampack.streams.stream.CHUNK_DOCUMENTS", 5)
    monkeypatch.setattr("streampack.streams.stream.CHUNK_CHARACTERS", 150)


def dataset_of(corpus: Path, rank: int = 0, ranks: int = 1, **settings: Any) -> PackedDataset:
    source = sources.JSONL(
        str(corpus / "*.jsonl"), text="text", reading=ReadOptions(block_documents=8)
    )
    settings = {"seq_len": 32, "batch_size": 2, "lanes": 4, **settings}
    return PackedDataset(
        source, tokenizer=byte_tokenizer(), topology=Topology(rank, ranks), provenance=True,
        document_fields={"name": "text"}, **settings,
    )  # fmt: skip


def kept(dataset: PackedDataset, folder: Path) -> PackedDataset:
    """The dataset, which keeps lengths in a folder."""
    config = dataset._config
    object.__setattr__(config, "wrappers", (*config.wrappers, KeptLengths(folder)))
    return dataset


def run(
    corpus: Path, folder: Path, legs: list[tuple[int, int | None]], **settings: Any
) -> Iterator[tuple[Rows, Any]]:
    """Yield batches and places of pieces of each leg, of a number of ranks and steps, and state."""
    state = None
    for ranks, steps in legs:
        rows, states = [], []
        for rank in range(ranks):
            dataset = kept(dataset_of(corpus, rank, ranks, **settings), folder)
            loader = PackedLoader(dataset)
            if state is not None:
                loader.load_state_dict(state)
            for batch in islice(loader, steps):
                number = batch.step * 4 + batch.lane
                rows += [(number, str(piece)) for piece in dataset.locate(batch)]
            states.append(loader.state_dict())
        state = json.loads(json.dumps(merge_states(states)))
        yield rows, state


RUNS: dict[str, dict[str, Any]] = {
    "one epoch": {},
    "two epochs, filtered": {"epochs": 2, "filter": Hook("few", few)},
    "endless": {"epochs": None},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", RUNS)
def test_a_replay_on_lengths_has_the_batches_of_any_legs(
    name: str, corpus: Path, tmp_path: Path
) -> None:
    rng, settings = random.Random(name), RUNS[name]
    legs = [(rng.choice([1, 2, 4]), rng.randrange(6, 16)) for _ in range(3)]
    parts = list(run(corpus, tmp_path, legs, **settings))
    state, expected = parts[-1][1], sorted(row for rows, _ in parts for row in rows)
    places = {text.rpartition(", tokens")[0] for _, text in expected}
    asked = [{"name": [f"{n % 5}-{n}" for n in range(0, 70, 3)]}, *sorted(places)[::4]]
    dataset = dataset_of(corpus, **settings)
    found = {}
    for folder in (tmp_path / "empty", tmp_path):
        replayed = Replayed(folder)
        found[folder] = list(seen(dataset, state, asked, batches=0, replayed=replayed))
    assert found[tmp_path] == found[tmp_path / "empty"]
    of_places = [row for row in expected if row[1].rpartition(", tokens")[0] in asked]
    both = sorted((each.batch, str(each.piece)) for each in found[tmp_path])
    assert set(of_places) < set(both) < set(expected)
    # After each leg a block of each lane is left that no process saw from beginning to end.
    assert 0 < replayed.counts["corpus"] <= 3 * 4 * 8
    assert replayed.counts["lengths"] > 40
    again = Replayed(tmp_path)
    assert list(seen(dataset, state, asked, batches=0, replayed=again)) == found[tmp_path]
    assert again.counts["corpus"] <= 4 * 8


@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_damaged_files_of_lengths_are_read_up_to_the_damage(
    damage: str, corpus: Path, tmp_path: Path
) -> None:
    ((rows, state),) = run(corpus, tmp_path, [(1, None)])
    asked = sorted({text.rpartition(", tokens")[0] for _, text in rows})
    for file in tmp_path.glob("*/*.lengths"):
        data = bytearray(file.read_bytes())
        if damage == "flipped":
            data[len(data) // 2] ^= 1
        file.write_bytes(data[: len(data) // 2] if damage == "cut" else data * (damage != "empty"))
    replayed = Replayed(tmp_path)
    found = seen(dataset_of(corpus), state, asked, replayed=replayed)
    assert sorted((each.batch, str(each.piece)) for each in found) == sorted(rows)
    assert replayed.counts["corpus"] > 0
    assert bool(replayed.counts["lengths"]) == (damage != "empty")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "other", [{"seed": 1}, {"shuffle": False}, {"filter": Hook("few", few)}, {"lanes": 2}]
)
def test_a_run_with_other_settings_has_other_lengths(
    other: Any, corpus: Path, tmp_path: Path
) -> None:
    list(run(corpus, tmp_path, [(1, None)]))
    ((rows, state),) = run(corpus, tmp_path / "other", [(1, 3)], **other)
    replayed = Replayed(tmp_path)
    asked = [text.rpartition(", tokens")[0] for _, text in rows[:9]]
    assert list(seen(dataset_of(corpus, **other), state, asked, batches=0, replayed=replayed))
    assert replayed.counts["lengths"] == 0


def test_documents_taken_out_and_keys_of_a_column_that_is_no_field(
    corpus: Path, tmp_path: Path
) -> None:
    out = {"name": [f"{n % 5}-{n}" for n in range(0, 70, 2)]}
    ((rows, state),) = run(corpus, tmp_path, [(1, None)], exclude=out)
    places = sorted({text.rpartition(", tokens")[0] for _, text in rows})
    dataset = dataset_of(corpus, exclude=out)
    replayed = Replayed(tmp_path)
    found = seen(dataset, state, places, batches=0, replayed=replayed)
    assert sorted((each.batch, str(each.piece)) for each in found) == sorted(rows)
    assert replayed.counts["corpus"] == 0
    replayed = Replayed(tmp_path)
    of_size = list(seen(dataset, state, {"size": [30]}, batches=0, replayed=replayed))
    assert {each.piece.stop for each in of_size if each.piece.start == 0} == {31}
    assert replayed.counts["lengths"] == 0


def test_a_run_goes_on_where_lengths_cannot_be_kept(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.touch()
    ((rows, _),) = run(corpus, tmp_path, [(1, None)])
    with caplog.at_level(logging.WARNING):
        ((same, _),) = run(corpus, file, [(1, None)])
    assert same == rows
    assert sum(str(file) in record.getMessage() for record in caplog.records) == 1


def test_a_ledger_keeps_lengths_in_the_cache_folder(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loader = PackedLoader(dataset_of(corpus, ledger=True), num_workers=2)
    for _ in loader:
        pass
    replayed = Replayed(lengths.lengths_folder())
    list(seen(dataset_of(corpus), loader.state_dict(), [], replayed=replayed))
    assert replayed.counts["corpus"] == 0
    files = [*tmp_path.glob("streampack/lengths/*/*.lengths")]
    assert sorted({file.name.partition("-")[0] for file in files}) == ["0", "1", "2", "3"]


def test_a_block_is_the_same_from_its_bytes() -> None:
    rng = np.random.default_rng(0)
    columns = np.stack(
        [
            np.zeros(100, np.int64),
            rng.integers(0, 3, 100),
            rng.integers(0, 1 << 40, 100),
            rng.integers(1, 70_000, 100),
            rng.integers(-(1 << 63), (1 << 63) - 1, 100),
            rng.integers(-5, 5, 100),
        ]
    )
    block = Block(
        [[0, None, {}]], (1, None), {"at": 3}, [(60, 0.5), (40, 0.0)], ["a", "b"], columns
    )
    same = Block.unpacked(block.packed())
    assert (same.columns == columns).all()
    assert same.place == block.place
    assert [tuple(chunk) for chunk in same.chunks] == block.chunks
