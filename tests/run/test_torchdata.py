"""torchdata's StatefulDataLoader resumes exactly on the same ranks and workers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streampack import PackedDataset, Topology, WindowConfig, sources
from streampack.errors import StateError
from streampack.packing import BestFitDecreasing
from tests.support.drawn import sampled
from tests.support.memory_source import MemorySource, heavy_tailed, numbered_documents
from tests.support.runs import identity
from tests.support.tree_reference import branching

stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader")

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

SEQ_LEN = 32
LANES = 12
DOCUMENTS = numbered_documents(heavy_tailed(160, seed=5))


def make_dataset(rank: int = 0, ranks: int = 1, **options: Any) -> PackedDataset:
    values: dict[str, Any] = {
        "packer": BestFitDecreasing(seq_len=SEQ_LEN),
        "batch_size": 2,
        "window": WindowConfig(rows=10),
        "lanes": LANES,
        "topology": Topology(rank, ranks),
    }
    source: Any = MemorySource([DOCUMENTS[:90], DOCUMENTS[90:]], block_documents=9)
    if options.get("layout") == "tree":
        source = sources.Items(
            branching(DOCUMENTS, 24), reading=sources.ReadOptions(block_documents=9)
        )
        values["packer"] = BestFitDecreasing(seq_len=SEQ_LEN, overflow="error")
    return PackedDataset(source, **{**values, **options})


def make_loader(dataset: PackedDataset, workers: int, **options: Any) -> Any:
    return stateful_dataloader.StatefulDataLoader(
        dataset, batch_size=None, num_workers=workers, **options
    )


def states_of(dataset: PackedDataset, workers: int, **options: Any) -> tuple[list[Any], list[str]]:
    """The batches of a loader, and its state before the first of them and behind each."""
    loader = make_loader(dataset, workers, **options)
    states = [json.dumps(loader.state_dict())]
    batches = []
    for batch in loader:
        batches.append(identity(batch))
        states.append(json.dumps(loader.state_dict()))
    return batches, states


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("workers", "layout"),
    [
        (2, "documents"),
        *(
            pytest.param(workers, layout, marks=pytest.mark.slow)
            for workers, layout in (
                (0, "tree"),
                (0, "documents"),
                (2, "tree"),
                (3, "documents"),
                (3, "tree"),
            )
        ),
    ],
)
def test_resuming_after_every_batch_gives_the_same_rest(workers: int, layout: str) -> None:
    batches, states = states_of(make_dataset(0, 2, layout=layout), workers)
    assert len(batches) > 18
    for taken, state in sampled(enumerate(states[:-1]), part=1 / 12 if workers else 1 / 6):
        again = make_loader(make_dataset(0, 2, layout=layout), workers)
        again.load_state_dict(json.loads(state))
        assert [identity(batch) for batch in again] == batches[taken:]


def test_a_loader_of_other_ranks_workers_or_settings_refuses_the_state() -> None:
    _, states = states_of(make_dataset(0, 2), 0)
    state = json.loads(states[5])
    for dataset in (make_dataset(0, 3), make_dataset(1, 2), make_dataset(0, 2, seed=1)):
        loader = make_loader(dataset, 0)
        loader.load_state_dict(state)
        with pytest.raises(StateError):
            next(iter(loader))
    _, states = states_of(make_dataset(0, 2), 2)
    inner = json.loads(states[5])["_snapshot"]["_worker_snapshots"]["worker_1"]
    iterator = iter(make_dataset(0, 2))
    with pytest.raises(StateError):
        iterator.load_state_dict(inner["fetcher_state"]["dataset_iter_state"])
