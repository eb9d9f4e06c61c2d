"""Samples of other libraries, made by their own classes, as answers of rollouts."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from examples.rollout_adapters import (
    from_skyrl,
    from_torchtitan,
    from_trl,
    from_verifiers,
    from_verl,
)
from streampack import rollouts
from streampack.rollouts.answer import sequences_of

PROMPT, ANSWER, LOGPROBS = [5, 6, 7], [8, 9], [-0.5, -0.25]
IDS, MASK = [*PROMPT, *ANSWER], [False, False, False, True, True]
WHOLE = [0.0, 0.0, 0.0, *LOGPROBS]


def check(answers: Any, count: int = 1, **per_sequence: float) -> None:
    """The sequences have the prompt and answer of this module, and go through a step as trees."""
    sequences = sequences_of([tuple(a) if isinstance(a, list) else a for a in answers])
    assert len(sequences) == count
    for each in sequences:
        assert (each.ids.tolist(), each.loss_mask.tolist()) == (IDS, MASK)
        assert each.token_fields["logprobs"].tolist() == WHOLE
        for name, value in per_sequence.items():
            assert each.document_fields[name] == value
    queue = rollouts.Queue(rollouts.Prompts([PROMPT], epochs=1), answers=len(answers), groups=1)
    ticket = queue.get()
    assert ticket is not None
    for answer in answers:
        assert queue.put(ticket, answer)
    (step,) = rollouts.Loader(queue, seq_len=64, layout="tree")
    (batch,) = step
    assert batch.num_loss_tokens == 2 * count


def test_samples_of_trl() -> None:
    worker = pytest.importorskip("trl.experimental.async_grpo.async_rollout_worker")
    sample = worker.RolloutSample(
        prompt=[],
        completion=[],
        input_ids=np.array(IDS),
        completion_mask=np.array(MASK, dtype=np.int64),
        old_log_probs=np.array(WHOLE, dtype=np.float32),
        advantage=0.5,
        model_version=3,
        group_id=0,
        metrics={},
    )
    check(from_trl([sample, sample]), 2, advantage=0.5, version_max=3)


def test_traces_of_verifiers() -> None:
    pytest.importorskip("verifiers")
    trace = pytest.importorskip("verifiers.v1.trace")
    graph = pytest.importorskip("verifiers.v1.graph")
    types = pytest.importorskip("verifiers.v1.types")

    def node(parent: int | None, message: Any, ids: list[int], sampled: bool) -> Any:
        logprobs = LOGPROBS if sampled else []
        return graph.MessageNode(
            parent=parent, message=message, token_ids=ids, mask=[sampled] * len(ids),
            logprobs=logprobs, sampled=sampled,
        )  # fmt: skip

    asked = node(None, types.UserMessage(content="?"), PROMPT, False)
    replies = [node(0, types.AssistantMessage(content="!"), ANSWER, True) for _ in range(2)]
    made = trace.Trace.model_construct(
        nodes=[asked, *replies], calls=[], rewards={}, mm_token_type_id_map={}
    )
    check(from_verifiers([made], version=4), 2, reward=0.0, version_min=4)


def test_samples_of_torchtitan(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchtitan")
    (root,) = importlib.util.find_spec("torchtitan").submodule_search_locations  # type: ignore
    for name in ("experiments", "experiments.rl", "experiments.rl.observability"):
        package = ModuleType(f"torchtitan.{name}")  # its __init__ needs vLLM and triton
        package.__path__ = [f"{root}/{name.replace('.', '/')}"]
        monkeypatch.setitem(sys.modules, package.__name__, package)
    types = importlib.import_module("torchtitan.experiments.rl.types")
    samples = [
        types.TrainingSample(
            min_policy_version=1,
            max_policy_version=2,
            rollout_id=types.RolloutTurnID(group_id=0, rollout_id=rollout, turn_id=turn),
            token_ids=IDS,
            loss_mask=MASK,
            logprobs=WHOLE,
            advantage=[0.0] * 5,
        )
        for rollout, turn in ((0, 0), (0, 1), (1, 0))
    ]
    answers = from_torchtitan(samples)
    assert [*map(len, answers)] == [2, 1]
    check(answers, 3, version_min=1, version_max=2)


def test_output_of_skyrl() -> None:
    output: dict[str, Any] = {
        "prompt_token_ids": [PROMPT] * 2,
        "response_ids": [ANSWER] * 2,
        "rewards": [1.0, 1.0],
        "loss_masks": [[1, 1]] * 2,
        "rollout_logprobs": [LOGPROBS] * 2,
    }
    check(from_skyrl(output, version=5), 2, reward=1.0, version_max=5)
    per_token = {**output, "rewards": [[0.0, 1.0]] * 2}
    (answer, _) = from_skyrl(per_token, version=5)
    assert answer.token_fields["reward"].tolist() == [0.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("padded", [False, True])
def test_rows_of_verl_in_a_tensordict(padded: bool) -> None:
    torch = pytest.importorskip("torch")
    tensordict = pytest.importorskip("tensordict")
    left, right = ([0, 0], [0]) if padded else ([], [])
    row = {
        "prompts": torch.tensor([left + PROMPT]),
        "responses": torch.tensor([ANSWER + right]),
        "response_mask": torch.tensor([[1, 1, *right]]),
        "rollout_log_probs": torch.tensor([LOGPROBS + [0.0] * len(right)]),
        "advantages": torch.ones(1, 2 + len(right)),
    }
    if padded:
        row["attention_mask"] = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 0]])
    rows = tensordict.TensorDict(row, batch_size=[1])
    check(from_verl([dict(rows[0].items())], version=6), 1, version_max=6)
