"""A run that is stopped and resumed has the losses of one that is not, in whatever order its loop
takes batches, trains and saves."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from queue import Queue
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from streampack import PackedBatch, PackedDataset, PackedLoader, Topology
from streampack.errors import ConfigError, StateError

STEPS, STOP, ACCUMULATED = 8, 5, 2
rng = np.random.default_rng(0)
DOCUMENTS = [rng.integers(1, 50, n).tolist() for n in rng.integers(1, 60, 900)]


def inputs_and_targets(batch: PackedBatch) -> tuple[Tensor, Tensor]:
    targets = batch.labels[:, 1:]
    return batch.input_ids[:, :-1], targets.masked_fill(targets == -100, -1)


def make_loader(transform: Any = inputs_and_targets, **options: Any) -> PackedLoader:
    dataset = PackedDataset(
        DOCUMENTS, seq_len=33, batch_size=2, attention="row", lanes=3, epochs=None,
        topology=Topology(),
    )  # fmt: skip
    return PackedLoader(dataset, transform=transform, **options)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 50)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        logits = self.table(inputs).view(-1, 50)
        return nn.functional.cross_entropy(logits, targets.reshape(-1), ignore_index=-1)


class Run:
    """A model, its optimizer, and a checkpoint as bytes after `STOP` steps."""

    def __init__(self, checkpoint: str | None, **options: Any) -> None:
        self.loader = make_loader(**options)
        self.model = Model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.5)
        self.step = 0
        self.losses: list[float] = []
        self.saved: str | None = None
        if checkpoint is not None:
            saved = json.loads(checkpoint)
            self.step = saved["step"]
            self.model.load_state_dict({"table.weight": torch.tensor(saved["weight"])})
            self.loader.load_state_dict(saved["data"])

    def save(self, **batch: Any) -> None:
        if self.step == STOP:
            weight = self.model.table.weight.tolist()
            data = self.loader.state_dict(**batch)
            self.saved = json.dumps({"step": self.step, "weight": weight, "data": data})

    def update(self, loss: Tensor) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())
        self.step += 1


def plain(run: Run) -> None:
    for count, (x, y) in enumerate(run.loader, 1):
        loss = run.model(x, y) / ACCUMULATED
        loss.backward()
        if count % ACCUMULATED == 0:
            run.update(loss)
            run.save()
            if run.step == STEPS:
                return


def named(run: Run) -> None:
    batches = iter(run.loader)
    while run.step < STEPS:
        for _ in range(ACCUMULATED):
            x, y = next(batches)
            loss = run.model(x, y) / ACCUMULATED
            loss.backward()
        run.update(loss)
        run.save(after=y)


def nanogpt(run: Run) -> None:
    """It takes the next batch between forward and backward, and saves at the top."""
    batches = iter(run.loader)
    x, y = next(batches)
    while True:
        run.save(before=(x, y))
        if run.step == STEPS:
            return
        for _ in range(ACCUMULATED):
            loss = run.model(x, y) / ACCUMULATED
            x, y = next(batches)
            loss.backward()
        run.update(loss)


def nanochat(run: Run) -> None:
    """It takes the next batch after the backward, and saves at the top."""
    batches = iter(run.loader)
    x, y = next(batches)
    while True:
        run.save(before=x)
        if run.step == STEPS:
            return
        for _ in range(ACCUMULATED):
            loss = run.model(x, y) / ACCUMULATED
            loss.backward()
            x, y = next(batches)
        run.update(loss)


def two_ahead(run: Run) -> None:
    """A generator of the script's own holds two batches that were not trained on."""

    def ahead(batches: Iterator[Any]) -> Iterator[Any]:
        held = [next(batches), next(batches)]
        for batch in batches:
            yield held.pop(0)
            held.append(batch)

    batches = ahead(iter(run.loader))
    while run.step < STEPS:
        for _ in range(ACCUMULATED):
            batch = next(batches)
            loss = run.model(*batch) / ACCUMULATED
            loss.backward()
        run.update(loss)
        run.save(after=batch)


@pytest.mark.sampled("each")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loop", [plain, named, nanogpt, nanochat, two_ahead])
def test_a_stopped_and_resumed_loop_has_the_losses_of_one_that_was_not(
    loop: Callable[[Run], None], workers: int
) -> None:
    whole = Run(None, num_workers=workers)
    loop(whole)
    again = Run(whole.saved, num_workers=workers)
    loop(again)
    assert len(whole.losses) == STEPS
    assert again.losses == whole.losses[STOP:]


