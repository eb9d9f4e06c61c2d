"""Rollouts with Ray actors as samplers, on any machine: `python examples/rollouts_on_ray.py`.

The trainer is an actor that owns the queue; its threads answer samplers while it trains.
Ray starts actors that die again (`max_restarts`) and repeats their calls (`max_task_retries`):

- The ticket of a sampler that died goes to another sampler after `timeout_s`.
- A trainer that died goes on from its checkpoint. Answers to tickets of before are refused.
- A call may come twice. So `put` takes a whole group: the second time it is refused.

Here a sampler dies with a ticket and then the trainer, and every prompt is trained once.
"""

from __future__ import annotations

import json
import os
import queue as queues
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

from streampack import rollouts

PROMPTS, ANSWERS, GROUPS, SAMPLERS = 48, 2, 4, 2
RESTARTED: Any = {"max_restarts": -1, "max_task_retries": -1, "num_cpus": 0}


def die_once(mark: str) -> None:
    """End this process, unless it or another one did before."""
    try:
        Path(mark).touch(exist_ok=False)
    except FileExistsError:
        return
    os._exit(1)


@ray.remote(max_concurrency=SAMPLERS + 1, **RESTARTED)
class Trainer:
    """Owns the queue; `train` runs in one thread, the calls of samplers in others."""

    def __init__(self, folder: str) -> None:
        prompts = rollouts.Prompts([[k + 1] * 3 for k in range(PROMPTS)], epochs=1)
        self.queue = rollouts.Queue(prompts, answers=ANSWERS, groups=GROUPS, timeout_s=3)
        self.loader = rollouts.Loader(self.queue, seq_len=64, layout="tree")
        self.folder, self.trained = Path(folder), []
        if (checkpoint := self.folder / "checkpoint.json").exists():
            saved = json.loads(checkpoint.read_text())
            self.trained = saved["trained"]
            self.loader.load_state_dict(saved["rollouts"])

    def get(self) -> rollouts.Ticket | str | None:
        """Return a ticket, "later", or None at the end."""
        try:
            return self.queue.get(timeout=1)
        except queues.Empty:
            return "later"

    def put(self, ticket: rollouts.Ticket, answers: list[rollouts.Answer]) -> None:
        """Take all answers to a ticket."""
        for answer in answers:
            self.queue.put(ticket, answer)

    def train(self) -> tuple[list[int], int]:
        """Train to the end; return the prompt of each sequence, and the tickets that came back."""
        for step in self.loader:
            for batch in step:  # forward and backward
                self.trained += batch.document_fields["prompt_serial"].tolist()
            self.loader.published(step.index + 1)
            saved = {"trained": self.trained, "rollouts": self.loader.state_dict()}
            part = self.folder / "checkpoint.part"
            part.write_text(json.dumps(saved))
            part.replace(self.folder / "checkpoint.json")
            if step.index == 5:
                die_once(f"{self.folder}/trainer")
        return self.trained, self.queue.metrics().counts.given_back


@ray.remote(**RESTARTED)
class Sampler:
    """Answers tickets."""

    def sample(self, trainer: Any, folder: str) -> None:
        """Answer tickets to the end."""
        while (ticket := ray.get(trainer.get.remote())) is not None:
            if ticket == "later":
                continue
            if ticket.serial >= 8:
                die_once(f"{folder}/sampler")
            ids = [[*ticket.prompt.tolist(), 100 + number] for number in range(ticket.answers)]
            answers = [rollouts.Answer(each, [0] * (len(each) - 1) + [1]) for each in ids]
            ray.get(trainer.put.remote(ticket, answers))


def main() -> None:
    """Train; print whether every answer to every prompt was trained once."""
    ray.init(
        address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
        object_store_memory=100 << 20, _node_ip_address="127.0.0.1",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer.remote(folder)
        samplers = [Sampler.remote() for _ in range(SAMPLERS)]
        sampling = [sampler.sample.remote(trainer, folder) for sampler in samplers]
        trained, given_back = ray.get(trainer.train.remote())
        ray.get(sampling)
        killed = sorted({"sampler", "trainer"} & {*os.listdir(folder)})
    exactly = sorted(trained) == sorted([*range(PROMPTS)] * ANSWERS)
    print(f"killed: {', '.join(killed)}; {given_back} tickets came back after the limit")
    print(f"each answer trained once: {exactly}")
    ray.shutdown()


if __name__ == "__main__":
    main()
