"""GRPO with every prompt computed once for all of its answers: `python examples/grpo_tree.py`.

The answers to a prompt are a tree: `pack(..., layout="tree")` lays the prompt out once, and common
prefixes of answers too. Values of tokens (old log-probabilities) and of answers (advantages) stay
in the order of sampling. The loss of every step is compared with the loss of the same answers
without sharing.

Runs on a CPU in seconds: a model learns to answer with one token of its vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from streampack import pack

VOCABULARY, PROMPTS, ANSWERS, PROMPT_LEN, ANSWER_LEN, WANTED = 12, 4, 8, 20, 6, 7


class Decoder(nn.Module):
    """A causal transformer of one block, which takes its mask."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(64, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """(rows, length, vocabulary) logits; `mask` is (rows, 1, length, length)."""
        x = self.embed(ids) + self.places(positions)
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, dim=-1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, 0])
        return self.head(x + self.mlp(x))

    def alone(self, ids: Tensor) -> Tensor:
        """The same for sequences (count, length), one by one."""
        length = ids.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        return self(ids, torch.arange(length), mask)


@torch.no_grad()
def sampled(model: Decoder, prompts: Tensor) -> Tensor:
    """(prompts * ANSWERS, PROMPT_LEN + ANSWER_LEN) prompts, each with answers of the model."""
    ids = prompts.repeat_interleave(ANSWERS, dim=0)
    for _ in range(ANSWER_LEN):
        chances = model.alone(ids)[:, -1].softmax(dim=-1)
        ids = torch.cat([ids, torch.multinomial(chances, 1)], dim=1)
    return ids


def clipped(new: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    """The objective of each token, to be raised."""
    ratio = (new - old).exp()
    return torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


def main() -> None:
    """Train, and print rewards, the tokens that were computed, and how far losses differ."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = Decoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    largest, slots, tokens = 0.0, 0, 0
    for step in range(40):
        ids = sampled(model, torch.randint(VOCABULARY, (PROMPTS, PROMPT_LEN)))
        answers = ids[:, PROMPT_LEN:]
        reward = (answers == WANTED).double().mean(dim=1).view(PROMPTS, ANSWERS)
        advantage = reward - reward.mean(dim=1, keepdim=True)
        advantage = (advantage / (reward.std(dim=1, keepdim=True) + 1e-4)).view(-1)
        with torch.no_grad():
            logits = model.alone(ids)[:, :-1].log_softmax(dim=-1)
            old = logits.gather(-1, ids[:, 1:, None]).squeeze(-1)
        sequences = ids.numpy()
        plan = pack(
            [len(one) for one in sequences],
            ids=sequences,
            groups=np.arange(len(ids)) // ANSWERS,
            layout="tree",
            seq_len=128,
        )
        batches = plan.batches(
            sequences,
            loss_mask=[np.arange(ids.shape[1]) >= PROMPT_LEN] * len(ids),
            token_fields={"old": [np.append(0, one) for one in old.numpy()]},
            document_fields={"advantage": advantage.numpy()},
        )
        total = answers.numel()  # the tokens of the step, in all of its micro-batches
        for _ in range(2):  # the second step from the same answers is where clipping counts
            loss = 0.0
            batches = list(batches)
            for batch in batches:
                logits = model(batch.input_ids, batch.position_ids, batch.mask())
                gain = batch.document_fields["advantage"][batch.sequence_ids]
                each = clipped(batch.log_probs(logits), batch.fields["old"], gain)
                part = -each[batch.loss_mask].sum() / total
                part.backward()
                loss += part.item()
            with torch.no_grad():
                logits = model.alone(ids)[:, :-1].log_softmax(dim=-1)
                new = logits.gather(-1, ids[:, 1:, None]).squeeze(-1)
                alone = clipped(new, old, advantage[:, None])[:, PROMPT_LEN - 1 :]
            largest = max(largest, abs(loss + alone.sum().item() / total))
            optimizer.step()
            optimizer.zero_grad()
        slots, tokens = slots + int(plan.tokens.sum()), tokens + ids.numel()
        if step % 13 == 0:
            print(f"step {step}: reward {reward.mean():.2f}")
    print(f"{tokens / slots:.1f} times fewer tokens, losses differ by {largest:.1e} at most")


if __name__ == "__main__":
    main()
