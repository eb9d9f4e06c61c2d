"""Runs of several ranks over versions of a table; texts begin with the keys of their rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from typing import Any

from streampack import (
    PackedBatch,
    PackedDataset,
    PackedLoader,
    Topology,
    WindowConfig,
    merge_states,
)
from streampack.testing import SimulatedRanks
from tests.support.corpora import byte_tokenizer

TOKENIZER = byte_tokenizer()
Rows = dict[int, list[list[Any]]]


def record(row: dict[str, Any]) -> dict[str, Any]:
    """The text of a row, which begins with its key."""
    return {"text": f"{row['key']}:{row['text']}"}


def keys_in(batches: Iterable[PackedBatch]) -> Counter[int]:
    """How often batches have the document of each key."""
    keys: Counter[int] = Counter()
    for batch in batches:
        ids, documents = batch.input_ids.numpy(), batch.document_ids.numpy()
        for number in range(int(documents.max()) + 1):
            text = TOKENIZER.decode([i for i in ids[documents == number].tolist() if i < 256])
            keys[int(text.partition(":")[0])] += 1
    return keys


def run(
    source: Any, state: Any, steps: int | None, *, ranks: int = 1, lanes: int = 6, **more: Any
) -> tuple[Counter[int], Any]:
    """Keys of the documents of all ranks in these steps, and the merged state after them."""
    simulated = SimulatedRanks(ranks)
    workers = more.pop("num_workers", 0)
    settings = {"seq_len": 64, "batch_size": 2, "window": WindowConfig(rows=6), **more}

    def of_rank(rank: int) -> tuple[Counter[int], Any]:
        dataset = PackedDataset(
            source, tokenizer=TOKENIZER, lanes=lanes, topology=Topology(rank, ranks), **settings
        )
        loader = PackedLoader(
            dataset, ranks=simulated[rank] if ranks > 1 else None, num_workers=workers
        )
        if state is not None:
            loader.load_state_dict(state, allow={"source"})
        return keys_in(islice(loader, steps)), loader.state_dict()

    with ThreadPoolExecutor(ranks) as threads:
        results = list(threads.map(of_rank, range(ranks)))
    keys = sum((each for each, _ in results), Counter[int]())
    return keys, json.loads(json.dumps(merge_states([state for _, state in results])))


def check(versions: list[int], parts: list[Counter[int]], rows: Rows) -> None:
    """All documents once; none that a version lacks; and none lost that all later ones have."""
    live = [{row[0] for row in rows[version]} for version in versions]
    for keys, known in zip(parts, live, strict=True):
        assert not keys.keys() - known
    total = sum(parts, Counter[int]())
    assert set(total.values()) == {1}
    restored = {k for a, b in pairwise(live) for k in a - b}
    assert live[-1] - total.keys() <= restored
