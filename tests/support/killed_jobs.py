"""Jobs of several ranks over one corpus, killed on their way and gone on with by others."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from streampack import (
    Hook,
    PackedBatch,
    PackedDataset,
    PackedLoader,
    Topology,
    WindowConfig,
    merge_states,
    sources,
)
from streampack.documents.blocks import Documents
from streampack.packing import BestFitDecreasing
from streampack.sources.base import Source
from streampack.trees.batch import TreeBatch
from tests.support.memory_source import MemorySource, heavy_tailed, numbered_documents
from tests.support.tree_reference import branching

__all__ = [
    "DOCUMENTS",
    "LANES",
    "SAVE_EVERY",
    "assert_legs",
    "batches_by_number",
    "children",
    "logged",
    "make_dataset",
    "run_and_kill",
    "saved_steps",
    "trees",
    "write",
]

SEQ_LEN = 64
LANES = 4
SAVE_EVERY = 3
DOCUMENTS = numbered_documents(heavy_tailed(1200, seed=8))


def trees() -> sources.Items:
    """Records that as trees have the documents' tokens as their slots."""
    reading = sources.ReadOptions(block_documents=16)
    return sources.Items(branching(DOCUMENTS, SEQ_LEN - 7), reading=reading)


def make_dataset(rank: int, ranks: int, source: Source | None = None) -> PackedDataset:
    """Records in memory become trees."""
    tree = isinstance(source, sources.Items)
    return PackedDataset(
        source or MemorySource([DOCUMENTS[:500], DOCUMENTS[500:]], block_documents=16),
        packer=BestFitDecreasing(seq_len=SEQ_LEN, overflow="error" if tree else "split"),
        window=WindowConfig(rows=20),
        lanes=LANES,
        topology=Topology(rank, ranks),
        layout="tree" if tree else "documents",
        map=Hook("routes", _with_routes),
        token_fields={"routes": ("int32", (2, 3))},
    )


def _routes(ids: Any) -> Any:
    """Six numbers of a token, (T, 2, 3)."""
    return ids[:, None, None] * 6 % 9973 + np.arange(6).reshape(2, 3)


def _with_routes(documents: Documents, seeds: Any) -> Documents:
    return replace(documents, token_fields={"routes": _routes(documents.tokens.astype(np.int64))})


def tokens_of(batch: PackedBatch) -> list[int]:
    """Ids of the slots, of which sequences of a tree must be three as `branching` makes them.

    Every token must have its own field.
    """
    real = batch.document_ids >= 0
    expected = _routes(batch.input_ids[real].numpy())
    assert (batch.fields["routes"][real].numpy() == expected).all()
    assert not batch.fields["routes"][~real].any()
    if isinstance(batch, TreeBatch):
        sizes = batch.sequence_ids.bincount().view(-1, 3)
        ids = batch.input_ids.view(-1)[batch.slot].split(sizes.ravel().tolist())
        for one, other, prompt in zip(ids[::3], ids[1::3], ids[2::3], strict=True):
            first = len(prompt)
            assert prompt.equal(one[:first])
            assert prompt.equal(other[:first])
            new = torch.cat([one, other[first:]])
            assert (new.diff() == 1).all()
    return batch.input_ids[batch.document_ids >= 0].tolist()


def write(file: Path, text: str) -> None:
    """Whole or not at all."""
    part = file.with_suffix(".part")
    part.write_text(text)
    os.replace(part, file)


def saved_steps(folder: Path) -> dict[int, dict[str, Any]]:
    """Return merged states of the ranks by number of the next batch, where all have saved."""
    states: dict[int, list[dict[str, Any]]] = {}
    for file in folder.glob("*.json"):
        state = json.loads(file.read_text())
        states.setdefault(state["next_batch"], []).append(state)
    return {
        number: merge_states(parts)
        for number, parts in states.items()
        if sum(len(part["lanes"]) for part in parts) == LANES
    }


