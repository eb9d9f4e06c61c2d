"""Runs of rollouts: prompts, samplers with answers that follow from them, and trained sequences."""

from __future__ import annotations

import queue as queues
from collections.abc import Iterator, Mapping
from typing import Any

from streampack import rollouts

SEQ_LEN = 64


def prompts(count: int = 40, **settings: Any) -> rollouts.Prompts:
    """Prompts of ids: prompt k of the source is [k + 1] * (1 + k % 3)."""
    records = [{"ids": [k + 1] * (1 + k % 3), "k": k} for k in range(count)]
    settings = {"epochs": 1, "tokens": "ids", "document_fields": {"k": "int64"}, **settings}
    return rollouts.Prompts(records, **settings)


def make_queue(count: int = 40, **settings: Any) -> rollouts.Queue:
    settings = {"answers": 2, "groups": 3, "steps_ahead": 1, "timeout_s": None, **settings}
    return rollouts.Queue(prompts(count), **settings)


def answers(ticket: rollouts.Ticket, version: int = 0) -> Iterator[rollouts.Answer]:
    """Answers to a ticket: the prompt, then 1,000 and the index of the answer."""
    for number in range(ticket.answers):
        answer = [1000, 1000 + number][: 1 + ticket.serial % 2]
        ids = [*ticket.prompt.tolist(), *answer, 2000 + number]
        mask = [0] * len(ticket.prompt) + [1] * (len(ids) - len(ticket.prompt))
        yield rollouts.Answer(
            ids,
            mask,
            logprobs=[-0.5 * i for i in range(len(ids))],
            advantage=float(number),
            version=version,
        )


def sample(queue: rollouts.Queue, most: int | None = None) -> int:
    """Answer the tickets that there are now; return their number."""
    count = 0
    while most is None or count < most:
        try:
            ticket = queue.get(block=False)
        except queues.Empty:
            break
        if ticket is None:
            break
        for answer in answers(ticket):
            assert queue.put(ticket, answer)
        count += 1
    return count


def serials_of(step: rollouts.Step) -> list[int]:
    """Prompts of the sequences in this rank's batches of a step, one for each sequence."""
    found: list[int] = []
    for batch in step:
        numbers = batch.document_fields["prompt_serial"].tolist()
        found += numbers
    return found


def train(queue: rollouts.Queue, state: Mapping[str, Any] | None = None, **settings: Any) -> Any:
    """Sample and train in turns; yield the loader and a step's sequences after each step."""
    loader = rollouts.Loader(queue, seq_len=SEQ_LEN, **settings)
    if state is not None:
        loader.load_state_dict(state)
    sample(queue)
    for step in loader:
        yield loader, serials_of(step)
        loader.published(step.index + 1)
        sample(queue)
