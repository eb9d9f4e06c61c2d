"""Jobs that grow, lose documents and keep a ledger, killed on their way: every document once."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from streampack import PackedDataset, PackedLoader, Topology, WindowConfig, sources
from streampack.accounts.totals import totals_of
from tests.support.corpora import byte_tokenizer
from tests.support.killed_jobs import (
    LANES,
    SAVE_EVERY,
    children,
    logged,
    run_and_kill,
    saved_steps,
    write,
)
from tests.tables.conftest import unpacked

__all__ = ["unpacked"]

VERSIONS = (4, 9, 16)
#: Keys that each leg takes out, all of the leg before among them.
OUT = ((), range(0, 1100, 9), [*range(0, 1100, 9), *range(5, 1100, 14)])


def train(
    folder: Path,
    rank: int,
    ranks: int,
    leg: int,
    pause_s: float,
    die_at: int | None,
    source: tuple[str, str],
) -> None:
    """One rank, as `killed_jobs.train`; it logs the keys and tokens of each batch.

    `source` has the table and the victim that the last rank kills at `die_at`. After a worker
    it kills itself, a few batches later.
    """
    table, victim = source
    (folder / f"pid-{leg}-{rank}").write_text(str(os.getpid()))
    file = folder / f"store-{leg}"
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    number = min(leg, len(VERSIONS) - 1)
    delta = sources.Delta(table, version=VERSIONS[number], key="key", text="text")
    dataset = PackedDataset(
        delta, seq_len=64, batch_size=1, tokenizer=byte_tokenizer(), lanes=LANES,
        exclude={"key": OUT[number]} if OUT[number] else None, ledger=["key"],
        document_fields={"key": np.int64}, window=WindowConfig(rows=6),
        topology=Topology(rank, ranks),
    )  # fmt: skip
    loader = PackedLoader(dataset, num_workers=2, prefetch_factor=2)
    saved = saved_steps(folder)
    if saved:
        loader.load_state_dict(saved[max(saved)], allow={"source"})
    step = 0
    with (folder / f"log-{leg}-{rank}").open("w") as log:
        for step, batch in enumerate(loader, start=1):
            batch_number = batch.step * LANES + batch.lane
            if rank == ranks - 1 and die_at is not None and batch_number >= die_at:
                own = os.getpid()
                pids = [int(file.read_text()) for file in folder.glob(f"pid-{leg}-*")]
                if victim == "worker" and children(own):
                    os.kill(children(own)[0], signal.SIGKILL)
                    die_at, victim = die_at + 6, "rank"  # the loader starts another worker
                    pids = []
                elif victim == "rank":
                    pids = [own]
                for pid in sorted(pids, key=own.__eq__):
                    os.kill(pid, signal.SIGKILL)
            dist.all_reduce(torch.ones(1))
            time.sleep(pause_s)
            keys = batch.document_fields["key"].tolist() if batch.num_documents else []
            log.write(json.dumps([batch_number, batch.num_tokens, keys]) + "\n")
            log.flush()
            if step % SAVE_EVERY == 0:
                write(folder / f"{leg}-{step}-{rank}.json", json.dumps(loader.state_dict()))
        write(folder / f"{leg}-{step}-{rank}.json", json.dumps(loader.state_dict()))
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["rank", "worker", "everything"])
def test_a_killed_job_delivers_every_document_that_is_not_taken_out_once(
    victim: str, tmp_path: Path, unpacked: Callable[[str], Any]
) -> None:
    table, rows = unpacked("delta")
    rng, folder = random.Random(victim), tmp_path / "job"
    folder.mkdir()
    legs: list[tuple[int, dict[int, list[Any]]]] = []
    start = 0
    for leg in range(4):
        last = leg == 3
        run_and_kill(
            folder, rng.choice([1, 2, 4]), leg, source=(str(table), victim), job=train,
            die_at=None if last else start + rng.randrange(10, 30),
        )  # fmt: skip
        saved = saved_steps(folder)
        until = max(saved, default=0)
        legs.append((min(leg, 2), logged(folder, leg, 1 << 60 if last else until, start)))
        start = until
    state = saved_steps(folder)[start]
    known = [{row[0] for row in rows[version]} - {*OUT[n]} for n, version in enumerate(VERSIONS)]
    delivered: Counter[int] = Counter()
    for number, batches in legs:
        keys = Counter(key for _, of_batch in batches.values() for key in of_batch)
        assert not keys.keys() - known[number]
        delivered += keys
    assert set(delivered.values()) == {1}
    restored = {key for a, b in pairwise(known) for key in a - b}
    assert known[-1] - delivered.keys() <= restored
    assert len(delivered.keys() & known[-1]) > 0.9 * len(known[-1])
    totals = totals_of(state)
    assert state["counted"]["ledger"]["gaps"] == []
    assert totals["tokens"] == sum(tokens for _, part in legs for tokens, _ in part.values())
    assert totals["documents"] == sum(delivered.values())
