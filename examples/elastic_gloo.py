"""Kill ranks and add others while a model trains; its batches equal a run left alone.

    python examples/elastic_gloo.py --deaths 6 --joins 6

The first process decides who is a member, as torchft's lighthouse or Ray would. It starts the
ranks, kills some (SIGKILL) at random moments, and starts others. Ranks that lose one another come
back to it, get a membership of all that live, and connect with a gloo group of that membership. A
step that died with a rank is repeated by the others. A rank that joins gets the model from one
that has it; the loader gets the states of all lanes in the same way, by itself.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import io
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from streampack import PackedBatch, PackedDataset
from streampack.elastic import ElasticLoader, GroupMembers
from streampack.errors import RankError

STEP_BATCHES = 8
LOST = (RankError, RuntimeError)  # of the loader, and of gloo
LIMIT = timedelta(seconds=15)  # of waiting for a rank that dies while the others connect


class Place(NamedTuple):
    """A rank's place in a membership."""

    number: int
    rank: int
    ranks: int
    at_step: int
    source: int  # a rank that has trained all steps before `at_step`


class Given(NamedTuple):
    """A rank's report of a step before all agree on it, which its death after that leaves."""

    step: int
    batches: dict[int, str]  # digests by index in the run


class Trained(NamedTuple):
    """A rank's report of a step after it."""

    step: int
    loss: float
    pause_s: float  # from a new membership to its first step; 0 later


@dataclass
class Report:
    """A job's history, by step where it is a dictionary."""

    batches: dict[int, str] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)  # by batch
    losses: dict[int, float] = field(default_factory=dict)
    pauses: list[float] = field(default_factory=list)
    ends: list[tuple[int, int, int]] = field(default_factory=list)  # steps, descriptors, threads
    memberships: int = 0
    deaths: int = 0


def make_loader(documents: int = 600, num_workers: int = 0) -> ElasticLoader[PackedBatch]:
    """A loader of random documents, the same on every rank."""
    draws = random.Random(1)
    corpus = [
        [draws.randrange(64) for _ in range(draws.randrange(2, 60))] for _ in range(documents)
    ]
    dataset = PackedDataset(corpus, seq_len=32, batch_size=2, lanes=2 * STEP_BATCHES)
    return ElasticLoader(dataset, step_batches=STEP_BATCHES, num_workers=num_workers)


class Model(nn.Module):
    """Predicts each token from the one before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Embedding(64, 8), nn.Linear(8, 64)).double()

    def forward(self, batch: PackedBatch) -> Tensor:
        """Logits (rows, seq_len, vocabulary)."""
        logits: Tensor = self.layers(batch.input_ids)
        return logits


# ---------------------------------------------------------------------- a rank


def train(make: Callable[[], ElasticLoader[Any]], port: int, pipe: Connection) -> None:
    """Train with whoever is there, until the run ends."""
    torch.set_num_threads(1)
    loader, model, trained = make(), Model(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    lanes = loader.dataset.plan.config.lanes
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    is_over = False
    while not is_over:
        pipe.send(trained)  # between memberships
        while not (place := pipe.recv()):
            pass  # the wish for a new membership, which comes now
        began = time.perf_counter()
        names = dist.PrefixStore(f"membership {place.number}", store)
        members = None
        try:
            group = dist.ProcessGroupGloo(names, place.rank, place.ranks, LIMIT)
            members = GroupMembers(group)
            share_model(members, place, model, optimizer)
            trained = place.at_step
            loader.set_ranks(place.rank, place.ranks, members, at_step=trained)
            for step in loader:
                digests = {b.step * lanes + b.lane: digest(b) for b in step if b.num_documents}
                pipe.send(Given(trained, digests))
                optimizer.zero_grad()
                loss = sum(batch.loss(model(batch)) for batch in step)
                loss.backward()
                # The first process sends something if it wants a new membership.
                asked = torch.tensor([loss.detach(), pipe.poll()], dtype=torch.float64)
                shared = torch.cat([*(p.grad.flatten() for p in model.parameters()), asked])
                group.allreduce([shared]).wait()  # raises if a rank died; then repeat the step
                shared /= place.ranks
                parts = shared[:-2].split([p.numel() for p in model.parameters()])
                for parameter, gradient in zip(model.parameters(), parts, strict=True):
                    parameter.grad.copy_(gradient.view_as(parameter))
                optimizer.step()
                pause = time.perf_counter() - began if began else 0.0
                pipe.send(Trained(trained, shared[-2].item(), pause))
                trained, began = trained + 1, 0.0
                if shared[-1] > 0:
                    break
            else:
                is_over = True
        except LOST:
            if members is not None:
                members.close()
            members = group = None  # whoever waits for this rank then gets an error at once
    sizes = [len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task")]
    pipe.send((trained, *sizes))


def share_model(
    members: GroupMembers, place: Place, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Give the model and the optimizer of one rank to all."""
    buffer = io.BytesIO()
    if place.rank == place.source:
        torch.save((model.state_dict(), optimizer.state_dict()), buffer)
    sent = members.gather(buffer.getvalue())[place.source]
    weights, moments = torch.load(io.BytesIO(sent))
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)


def digest(batch: PackedBatch) -> str:
    """A hash of a batch."""
    parts = [batch.input_ids, batch.labels, batch.cu_seqlens]
    return hashlib.blake2b(b"".join(p.numpy().tobytes() for p in parts), digest_size=8).hexdigest()


