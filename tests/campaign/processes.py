"""Jobs that are killed and gone on with elsewhere; loops that are left in every way there is."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import random
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from streampack import PackedLoader, sources
from streampack.storage.storage import Storage
from tests.campaign.attack import Attack, FoundError
from tests.support.killed_jobs import (
    DOCUMENTS,
    batches_by_number,
    check_legs,
    run_and_kill,
    saved_steps,
)
from tests.support.runs import identity, make_dataset
from tests.support.servers import http_server, s3_server

__all__ = ["attack_jobs", "attack_loops"]

SERVERS = ExitStack()  # as long as this process lives


def attack_jobs(folder: Path) -> Attack:
    """Kills of ranks, workers and whole jobs over local files, HTTP and S3; the same sequence."""
    shards = folder / "shards"
    shards.mkdir()
    for number in range(4):
        lines = (json.dumps({"ids": d.tolist()}) for d in DOCUMENTS[number::4])
        (shards / f"{number}.jsonl").write_text("\n".join(lines))
    server = SERVERS.enter_context(http_server(shards))
    store = SERVERS.enter_context(s3_server())
    roots = {"files": str(shards), "http": server.url, "s3": store.put_folder(shards)}
    expected: dict[str, dict[int, list[int]]] = {}

    def source(kind: str) -> sources.JSONL:
        names = [f"{roots[kind]}/{number}.jsonl" for number in range(4)]
        return sources.JSONL(names, tokens="ids", storage=Storage(cache_dir=folder / "cache"))

    def attack(rng: random.Random) -> str:
        kind = rng.choice(list(roots))
        if kind not in expected:
            expected[kind] = batches_by_number(source(kind))
        place = Path(tempfile.mkdtemp(dir=folder))
        starts = [0]
        legs = rng.randint(1, 3)
        for leg in range(legs):
            victim = rng.choice(["rank", "worker", "job"])
            ranks, after_s = rng.choice([1, 2, 3, 4]), rng.uniform(0, 0.15)
            run_and_kill(place, ranks, leg, after_s, victim, source=source(kind))
            starts.append(max(saved_steps(place), default=0))
        run_and_kill(place, rng.choice([1, 2, 3]), legs, source=source(kind))
        try:
            check_legs(place, starts, expected[kind])
        except AssertionError as error:
            raise FoundError(f"{kind}: after {starts} another sequence: {error}") from error
        return kind

    return attack


def attack_loops(folder: Path) -> Attack:
    """Loops broken, raised in, forked in, closed and entered again, in several threads."""
    whole = [identity(batch) for batch in PackedLoader(make_dataset())]
    list(PackedLoader(make_dataset(), num_workers=2, multiprocessing_context="fork"))

    def attack(rng: random.Random) -> str:
        before = _held()
        seeds = [rng.randrange(1 << 30) for _ in range(rng.choice([1, 1, 3]))]
        found: list[BaseException | None] = [None] * len(seeds)

        def loop(i: int) -> None:
            try:
                _take(random.Random(seeds[i]), whole, alone=len(seeds) == 1)
            except BaseException as error:
                found[i] = error

        threads = [threading.Thread(target=loop, args=(i,)) for i in range(len(seeds))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in found:
            if error is not None:
                raise error
        deadline = time.monotonic() + 5
        while (left := _held()) > before and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.02)
        if any(now > then for now, then in zip(left, before, strict=True)):
            raise FoundError(f"files, threads, processes: {before} before and {left} after")
        return "threads" if len(seeds) > 1 else "loop"

    return attack


def _held() -> tuple[int, int, int]:
    children = len(multiprocessing.active_children())
    return len(os.listdir("/proc/self/fd")), threading.active_count(), children


def _take(rng: random.Random, whole: list[Any], alone: bool) -> None:
    """All batches of a run, in as many loops as it takes."""
    workers = rng.choice([0, 1, 2, 3])
    loader = PackedLoader(make_dataset(), num_workers=workers, multiprocessing_context="fork")
    got: list[Any] = []
    while len(got) < len(whole):
        most = len(got) + rng.randint(1, 60)
        how = rng.choice(["break", "raise", "close", "state", "fork", "replaced"])
        batches = iter(loader)
        with suppress(KeyError):
            for batch in batches:
                got.append(identity(batch))
                if len(got) < most:
                    continue
                if how == "raise":
                    raise KeyError
                if how == "fork" and alone:
                    _fork(rng)
                break
        if how == "close":
            batches.close()  # type: ignore[attr-defined]
        elif how == "state":
            state = json.loads(json.dumps(loader.state_dict()))
            loader = PackedLoader(make_dataset(), num_workers=rng.choice([0, 2]))
            loader.load_state_dict(state)
        elif how == "replaced":
            iter(loader)
        if got != whole[: len(got)]:
            raise FoundError(f"another sequence after {how} with {workers} workers")
    if next(iter(loader), None) is not None and len(got) > len(whole):
        raise FoundError("more batches than there are")


def _fork(rng: random.Random) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise FoundError("a forked child did not end well")