class Opaque:
    def __init__(self, batch: PackedBatch) -> None:
        self.batch = batch


@pytest.mark.parametrize(
    "transform",
    [
        None,
        inputs_and_targets,
        PackedBatch.numpy,
        PackedBatch.hf,
        Opaque,
        lambda batch: {"inner": [{"batch": batch}], "name": "train"},
        lambda batch: batch.input_ids.tolist(),
        lambda batch: str(batch.input_ids.tolist()),
    ],
)
def test_any_result_of_a_transform_names_its_batch(transform: Any) -> None:
    loader = make_loader(transform)
    batches = iter(loader)
    states, items = [], []
    for _ in range(20):
        items.append(next(batches))
        states.append(loader.state_dict())
    for i in range(4, 20):
        assert loader.state_dict(after=items[i]) == states[i]
        assert loader.state_dict(before=items[i]) == states[i - 1]
    for setting in ("after", "before"):
        with pytest.raises(StateError):  # before the last 16
            loader.state_dict(**{setting: items[3]})


def test_a_none_beside_a_tensor_names_no_batch_that_is_gone() -> None:
    loader = make_loader(lambda batch: {"inputs": batch.input_ids, "mask": None})
    batches, before = iter(loader), loader.state_dict()
    for _ in range(4):
        item = next(batches)  # the one before it is gone
        assert loader.state_dict(before=item) == before
        before = loader.state_dict()
        assert loader.state_dict(after=item) == before


def test_a_group_of_accumulate_names_its_batches() -> None:
    loader = make_loader()
    groups = loader.accumulate(3)
    first, start = next(groups), loader.state_dict()
    second = next(groups)
    assert loader.state_dict(before=second) == loader.state_dict(after=first) == start
    inner = loader.state_dict(after=second.batches[0])
    assert inner == loader.state_dict(before=second.batches[1])
    assert inner["next_batch"] == 4


def test_the_state_before_the_first_batch_is_the_start_and_records_skipped_batches() -> None:
    loader = make_loader()
    start = loader.state_dict()
    batches = iter(loader)
    assert loader.state_dict(before=next(batches)) == start
    loader.skip(2)
    skipped = loader.state_dict()
    assert loader.state_dict(before=next(batches)) == skipped
    assert skipped["stepped_over"] == [[1, 3]]


def test_objects_that_name_no_batch_are_refused() -> None:
    held = torch.zeros(2, 33, dtype=torch.int64)

    def into_the_same_tensor(batch: PackedBatch) -> Tensor:
        return held.copy_(batch.input_ids)

    loader = make_loader(into_the_same_tensor)
    batches = iter(loader)
    x = next(batches)
    assert loader.state_dict(after=x)["next_batch"] == 1
    x = next(batches)
    other = next(iter(make_loader(None)))
    other = next(iter(PackedLoader(PackedDataset([[1, 2]] * 9, seq_len=4, topology=Topology()))))
    for setting in ("after", "before"):
        for wrong in (x, x.clone(), (), 3, other):
            with pytest.raises(StateError) as caught:
                loader.state_dict(**{setting: wrong})
            assert caught.value.setting == setting
    with pytest.raises(ConfigError):
        loader.state_dict(after=x, before=x)


def test_a_thread_that_takes_batches_ahead_is_not_taken_for_the_loop() -> None:
    loader = make_loader()
    got: list[Any] = []
    ready, leave = threading.Event(), threading.Event()

    def take_ahead() -> None:
        for batch in loader:
            got.append(batch)
            if len(got) == 3:
                ready.set()
                leave.wait()
                return

    thread = threading.Thread(target=take_ahead)
    thread.start()
    ready.wait()
    try:
        with pytest.raises(StateError) as caught:
            loader.state_dict()
        assert caught.value.setting == "after"
        assert loader.state_dict(after=got[0])["next_batch"] == 1
    finally:
        leave.set()
        thread.join()
    assert loader.state_dict()["next_batch"] == 3


def test_states_are_found_by_batch_while_a_thread_takes_batches_ahead() -> None:
    loader = make_loader()
    taken: Queue[Any] = Queue(maxsize=8)  # so each batch is one of the last 16
    steps = 1000

    def take_ahead() -> None:
        for _, batch in zip(range(steps), loader, strict=False):
            taken.put(batch)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread = threading.Thread(target=take_ahead, daemon=True)
        thread.start()
        for step in range(steps):
            assert loader.state_dict(after=taken.get())["next_batch"] == step + 1
    finally:
        sys.setswitchinterval(interval)
    thread.join()
