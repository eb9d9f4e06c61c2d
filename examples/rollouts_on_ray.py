"""Rollouts with samplers as Ray tasks on any machine: `python examples/rollouts_on_ray.py`.

The trainer is an actor that owns the queue. Its threads answer the samplers' calls while it trains.
A sampler that dies raises an error of Ray in the process that started it, which starts another;
its tickets go to other samplers after `timeout_s`. A trainer that dies is started again by Ray
(`max_restarts`) and resumes from its checkpoint; calls to it are repeated (`max_task_retries`), and
answers to tickets of before are refused. Here a sampler and the trainer are killed, and every
prompt is trained once.
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

PROMPTS, ANSWERS, GROUPS, KILLED_AFTER = 48, 2, 4, 4


@ray.remote(max_concurrency=16, max_restarts=-1, max_task_retries=-1, num_cpus=0)
class Trainer:
    """Owns the queue; `train` runs in one thread, `get` and `put` in others."""

    def __init__(self, checkpoint: str) -> None:
        prompts = rollouts.Prompts([[k + 1] * 3 for k in range(PROMPTS)], epochs=1)
        self.queue = rollouts.Queue(prompts, answers=ANSWERS, groups=GROUPS, timeout_s=5)
        self.loader = rollouts.Loader(self.queue, seq_len=64, layout="tree")
        self.checkpoint = Path(checkpoint)
        self.trained: list[int] = []
        if self.checkpoint.exists():
            saved = json.loads(self.checkpoint.read_text())
            self.trained = saved["trained"]
            self.loader.load_state_dict(saved["rollouts"])

    def get(self) -> rollouts.Ticket | str | None:
        """Return a ticket, "later", or None at the end."""
        try:
            return self.queue.get(timeout=1)
        except queues.Empty:
            return "later"

    def put(self, ticket: rollouts.Ticket, answer: rollouts.Answer) -> bool:
        """Take an answer."""
        return self.queue.put(ticket, answer)

    def train(self) -> list[int]:
        """Train to the end; return the prompt of each sequence."""
        for step in self.loader:
            for batch in step:  # forward and backward
                self.trained += batch.document_fields["prompt_serial"].tolist()
            self.loader.published(step.index + 1)
            saved = {"trained": self.trained, "rollouts": self.loader.state_dict()}
            part = self.checkpoint.with_suffix(".part")
            part.write_text(json.dumps(saved))
            part.replace(self.checkpoint)
            if step.index + 1 == KILLED_AFTER and not (mark := Path(f"{part}.killed")).exists():
                mark.touch()
                os._exit(1)
        return self.trained


@ray.remote(num_cpus=0)
def sample(trainer: Any, most: int) -> bool:
    """Answer tickets; return whether the end is reached, after at most `most` of them."""
    for _ in range(most):
        ticket = ray.get(trainer.get.remote())
        if ticket is None:
            return True
        for number in range(0 if ticket == "later" else ticket.answers):
            ids = [*ticket.prompt.tolist(), 100 + number]
            answer = rollouts.Answer(ids, [0] * (len(ids) - 1) + [1])
            if not ray.get(trainer.put.remote(ticket, answer)):
                break
    ray.get(trainer.get.remote())  # a ticket that it takes along
    os._exit(1)


def main() -> None:
    """Train; print whether every answer to every prompt was trained once."""
    ray.init(num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer.remote(f"{folder}/checkpoint.json")
        training = trainer.train.remote()
        killed, ended, most = 0, False, 5
        while not ended:
            try:
                ended = ray.get(sample.options(max_retries=0).remote(trainer, most))
            except ray.exceptions.WorkerCrashedError:
                killed, most = killed + 1, 10**9
        trained = ray.get(training)
    exactly = sorted(trained) == sorted([*range(PROMPTS)] * ANSWERS)
    print(f"{killed} sampler and the trainer killed; each prompt trained once: {exactly}")
    ray.shutdown()


if __name__ == "__main__":
    main()
