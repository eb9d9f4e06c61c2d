"""Samples of other libraries as answers of streampack's rollouts.

Copy the function of your sampler's library. Each returns the answers of a group, for
``queue.put(ticket, answer)`` one by one; several sequences of one rollout are one answer. Checked
with TRL 1.16, verifiers 0.4, torchtitan 0.3, TransferQueue 0.1.11, and the sources of SkyRL, slime
and verl in 2026.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from streampack.rollouts import Answer, Ragged


def from_trl(samples: Iterable[Any]) -> list[Answer]:
    """Convert `RolloutSample` objects of ``trl.experimental.async_grpo``."""
    return [
        Answer(
            sample.input_ids,
            sample.completion_mask,
            logprobs=sample.old_log_probs,
            advantage=sample.advantage,
            version=sample.model_version,
        )
        for sample in samples
    ]


def from_verifiers(traces: Iterable[Any], version: int) -> list[list[Answer]]:
    """Convert `Trace` objects of verifiers; the branches of a trace are one answer."""
    return [
        [
            Answer(
                branch.token_ids,
                branch.sampled_mask,
                logprobs=branch.logprobs,
                advantage=branch.advantages,
                reward=trace.reward,
                version=version,
            )
            for branch in trace.branches
            if branch.trainable
        ]
        for trace in traces
    ]


def from_torchtitan(samples: Iterable[Any]) -> list[list[Answer]]:
    """Convert the `TrainingSample` objects of a group; several of one rollout are one answer."""
    by_rollout = groupby(samples, key=lambda sample: sample.rollout_id.rollout_id)
    return [
        [
            Answer(
                sample.token_ids,
                sample.loss_mask,
                logprobs=sample.logprobs,
                advantage=sample.advantage,
                version=(sample.min_policy_version, sample.max_policy_version),
            )
            for sample in of_rollout
        ]
        for _, of_rollout in by_rollout
    ]


def from_skyrl(output: Mapping[str, Any], version: int) -> list[Answer]:
    """Convert a `GeneratorOutput` of SkyRL with the trajectories of one prompt."""
    answers = []
    for i, (prompt, response) in enumerate(
        zip(output["prompt_token_ids"], output["response_ids"], strict=True)
    ):
        before = [0.0] * len(prompt)
        reward, logprobs = output["rewards"][i], output.get("rollout_logprobs")
        answers.append(
            Answer(
                [*prompt, *response],
                [0] * len(prompt) + list(output["loss_masks"][i]),
                logprobs=before + list(logprobs[i]) if logprobs else None,
                reward=before + list(reward) if isinstance(reward, list) else float(reward),
                version=version,
            )
        )
    return answers


def from_slime(samples: Iterable[Any]) -> list[Answer]:
    """Convert `Sample` objects of slime; give the ticket back if one was aborted."""
    answers = []
    for sample in samples:
        before = len(sample.tokens) - sample.response_length
        mask = sample.loss_mask or [1] * sample.response_length
        logprobs = sample.rollout_log_probs
        versions = [int(version) for version in sample.weight_versions]
        kept = {}
        if sample.rollout_top_p_token_offsets is not None:
            offsets = np.concatenate([[0] * before, sample.rollout_top_p_token_offsets])
            ids = np.asarray(sample.rollout_top_p_token_ids)
            kept["top_p"] = Ragged(offsets.astype(np.int64), ids)
        answers.append(
            Answer(
                sample.tokens,
                [0] * before + [value * (not sample.remove_sample) for value in mask],
                logprobs=[0.0] * before + logprobs if logprobs else None,
                reward=float(sample.reward),
                version=(min(versions), max(versions)) if versions else None,
                ragged_fields=kept,
            )
        )
    return answers


def from_verl(rows: Sequence[Mapping[str, Any]], version: int) -> list[Answer]:
    """Convert rows of verl, of a `DataProto` or of TransferQueue: a tensor for each name."""
    answers = []
    for row in rows:
        prompt, response = (np.asarray(row[name]) for name in ("prompts", "responses"))
        held = np.ones(len(prompt) + len(response), dtype=bool)
        if "attention_mask" in row:  # padded on both sides
            held = np.asarray(row["attention_mask"]).astype(bool)
        before = np.zeros(len(prompt), dtype=np.float32)

        def whole(name: str, row: Any = row, before: Any = before, held: Any = held) -> Any:
            """Return a value per token of the response as one per token of the sequence."""
            return np.concatenate([before, row[name]])[held] if name in row else None

        answers.append(
            Answer(
                np.concatenate([prompt, response])[held],
                whole("response_mask"),
                logprobs=whole("rollout_log_probs"),
                advantage=whole("advantages"),
                version=version,
            )
        )
    return answers


def main() -> None:
    """Convert two trajectories of a made output of SkyRL."""
    output = {
        "prompt_token_ids": [[5, 6, 7]] * 2,
        "response_ids": [[8, 9]] * 2,
        "rewards": [0.0, 1.0],
        "loss_masks": [[1, 1]] * 2,
        "rollout_logprobs": [[-0.5, -0.25]] * 2,
    }
    answers = from_skyrl(output, version=3)
    tokens = sum(len(answer.ids) for answer in answers)
    print(f"{tokens} tokens, {sum(answer.num_loss_tokens for answer in answers)} in the loss")


if __name__ == "__main__":
    main()
