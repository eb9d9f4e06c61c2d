"""GRPO with a queue of rollouts, stopped and resumed: `python examples/rollouts_resumed.py`.

A sampler generates with the weights that were published last, while the trainer takes steps of the
groups that are finished, as prefix trees. The run stops in the middle, and goes on with new objects
from a checkpoint: the model, the optimizer, and the queue's state, a few kilobytes of JSON. Every
prompt is trained once, in flight or not when the run stopped.

Runs on a CPU in seconds: a model learns to repeat the last token of its prompt.
"""

from __future__ import annotations

import copy
import json
import threading
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from streampack import rollouts

VOCABULARY, ANSWERS, GROUPS, ANSWER_LEN, STEPS = 8, 8, 16, 4, 40


def make_model() -> LlamaForCausalLM:
    """Make a model of one layer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


class Sampler(threading.Thread):
    """A thread that answers tickets with the weights that were published last."""

    def __init__(self, queue: rollouts.Queue, model: LlamaForCausalLM, version: int) -> None:
        super().__init__(daemon=True)
        self.queue, self.model, self.version = queue, copy.deepcopy(model), version
        self.lock = threading.Lock()
        self.rewards: list[float] = []

    def run(self) -> None:
        """Sample until the trainer stops."""
        while (ticket := self.queue.get()) is not None:
            for answer in self.answers(ticket):
                self.queue.put(ticket, answer)

    def publish(self, model: LlamaForCausalLM, version: int) -> None:
        """Take new weights, between two prompts."""
        with self.lock:
            self.model.load_state_dict(model.state_dict())
            self.version = version

    @torch.no_grad()
    def answers(self, ticket: rollouts.Ticket) -> list[rollouts.Answer]:
        """Generate the answers of a group, with rewards and advantages."""
        prompt = torch.from_numpy(ticket.prompt)[None]
        with self.lock:
            version = self.version
            output: Any = self.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=True,
                top_k=0,
                num_return_sequences=ticket.answers,
                max_new_tokens=ANSWER_LEN,
                return_dict_in_generate=True,
                output_scores=True,
            )
            logprobs = self.model.compute_transition_scores(
                output.sequences, output.scores, normalize_logits=True
            )
        length = prompt.shape[1]
        answers = output.sequences[:, length:]
        rewards = (answers == prompt[0, -1]).float().mean(dim=1)
        self.rewards.append(rewards.mean().item())
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        before = torch.zeros(length)  # the prompt was not sampled
        return [
            rollouts.Answer(
                ids,
                np.arange(len(ids)) >= length,
                logprobs=torch.cat([before, one]),
                advantage=advantage,
                version=version,
            )
            for ids, one, advantage in zip(output.sequences, logprobs, advantages, strict=True)
        ]


def run(checkpoint: dict[str, Any] | None, steps: int, trained: list[int]) -> dict[str, Any]:
    """Train until step `steps` of the run; return a checkpoint."""
    rng = np.random.default_rng(0)
    records = [{"ids": rng.integers(1, VOCABULARY, 4).tolist()} for _ in range(500)]
    queue = rollouts.Queue(
        rollouts.Prompts(records, tokens="ids"), answers=ANSWERS, groups=GROUPS, steps_ahead=1
    )
    loader = rollouts.Loader(queue, seq_len=256, layout="tree")
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    if checkpoint is not None:
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(json.loads(checkpoint["rollouts"]))
    version = 0 if checkpoint is None else checkpoint["version"]
    sampler = Sampler(queue, model, version)
    sampler.start()
    for step in loader:
        for batch in step:
            new = batch.log_probs(model(**batch.hf(model=model)).logits)
            ratio = (new - batch.fields["logprobs"]).exp()
            gain = batch.document_fields["advantage"][batch.sequence_ids]
            clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
            loss = -clipped[batch.loss_mask].sum() / step.num_loss_tokens
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        trained += step.serials.tolist()
        version = step.index + 1
        sampler.publish(model, version)
        loader.published(version)
        if version == steps:
            break
    state = loader.state_dict()  # samplers are still at work
    queue.close()
    sampler.join()
    ages = queue.metrics()
    print(
        f"step {version}: reward {np.mean(sampler.rewards[-2 * GROUPS :]):.2f}, "
        f"age {ages.age_p99:.0f} of at most {ages.most_age}, "
        f"{len(state['in_flight'])} groups in flight"
    )
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rollouts": json.dumps(state),
        "version": version,
    }


def main() -> None:
    """Train in three legs; print rewards, and whether every prompt was trained once."""
    trained: list[int] = []
    checkpoint = None
    for steps in (2, STEPS // 2, STEPS):
        checkpoint = run(checkpoint, steps, trained)
    state = json.loads(checkpoint["rollouts"])
    in_flight = [serial for serial, _ in state["in_flight"]]
    exactly = sorted([*trained, *in_flight]) == [*range(state["next"])]
    print(
        f"{len(trained)} prompts trained, each once: {exactly}; state of "
        f"{len(checkpoint['rollouts']):,} bytes"
    )


if __name__ == "__main__":
    main()
