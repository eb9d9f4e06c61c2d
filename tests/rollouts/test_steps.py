"""Steps in several passes and parts, and in words and metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from streampack import Waits, rollouts
from streampack.rollouts.schedule import Group
from streampack.rollouts.step import steps_of_ranks
from tests.support.rollout_runs import SEQ_LEN, make_queue, sample, serials_of


def test_a_step_of_several_passes_counts_as_trained_at_the_end_of_the_last() -> None:
    queue = make_queue(6, groups=6)
    sample(queue)
    loader = rollouts.Loader(queue, seq_len=8, passes=3)
    step = next(iter(loader))
    trained = Counter[int]()
    for number in range(3):
        for batch in step:
            assert loader.state_dict()["steps"] == (number == 2 and batch.step == len(step) - 1)
            trained.update(batch.document_fields["prompt_serial"].tolist())
    assert trained == dict.fromkeys(range(6), 6)
    assert loader.state_dict()["in_flight"] == []


def test_the_next_step_ends_one_that_was_iterated_less_often() -> None:
    queue = make_queue(12, groups=6)
    sample(queue)
    steps = iter(rollouts.Loader(queue, seq_len=8, passes=3))
    serials_of(next(steps))
    assert queue.state()["steps"] == 0
    next(steps)
    assert queue.state()["steps"] == 1


@pytest.mark.parametrize("layout", ["documents", "tree"])
@pytest.mark.parametrize("count", [1, 2, 3, 99])
def test_parts_of_a_step_have_the_loss_tokens_of_all_ranks(layout: str, count: int) -> None:
    groups = [
        Group(
            serial,
            answers=[
                rollouts.Answer([serial, n, 3, 4][: 2 + n % 3], [0, 1, 1, 1][: 2 + n % 3])
                for n in range(9)
            ],
        )
        for serial in range(5)
    ]
    steps = steps_of_ranks(0, groups, ranks=2, layout=layout, options={"seq_len": 16})
    parts = [[(tokens, [*batches]) for tokens, batches in step.parts(count)] for step in steps]
    assert {len(part) for part in parts} == {min(count, len(steps[0]))}
    for one, other in zip(*parts, strict=True):
        assert one[0] == other[0] == sum(batch.num_loss_tokens for batch in one[1] + other[1])
        assert len(one[1]) == len(other[1]) > 0
    seen = [batch.step for _, batches in parts[0] for batch in batches]
    assert seen == [*range(len(steps[0]))]
    assert sum(tokens for tokens, _ in parts[0]) == steps[0].num_loss_tokens


@pytest.mark.parametrize("layout", ["documents", "tree"])
def test_a_rank_without_answers_has_the_fields_of_the_others(layout: str) -> None:
    experts = np.zeros((3, 2, 2), dtype=np.uint8)
    answer = rollouts.Answer(
        [1, 2, 3],
        [0, 1, 1],
        advantage=1.0,
        logprobs=[0.0, 0.5, 0.5],
        token_fields={"experts": experts},
        ragged_fields={"kept": [[1], [2, 3], []]},
    )
    steps = steps_of_ranks(
        0, [Group(7, answers=[answer])], ranks=3, layout=layout, options={"seq_len": 8}
    )
    batches = [next(iter(step)) for step in steps]
    kinds = [
        [
            (name, values.dtype, values.shape[2:])
            for name, values in [*batch.fields.items(), *batch.document_fields.items()]
        ]
        for batch in batches
    ]
    assert kinds[0] == kinds[1] == kinds[2]
    assert {"experts", "logprobs", "advantage", "prompt_serial", "age"} <= {
        name for name, *_ in kinds[0]
    }
    assert sorted(len(batch.document_fields["advantage"]) for batch in batches) == [0, 0, 1]
    sets = [step.ragged(batch)["kept"] for step, batch in zip(steps, batches, strict=True)]
    assert sorted(len(each.values) for each in sets) == [0, 0, 3]


def test_a_step_shows_the_micro_batches_of_all_ranks() -> None:
    queue = make_queue(6, groups=6)
    sample(queue)
    (step,) = rollouts.Loader(queue, seq_len=8)
    lines = step.show().splitlines()
    assert lines[0] == str(step)
    assert len(lines) == 1 + len(step)


def test_metrics_and_waits_are_exported_to_opentelemetry() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    meter = sdk.MeterProvider([reader]).get_meter("test")
    queue = make_queue(9)
    queue.export(meter)
    sample(queue)
    waits: Waits[Any] = Waits(rollouts.Loader(queue, seq_len=SEQ_LEN), meter=meter)
    for step in waits:
        serials_of(step)
        queue.publish(step.index + 1, step.index + 1)
        sample(queue)
    data = reader.get_metrics_data()
    (scope,) = data.resource_metrics[0].scope_metrics
    values = {
        metric.name: getattr(metric.data.data_points[0], "value", None) for metric in scope.metrics
    }
    assert values["streampack.rollouts.trained"] == 9
    assert values["streampack.rollouts.in_flight"] == 0
    assert {f"streampack.rollouts.age_p{n}" for n in (50, 99)} < values.keys()
    assert waits.report().steps == 2
    assert "streampack.wait" in values