def train(
    folder: Path,
    rank: int,
    ranks: int,
    leg: int,
    pause_s: float,
    die_at: int | None,
    source: Source | None,
) -> None:
    """One rank: takes batches in step with the others, logs each and saves every few steps.

    The last rank kills itself when it takes a batch of number `die_at` or higher.
    """
    file = folder / f"store-{leg}"
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    # Few batches are ahead, or a worker that is killed may have made the whole rest.
    loader = PackedLoader(make_dataset(rank, ranks, source), num_workers=2, prefetch_factor=2)
    saved = saved_steps(folder)
    if saved:
        loader.load_state_dict(saved[max(saved)])
    with (folder / f"log-{leg}-{rank}").open("w") as log:
        for step, batch in enumerate(loader, start=1):
            number = batch.step * LANES + batch.lane
            if rank == ranks - 1 and die_at is not None and number >= die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(torch.ones(1))
            time.sleep(pause_s)
            tokens = tokens_of(batch)
            log.write(json.dumps([number, tokens]) + "\n")
            log.flush()
            if step % SAVE_EVERY == 0:
                write(folder / f"{leg}-{step}-{rank}.json", json.dumps(loader.state_dict()))
        write(folder / f"{leg}-end-{rank}.json", json.dumps(loader.state_dict()))
    (folder / f"done-{leg}-{rank}").touch()
    dist.destroy_process_group()


def children(pid: int) -> list[int]:
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def run_and_kill(
    folder: Path,
    ranks: int,
    leg: int,
    after_s: float | None = None,
    victim: str = "",
    die_at: int | None = None,
    source: Any = None,
    job: Callable[..., None] = train,
) -> None:
    """Start the job; after a while kill a rank, a worker or everything, and wait for the rest.

    `job` is the function of a rank, with the arguments of `train`.
    """
    context = multiprocessing.get_context("fork")
    pause_s = 0.0 if after_s is None else 0.004
    processes = [
        context.Process(target=job, args=(folder, rank, ranks, leg, pause_s, die_at, source))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    if after_s is not None:
        while not list(folder.glob(f"{leg}-*.json")) and any(p.is_alive() for p in processes):
            time.sleep(0.01)
        time.sleep(after_s)
        pids = [process.pid for process in processes if process.pid is not None]
        if victim == "worker":
            pids = children(pids[-1])[:1]
        for pid in pids[:1] if victim == "rank" else pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it had come to its end
    for process in processes:
        process.join(90)
        assert process.exitcode is not None, "a rank hangs after another died"
        if after_s is None and die_at is None:
            assert process.exitcode == 0


def logged(folder: Path, leg: int, before: int, first: int) -> dict[int, list[Any]]:
    """The leg's batches from number `first` on, up to the state that the next leg began with.

    A line of a log is a list of the batch's number and other values, the last one a list.
    """
    found = {}
    for file in folder.glob(f"log-{leg}-*"):
        for line in file.read_text().splitlines():
            if line.endswith("]]"):  # the last one may be cut
                number, *values = json.loads(line)
                if first <= number < before:
                    assert number not in found
                    found[number] = values
    return found


def batches_by_number(source: Source | None = None) -> dict[int, list[int]]:
    """The tokens of every batch of the whole run, by its number."""
    return {
        batch.step * LANES + batch.lane: tokens_of(batch)
        for batch in PackedLoader(make_dataset(0, 1, source))
    }


def assert_legs(folder: Path, starts: list[int], expected: dict[int, list[int]]) -> None:
    """Every batch came once: of each leg, those up to the state that the next one began with."""
    found: dict[int, list[int]] = {}
    for leg, (first, before) in enumerate(zip(starts, [*starts[1:], 1 << 60], strict=True)):
        batches = logged(folder, leg, before, first)
        found |= {number: tokens for number, (tokens,) in batches.items()}
    assert {n: tokens for n, tokens in found.items() if tokens} == {
        n: tokens for n, tokens in expected.items() if tokens
    }
    assert sorted(t for tokens in found.values() for t in tokens) == list(
        range(sum(map(len, DOCUMENTS)))
    )
