"""Evaluation: the same documents in the same batches, whatever evaluates them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import (
    PackedDataset,
    PackedLoader,
    TokenRules,
    Topology,
    WindowConfig,
    sources,
)
from streampack.errors import ConfigError
from streampack.packing import BestFitDecreasing
from tests.support.every_source import SOURCES
from tests.support.memory_source import MemorySource, heavy_tailed, numbered_documents
from tests.support.runs import identity, in_order
from tests.support.simulated_ranks import on_ranks

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

SEQ_LEN = 32
DOCUMENTS = numbered_documents(heavy_tailed(300, seed=6))
PAD = 4_000_000


def evaluation(topology: Topology, source: Any = None, **options: Any) -> PackedDataset:
    source = source or MemorySource([DOCUMENTS[:90], DOCUMENTS[90:]], block_documents=9)
    values: dict[str, Any] = {
        "packer": BestFitDecreasing(seq_len=SEQ_LEN),
        "batch_size": 2,
        "window": WindowConfig(rows=10),
        "token_rules": TokenRules(pad_id=PAD),
    }
    return PackedDataset.evaluation(source, topology=topology, **{**values, **options})


def on(world_size: int, **options: Any) -> list[Any]:
    def run(rank: int, ranks: Any) -> list[Any]:
        loader = PackedLoader(evaluation(Topology(rank, world_size), **options), ranks=ranks)
        return [identity(batch) for batch in loader]

    return in_order(on_ranks(world_size, run))


@pytest.mark.parametrize("world_size", [1, 3, 5])
def test_every_token_is_evaluated_once_and_the_tail_is_masked(world_size: int) -> None:
    found = on(world_size)
    ids = [i for batch in found for i in batch[2] if i != PAD]
    assert sorted(ids) == list(range(sum(map(len, DOCUMENTS))))
    loader = PackedLoader(evaluation(Topology()))
    for batch in loader:
        assert (batch.labels[batch.document_ids < 0] == -100).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["mds-tokens", "tar", "jsonl-gz", "mixture", "list", "chat"])
def test_every_kind_of_source_is_evaluated_alike(kind: str, tmp_path: Path) -> None:
    from tests.support.chats import CHATML, with_template
    from tests.support.corpora import byte_tokenizer

    source = SOURCES[kind](tmp_path)
    source.prepare()
    options: dict[str, Any] = {
        "source": source,
        "packer": None,
        "seq_len": SEQ_LEN,
        "token_rules": None,
    }
    if kind in ("mixture", "chat"):
        options |= {"packer": BestFitDecreasing(seq_len=SEQ_LEN, overflow="drop"), "seq_len": None}
    if not source.tokenized:
        options["tokenizer"] = with_template(byte_tokenizer(), CHATML)
    sequences = []
    for world_size in (1, 3, 4):
        batches = on(world_size, **options)
        sequences.append([batch for batch in batches if len(set(batch[2])) > 1])
    assert sequences[0] == sequences[1] == sequences[2]
    assert sequences[0]


def test_the_order_is_the_corpus_order_and_lanes_depend_on_it_alone() -> None:
    one = evaluation(Topology(), lanes=1, provenance=True)
    seen = np.concatenate([batch.provenance["index"] for batch in PackedLoader(one)])
    # Rows are shuffled in a window; documents come into it in order.
    assert np.abs(np.sort(seen[:20]) - np.arange(20)).max() < 60
    counts = {evaluation(Topology(0, n)).plan.fingerprint["lanes"] for n in (1, 3, 7, 64)}
    assert len(counts) == 1
    assert (
        evaluation(Topology(0, 7)).plan.fingerprint == evaluation(Topology(2, 3)).plan.fingerprint
    )
    corpus = MemorySource([[np.zeros(2000, dtype=np.uint16)] * 400] * 9)
    assert evaluation(Topology(0, 5), source=corpus).plan.fingerprint["lanes"] == 48


@pytest.mark.parametrize("wrong", [{"shuffle": True}, {"epochs": None}])
def test_an_evaluation_is_neither_shuffled_nor_endless(wrong: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, TypeError), match=next(iter(wrong))):
        PackedDataset.evaluation([[1, 2, 3]] * 9, seq_len=8, **wrong)
    PackedDataset.evaluation([[1, 2, 3]] * 9, seq_len=8, epochs=2)


def test_training_refuses_some_settings_of_evaluation() -> None:
    source = sources.Iterable([[1, 2, 3]] * 9)
    with pytest.raises(ConfigError, match="can be split into 1 lanes at most"):
        PackedDataset.evaluation(source, seq_len=8, lanes=2, topology=Topology())
    assert (
        PackedDataset.evaluation(source, seq_len=8, topology=Topology(1, 3)).plan.config.lanes == 1
    )
