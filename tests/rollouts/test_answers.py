"""Values per token of answers: experts, and sets of unequal sizes, in rows and in trees."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import rollouts
from streampack.errors import ConfigError
from streampack.rollouts.answer import sequences_of
from tests.support.rollout_runs import make_queue, serials_of


def kept(ids: list[int]) -> list[list[int]]:
    """The set of a token is id, id + 1, ... of a size that follows from the id."""
    return [[*range(token, token + token % 4)] for token in ids]


def answered(queue: rollouts.Queue, groups: int) -> None:
    for _ in range(groups):
        ticket = queue.get()
        assert ticket is not None
        for number in range(ticket.answers):
            prompt = ticket.prompt.tolist()
            ids = [*prompt, *range(100 + number, 102 + 2 * number)]
            mask = np.arange(len(ids)) >= len(prompt)
            experts = np.array([[[token % 5, i], [token % 7, 9]] for i, token in enumerate(ids)])
            answer = rollouts.Answer(
                ids,
                mask,
                version=0,
                token_fields={"experts": experts.astype(np.uint8)},
                ragged_fields={"kept": kept(ids)},
            )
            assert queue.put(ticket, answer)


def ids_and_sets(batch: Any, sets: rollouts.Ragged) -> list[tuple[int, list[int]]]:
    """The id and the set of each token that is not padding."""
    tokens = batch.input_ids.ravel()
    if hasattr(batch, "slot"):
        tokens = tokens[batch.slot]
    assert len(sets.offsets) == len(tokens) + 1
    values = [sets.values[a:b].tolist() for a, b in itertools.pairwise(sets.offsets.tolist())]
    return [*zip(tokens.tolist(), values, strict=True)]


@pytest.mark.parametrize("layout", ["documents", "tree"])
@pytest.mark.parametrize("settings", [{}, {"pad_to": 8, "align": 4}])
def test_each_token_has_its_own_set_and_its_own_experts(
    layout: Any, settings: Mapping[str, Any]
) -> None:
    queue = make_queue(12, groups=6, answers=3)
    answered(queue, 6)
    step = next(iter(rollouts.Loader(queue, seq_len=16, layout=layout, **settings)))
    assert len(step) > 1
    seen = 0
    for batch in step:
        sets = step.ragged(batch)["kept"]
        for token, values in ids_and_sets(batch, sets):
            assert values == kept([token])[0]  # padding is 0, with an empty set
            seen += len(values)
        tokens = batch.input_ids.ravel()
        experts = batch.fields["experts"].reshape(len(tokens), 2, 2)
        held = tokens > 0
        assert (experts[held, 0, 0] == tokens[held] % 5).all()
        assert (experts[held, 1, 0] == tokens[held] % 7).all()
    held = (answer.ragged_fields["kept"] for answer in step.answers.values())
    assert seen == sum(len(sets.values) for sets in held)


def test_sets_outlive_a_kill_in_the_spool(tmp_path: Path) -> None:
    queue = make_queue(12, groups=6, spool=str(tmp_path))
    answered(queue, 6)
    assert queue._spool is not None
    queue._spool.flush()
    after = make_queue(12, groups=6, spool=str(tmp_path))
    after.load_state(json.loads(json.dumps(queue.state())))
    assert after.metrics().restored == 6
    before, again = (
        [answer for group in each._schedule.untrained() for answer in sequences_of(group.answers)]
        for each in (queue, after)
    )
    for one, other in zip(before, again, strict=True):
        assert one.columns == other.columns
        for mine, theirs in zip(
            one.ragged_fields["kept"], other.ragged_fields["kept"], strict=True
        ):
            assert mine.tolist() == theirs.tolist()


@pytest.mark.parametrize(
    "sets",
    [
        [[1], [2]],
        [[1], [2], ["a"]],
        rollouts.Ragged([0, 1, 2], [1, 2]),
        rollouts.Ragged([0, 1, 2, 4], [1, 2]),
        rollouts.Ragged([0, 2, 1, 2], [1, 2]),
        rollouts.Ragged([1, 1, 2, 2], [1, 2]),
        rollouts.Ragged([0.0, 1.0, 2.0, 2.0], [1, 2]),
        7,
        [1, 2, 3],
    ],
)
def test_malformed_sets_name_their_field(sets: Any) -> None:
    with pytest.raises(ConfigError) as error:
        rollouts.Answer([1, 2, 3], [0, 1, 1], ragged_fields={"kept": sets})
    assert error.value.setting == "kept"


def test_images_in_answers_are_refused_by_name() -> None:
    with pytest.raises(ConfigError) as error:
        rollouts.Answer([1, 2], [0, 1], document_fields={"image": b"\x89PNG"})
    assert error.value.setting == "image"


def test_an_answer_of_several_sequences_counts_once_and_outlives_a_kill(tmp_path: Path) -> None:
    queue = make_queue(2, groups=2, spool=str(tmp_path))
    for _ in range(2):
        ticket = queue.get()
        assert ticket is not None
        branches = [rollouts.Answer([9, 1, n], [0, 1, 1], version=0) for n in range(3)]
        queue.put(ticket, branches)
        assert queue.metrics().finished == ticket.serial
        queue.put(ticket, branches[0])
    assert queue._spool is not None
    queue._spool.flush()
    after = make_queue(2, groups=2, spool=str(tmp_path))
    after.load_state(queue.state())
    step = next(iter(rollouts.Loader(after, seq_len=64, layout="tree")))
    assert serials_of(step) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert step.num_loss_tokens == 16
    with pytest.raises(ConfigError):
        queue.put(ticket, [])
    with pytest.raises(ConfigError):
        queue.put(ticket, [branches[0], 7])  # type: ignore[list-item]