# ---------------------------------------------------------------------- the first process


@dataclass
class _Rank:
    process: Any
    pipe: Connection
    trained: int = -1  # steps; -1 for a rank that just started
    waits: bool = False
    is_killed: bool = False


class Supervisor:
    """Starts and kills ranks, and forms memberships of all that live.

    Args:
        make: makes the loader of a rank.
        ranks: number at the beginning; most: at any time.
        deaths, joins: how many, each after a random step; every: steps between two, on average.
        seed: of these draws.
        start_method: of the ranks' processes.
    """

    def __init__(
        self,
        make: Callable[[], ElasticLoader[Any]],
        *,
        ranks: int = 3,
        most: int = 4,
        deaths: int = 0,
        joins: int = 0,
        every: float = 6.0,
        seed: int = 0,
        start_method: str = "forkserver",
    ) -> None:
        self._context: Any = get_context(start_method)
        if start_method == "forkserver":
            modules = ["streampack.elastic.loader", "torch._dynamo", __name__]  # of each rank
            self._context.set_forkserver_preload(modules)
        self._make, self._most, self._deaths, self._joins = make, most, deaths, joins
        self._start, self._every, self._draws = ranks, every, random.Random(seed)
        self._ranks: list[_Rank] = []
        self.report = Report()

    def run(self) -> Report:
        """Run the job to its end."""
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        try:
            for _ in range(self._start):
                self._add()
            while self._ranks:
                self._wait()
        finally:
            for rank in self._ranks:
                rank.process.kill()
        return self.report

    def _add(self) -> None:
        ours, theirs = self._context.Pipe()
        arguments = (self._make, self._store.port, theirs)
        process = self._context.Process(target=train, args=arguments)  # may have workers
        process.start()
        theirs.close()
        self._ranks.append(_Rank(process, ours))

    def _wait(self) -> None:
        pipes = {rank.pipe: rank for rank in self._ranks}
        for pipe in wait(list(pipes)):
            rank = pipes[pipe]
            try:
                self._receive(rank, pipe.recv())
            except (EOFError, ConnectionError):  # it died, or has ended
                rank.process.join()
                pipe.close()
                self._ranks.remove(rank)
        if self._ranks and all(rank.waits for rank in self._ranks):
            self._form()

    def _receive(self, rank: _Rank, message: Any) -> None:
        if isinstance(message, int):
            rank.trained, rank.waits = message, True
        elif isinstance(message, Given):
            for number, value in message.batches.items():
                assert self.report.batches.setdefault(number, value) == value
                assert self.report.steps.setdefault(number, message.step) == message.step
        elif isinstance(message, Trained):
            self.report.losses[message.step] = message.loss
            rank.trained = message.step + 1
            if message.pause_s:
                self.report.pauses.append(message.pause_s)
            self._disturb()
        else:
            self.report.ends.append(message)

    def _ask(self) -> None:
        """Ask the ranks to come for a new membership."""
        for rank in self._ranks:
            if not rank.waits:
                with_suppressed(rank.pipe.send, None)

    def _form(self) -> None:
        self._draws.shuffle(self._ranks)
        most = max(rank.trained for rank in self._ranks)
        source = next(n for n, rank in enumerate(self._ranks) if rank.trained == most)
        self.report.memberships += 1
        for number, rank in enumerate(self._ranks):
            place = Place(self.report.memberships, number, len(self._ranks), most, source)
            rank.waits = False
            with_suppressed(rank.pipe.send, place)

    def _disturb(self) -> None:
        """Now and then, kill a rank or add one."""
        chance = 1 / (self._every * len(self._ranks))
        most = max(rank.trained for rank in self._ranks)
        living = [rank for rank in self._ranks if not rank.is_killed]
        knowing = [rank for rank in living if rank.trained >= most - 1 > 0]
        if self._deaths and len(knowing) > 1 and self._draws.random() < chance:
            self._deaths -= 1
            self.report.deaths += 1
            time.sleep(self._draws.random() * 0.02)  # in any part of a step
            rank = self._draws.choice(knowing)
            rank.is_killed = True
            rank.process.kill()
        if self._joins and len(living) < self._most and self._draws.random() < chance:
            self._joins -= 1
            self._add()
            self._ask()  # now, since this run would be over before the rank has started


def with_suppressed(call: Callable[[Any], None], value: Any) -> None:
    """Send to a process that may have died."""
    try:
        call(value)
    except (BrokenPipeError, ConnectionError):
        pass


def main() -> None:
    """Run a job that is disturbed and one that is not, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in {"ranks": 3, "most": 4, "deaths": 3, "joins": 3, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--documents", type=int, default=600)
    options = vars(parser.parse_args())
    make = functools.partial(make_loader, options.pop("documents"))
    alone = Supervisor(make, ranks=1).run()
    report = Supervisor(make, **options).run()
    steps = {end[0] for end in report.ends}
    largest = max(abs(report.losses[s] - alone.losses[s]) for s in alone.losses)
    print(f"{report.memberships} memberships, {report.deaths} ranks killed, ends: {steps}")
    print(f"the same {len(alone.batches)} batches: {report.batches == alone.batches}")
    print(f"largest difference of losses: {largest:.1e}")
    print(f"longest pause: {max(report.pauses, default=0):.2f} s")


if __name__ == "__main__":
    sys.exit(main())
