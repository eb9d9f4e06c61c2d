"""States that were saved when every footer, schema and index was read before the first batch.

Files weighed their rows then, or the tokens that their headers declared. The folder
`states_of_before` has a corpus, and for each run the state after some batches with a hash of the
batches that followed; `python -m tests.run.test_states_of_before FOLDER` wrote it, with the
streampack of then. The state of "weights" is younger: a change of weights reopened the lanes then,
and held from the next batch.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streampack import (
    BestFitDecreasing,
    PackedDataset,
    PackedLoader,
    WindowConfig,
    sources,
)
from tests.run.test_golden_batches import CHAT, hashed, text_options
from tests.support.flat_files import write_megatron

FOLDER = Path(__file__).parent / "states_of_before"
GIVEN = 17  # batches before the state
#: Changes of weights by the number of the batch after which they were asked for, with their step.
CHANGES: dict[str, dict[int, tuple[dict[str, float], int]]] = {
    "weights": {4: ({"ids": 1, "megatron": 4}, 5), 12: ({"ids": 5, "megatron": 1}, 30)}
}
WEIGHTS = {"ids": 2, "megatron": 1, "arrow": 1}  # once a source has joined


def write_corpus(folder: Path) -> None:
    """Files that compress unequally, so that their rows and their bytes weigh differently."""
    rng = random.Random(5)

    def ids(count: int, high: int) -> list[list[int]]:
        return [
            [1 + rng.randrange(high) for _ in range(1 + rng.randrange(40))] for _ in range(count)
        ]

    for name in ("ids", "text", "chats", "megatron", "arrow"):
        (folder / name).mkdir(parents=True)
    for number, (count, high) in enumerate(((90, 250), (150, 2), (0, 9), (20, 60_000))):
        rows = pa.array(ids(count, high), pa.list_(pa.uint16() if number else pa.uint8()))
        pq.write_table(pa.table({"ids": rows}), folder / f"ids/{number}.parquet", row_group_size=40)
    for number, (count, high) in enumerate(((60, 26), (100, 1))):
        texts = ["".join(chr(96 + i) for i in own) for own in ids(count, high)]
        pq.write_table(pa.table({"text": texts}), folder / f"text/{number}.parquet")
        talks = [
            [{"role": "user", "content": q}, {"role": "assistant", "content": a}]
            for q, a in zip(texts[::2], texts[1::2], strict=True)
        ]
        pq.write_table(pa.table({"messages": talks}), folder / f"chats/{number}.parquet")
    for number, dtype in enumerate(("uint16", "int32", "uint16")):
        documents = [[np.array(own)] for own in ids(70 if number < 2 else 0, 250)]
        write_megatron(folder / f"megatron/{number}", documents, dtype)
    for number, kind in enumerate((pa.uint16(), pa.uint32())):
        table = pa.table({"ids": pa.array(ids(80, 250), pa.list_(kind))})
        with pa.OSFile(str(folder / f"arrow/{number}.arrow"), "wb") as file:
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=30)


def run(source: Any, batch_size: int = 2, lanes: int = 3, **options: Any) -> PackedDataset:
    return PackedDataset(
        source,
        packer=BestFitDecreasing(seq_len=64, overflow="split"),
        batch_size=batch_size,
        lanes=lanes,
        window=WindowConfig(rows=8),
        epochs=2,
        **options,
    )


def mixture(corpus: Path, *names: str, **options: Any) -> sources.Mixture:
    return sources.Mixture({name: corpus / name for name in names}, **options)


KINDS: dict[str, Callable[..., PackedDataset]] = {
    "parquet": lambda c, **options: run(c / "ids", **options),
    "in order": lambda c: run(c / "ids", shuffle=False, lanes=1),
    "text": lambda c: run(c / "text", **text_options()),
    "chat": lambda c: run(sources.Chat(c / "chats", template=CHAT), **text_options()),
    "megatron": lambda c: run(c / "megatron"),
    "arrow": lambda c: run(sources.Arrow(c / "arrow")),
    "mixture": lambda c, **options: run(mixture(c, "ids", "megatron"), **options),
    "weights": lambda c: run(mixture(c, "ids", "megatron")),
}


def resumed(dataset: PackedDataset, state: dict[str, Any], *allow: str) -> PackedLoader:
    loader = PackedLoader(dataset)
    loader.load_state_dict(state, allow=allow)
    return loader


def changed(corpus: Path, kind: str, state: dict[str, Any]) -> dict[str, str]:
    """Hashes of the runs that go on from a state with other settings."""
    if kind not in ("parquet", "mixture"):
        return {}
    found = {"in threes": hashed(resumed(KINDS[kind](corpus, batch_size=3), state, "batch_size"))}
    if kind == "mixture":
        joined = run(mixture(corpus, *WEIGHTS, weights=WEIGHTS))
        found["joined"] = hashed(resumed(joined, state, "source"))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_before_continues_with_the_batches_of_before(kind: str) -> None:
    corpus, expected = FOLDER / "corpus", json.loads((FOLDER / f"{kind}.json").read_text())
    state = expected.pop("state")
    loader = resumed(KINDS[kind](corpus), state)
    batches = list(islice(loader, 5))
    later = loader.state_dict()
    rest = list(resumed(KINDS[kind](corpus), later))
    assert {"following": hashed([*batches, *rest]), **changed(corpus, kind, state)} == expected


def main(folder: Path, *kinds: str) -> None:
    """Write the states of some runs, or the corpus and the states of all."""
    corpus = folder / "corpus"
    if not kinds:
        write_corpus(corpus)
    for kind in kinds or KINDS:
        loader = PackedLoader(KINDS[kind](corpus))
        iterator = iter(loader)
        for number in range(GIVEN):
            next(iterator)
            if number in CHANGES.get(kind, ()):
                weights, step = CHANGES[kind][number]
                loader.set_weights(weights, from_step=step)
        state = loader.state_dict()
        found = {"state": state, "following": hashed(iterator), **changed(corpus, kind, state)}
        (folder / f"{kind}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
