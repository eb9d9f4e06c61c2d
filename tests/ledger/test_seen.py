"""The ledger of a run against the provenance of its batches."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from streampack import (
    PackedDataset,
    PackedLoader,
    TokenRules,
    Topology,
    merge_states,
    packing,
    sources,
)
from streampack.accounts.lengths import KeptLengths
from streampack.cli.app import app
from streampack.errors import StateError
from streampack.ledger.replay import Replayed
from streampack.ledger.seen import seen, sees_contents
from tests.run import test_golden_batches as golden

Rows = list[tuple[int, int | None, str]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> golden.Corpus:
    return golden.Corpus(tmp_path_factory.mktemp("corpus"))


def rows_of(dataset: PackedDataset, batches: Any, lanes: int) -> Rows:
    """Batch, row and piece of every document piece that a loop gets."""
    rows = []
    for batch in batches:
        for number, piece in enumerate(dataset.locate(batch)):
            held = (batch.document_ids == number).any(dim=1).nonzero().flatten().tolist()
            row = held[0] if held else None
            rows.append((batch.step * lanes + batch.lane, row, str(piece)))
    return rows


def keeping(dataset: PackedDataset, folder: Path) -> PackedDataset:
    """The same run, which keeps lengths in a folder."""
    config = dataset._config
    object.__setattr__(config, "wrappers", (*config.wrappers, KeptLengths(folder)))
    return dataset


def with_packer(packer: packing.Packer, **settings: Any) -> Callable[[golden.Corpus], Any]:
    """A run of documents with a loss mask by a packer that no golden run has."""

    def made(corpus: golden.Corpus) -> PackedDataset:
        source = sources.Parquet(corpus.path("ids.parquet"), loss_mask="loss_mask")
        rules = TokenRules(eos_id=255, pad_id=0)
        return PackedDataset(
            source, packer=packer, batch_size=2, lanes=golden.LANES, token_rules=rules, **settings
        )

    return made


REPOSITORY: Any = {"document_fields": {"repository": "int32"}}
KINDS = {
    **{kind: make for kind, make in golden.KINDS.items() if kind != "list, provenance"},
    "pad": with_packer(packing.Pad(seq_len=128)),
    "crop": with_packer(packing.BestFitCrop(seq_len=128)),
    "first fit": with_packer(packing.FirstFitDecreasing(seq_len=64, overflow="drop")),
    "balance by loss": with_packer(
        packing.BestFitDecreasing(seq_len=512, overflow="drop", choice=packing.Balance("loss"))
    ),
    "separate rows": with_packer(
        packing.BestFitDecreasing(seq_len=128, limits=[packing.Separate("repository")]),
        **REPOSITORY,
    ),
    "separate batches": with_packer(
        packing.BestFitDecreasing(
            seq_len=128, limits=[packing.Separate("repository", batches=True)]
        ),
        **REPOSITORY,
    ),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", KINDS)
def test_the_ledger_has_every_batch_of_every_document(
    kind: str, corpus: golden.Corpus, tmp_path: Path
) -> None:
    traced = keeping(KINDS[kind](corpus), tmp_path / "run").with_provenance()
    loader = PackedLoader(traced)
    batches = iter(loader)
    before = rows_of(traced, islice(batches, 3), golden.LANES)
    state = json.loads(json.dumps(loader.state_dict()))
    expected = before + rows_of(traced, batches, golden.LANES)
    places = sorted({piece.rpartition(", tokens")[0] for _, _, piece in expected})
    asked = random.Random(kind).sample(places, len(places) // 3)
    dataset = KINDS[kind](corpus)
    for folder, known in (("run", True), ("ledger", False), ("ledger", True)):
        replayed = Replayed(tmp_path / folder)
        ledger = list(seen(dataset, state, asked, replayed=replayed))
        assert [(each.batch, each.row, str(each.piece)) for each in ledger] == [
            row for row in expected if row[2].rpartition(", tokens")[0] in asked
        ]
        assert sum(each.delivered for each in ledger) == sum(
            row[2].rpartition(", tokens")[0] in asked for row in before
        )
        if not sees_contents(dataset._config):
            assert replayed.counts["corpus" if known else "lengths"] == 0
            assert replayed.counts["lengths" if known else "corpus"] > 60


def dataset_of(folder: Path, **settings: Any) -> PackedDataset:
    return PackedDataset(
        str(folder / "*.parquet"), tokens="tokens", seq_len=64, batch_size=2, lanes=4,
        provenance=True, **settings,
    )  # fmt: skip


def steps_of(dataset: PackedDataset, state: Any, steps: int, ranks: int) -> tuple[Rows, Any]:
    """Rows and the merged state of ranks that do not know of each other, in single steps."""
    rows, states = [], []
    for rank in range(ranks):
        dataset.topology, dataset._detected, dataset._plan = Topology(rank, ranks), False, None
        loader = PackedLoader(dataset)
        if state is not None:
            loader.load_state_dict(state)
        rows += rows_of(dataset, islice(loader, steps), 4)
        states.append(loader.state_dict())
    return sorted(rows), json.loads(json.dumps(merge_states(states)))


def test_documents_that_were_taken_out_meanwhile_are_in_earlier_batches_only(
    tmp_path: Path, corpus: golden.Corpus
) -> None:
    names = [f"name-{i}" for i in range(len(corpus.ids))]
    pq.write_table(pa.table({"tokens": corpus.ids, "name": names}), tmp_path / "0.parquet")
    first, state = steps_of(dataset_of(tmp_path), None, 5, 2)
    out = names[::5]
    second, state = steps_of(dataset_of(tmp_path, exclude={"name": out}), state, 4, 2)
    now = dataset_of(tmp_path, exclude=[{"name": out}, {"name": names[1:20]}])
    third, state = steps_of(now, state, 3, 1)
    asked = {f"{tmp_path}/0.parquet, index {i}" for i in (*range(0, 240, 5), *range(90))}
    expected = [r for r in first + second + third if r[2].rpartition(", tokens")[0] in asked]
    documents = {"name": [names[int(place.rpartition(" ")[2])] for place in asked]}
    ledger = [each for each in seen(now, state, documents, batches=0) if each.delivered]
    assert sorted((each.batch, each.row, str(each.piece)) for each in ledger) == expected


def test_a_run_with_other_settings_is_not_taken_for_this_one(corpus: golden.Corpus) -> None:
    loader = PackedLoader(golden.packed(corpus, "ids.parquet"))
    next(iter(loader))
    changed = golden.packed(corpus, "ids.parquet", packer=packing.Concat(seq_len=64))
    later = PackedLoader(changed)
    later.load_state_dict(loader.state_dict(), allow={"packer"})
    list(islice(later, 4))
    with pytest.raises(StateError):
        list(seen(changed, later.state_dict(), [f"{corpus.path('ids.parquet')}, index 3"]))


def test_the_command_prints_step_rank_and_row(tmp_path: Path) -> None:
    lines = [{"text": "ab" * (1 + i % 30), "id": i} for i in range(300)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    golden.byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    code = (
        "from streampack import PackedDataset\n\n\ndef make():\n"
        f"    return PackedDataset({str(tmp_path / 'texts.jsonl')!r}, seq_len=64, lanes=3,\n"
        f"        batch_size=2, tokenizer={str(tmp_path / 'tokenizer.json')!r})\n"
    )
    (tmp_path / "train.py").write_text(code)
    scope: dict[str, Any] = {}
    exec(code, scope)
    loader = PackedLoader(scope["make"]())
    list(islice(loader, 6))
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    command = ["ledger", str(tmp_path / "state.json"), "--dataset", f"{tmp_path}/train.py:make"]
    done = CliRunner().invoke(app, [*command, "--document", "id=7", "--ranks", "2", "--json"])
    assert done.exit_code == 0, done.output
    (found,) = [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]
    assert found["index"] == sum(len(json.dumps(line)) + 1 for line in lines[:7])
    assert found["rank"] in (0, 1)
    assert found["delivered"] == (found["step"] <= 3)
