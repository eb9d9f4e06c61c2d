"""Finished groups outlive a kill, and only groups that the resumed run may train."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import rollouts
from tests.support.rollout_runs import SEQ_LEN, answers, make_queue, sample, serials_of


def spooled(folder: Path, **settings: Any) -> rollouts.Queue:
    return make_queue(60, spool=str(folder), window=2, **settings)


def flushed(queue: rollouts.Queue) -> rollouts.Queue:
    assert queue._spool is not None
    queue._spool.flush()
    return queue


def files(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.rglob("*.npz"))


def resumed(folder: Path, state: dict[str, Any], **settings: Any) -> rollouts.Queue:
    queue = spooled(folder, **settings)
    queue.load_state(json.loads(json.dumps(state)))
    return queue


def test_finished_groups_are_trained_after_a_kill_without_being_sampled_anew(
    tmp_path: Path,
) -> None:
    queue = spooled(tmp_path)
    sample(queue, 4)
    unanswered = queue.get()
    assert unanswered is not None
    state = flushed(queue).state()
    after = resumed(tmp_path, state)
    assert after.metrics().restored == 4
    again = after.get(block=False)
    assert again is not None
    assert again.serial == unanswered.serial
    steps = iter(rollouts.Loader(after, seq_len=SEQ_LEN))
    step = next(steps)
    (batch,) = step
    assert [*dict.fromkeys(serials_of(step))] == [0, 1, 2]
    assert batch.document_fields["advantage"].tolist() == [0.0, 1.0] * 3
    assert batch.fields["logprobs"].dtype.is_floating_point


def test_groups_taken_back_are_kept_for_the_next_kill_too(tmp_path: Path) -> None:
    queue = spooled(tmp_path)
    sample(queue)
    after = resumed(tmp_path, flushed(queue).state())
    twice = resumed(tmp_path, flushed(after).state())
    assert twice.metrics().restored == 6


def test_groups_sampled_with_weights_after_the_state_are_sampled_anew(tmp_path: Path) -> None:
    queue = spooled(tmp_path)
    tickets = [queue.get() for _ in range(6)]
    for ticket, version in zip(tickets[:4], (0, 0, 0, 7), strict=True):
        assert ticket is not None
        for answer in answers(ticket, version):
            queue.put(ticket, answer)
    state = queue.state()
    loader = rollouts.Loader(queue, seq_len=SEQ_LEN)
    [*next(iter(loader))]
    loader.published(3)
    assert tickets[4] is not None
    for answer in answers(tickets[4]):
        queue.put(tickets[4], answer)
    flushed(queue)
    assert len(files(tmp_path)) == 5
    assert resumed(tmp_path, state).metrics().restored == 3


def test_groups_of_another_run_or_another_branch_are_not_taken(tmp_path: Path) -> None:
    first, other = spooled(tmp_path), spooled(tmp_path)
    state = first.state()
    sample(flushed(other))
    assert resumed(tmp_path, state).metrics().restored == 0
    branch = resumed(tmp_path, state)
    sample(branch)
    assert resumed(tmp_path, flushed(branch).state()).metrics().restored == 6
    assert resumed(tmp_path, state).metrics().restored == 0


def test_other_settings_of_the_queue_sample_anew(tmp_path: Path) -> None:
    queue = spooled(tmp_path)
    sample(queue)
    state = flushed(queue).state()
    assert resumed(tmp_path, state, answers=3).metrics().restored == 0
    assert resumed(tmp_path, state, steps_ahead=3).metrics().restored == 0


def test_a_saved_state_leaves_no_empty_folder_of_earlier_starts(tmp_path: Path) -> None:
    queue = spooled(tmp_path)
    sample(queue)
    for _ in range(3):
        queue = resumed(tmp_path, flushed(queue).state())
    state = flushed(queue).state()
    queue.saved(state)
    assert [each.name for each in (tmp_path / state["run"]).iterdir()] == [state["incarnation"]]
    assert len(files(tmp_path)) == 6


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_file_is_left_out(tmp_path: Path, damage: str) -> None:
    queue = spooled(tmp_path)
    sample(queue)
    state = flushed(queue).state()
    file = next(tmp_path.rglob("*.npz"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes({"flip": data, "cut": data[:-30], "empty": b""}[damage])
    after = resumed(tmp_path, state)
    assert after.metrics().restored == 5
    assert sample(after) == 1


def test_a_saved_state_drops_the_groups_that_it_does_not_need(tmp_path: Path) -> None:
    queue = spooled(tmp_path)
    sample(queue)
    loader = rollouts.Loader(queue, seq_len=SEQ_LEN)
    for step in loader:
        serials_of(step)
        loader.published(step.index + 1)
        sample(queue)
        state = loader.state_dict()
        loader.saved(state)
        needed = [f"{serial:012d}" for serial, _ in state["in_flight"]]
        assert files(tmp_path) == needed
    assert files(tmp_path) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_killed_runs_with_a_spool_train_every_prompt_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    state: dict[str, Any] | None = None
    done: list[int] = []
    restored = 0
    for _ in range(30):
        queue = spooled(tmp_path) if state is None else resumed(tmp_path, state)
        restored += queue.metrics().restored
        loader = rollouts.Loader(queue, seq_len=SEQ_LEN, layout="tree")
        later: list[int] = []
        sample(queue, rng.randrange(3, 9))
        for step in loader:
            later += serials_of(step)
            if rng.random() < 0.8:
                loader.published(step.index + 1)
            if rng.random() < 0.7:
                state = loader.state_dict()
                done, later = done + later, []
                loader.saved(state)
            if rng.random() < 0.3:
                break
            loader.published(step.index + 1)
            sample(queue)
        else:
            break
        flushed(queue)
    assert Counter(done + later) == dict.fromkeys(range(60), 2)
    assert restored > 0


def test_a_folder_that_cannot_be_written_is_logged_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = spooled(tmp_path / "spool")
    (tmp_path / "spool").write_text("a file")
    sample(queue)
    flushed(queue)
    assert "cannot be spooled" in caplog.text
    assert queue.metrics().finished == 6


def test_experts_and_numbers_keep_their_types(tmp_path: Path) -> None:
    queue = spooled(tmp_path, answers=1)
    ticket = queue.get()
    assert ticket is not None
    experts = np.arange(8, dtype=np.int16).reshape(2, 2, 2)
    queue.put(
        ticket,
        rollouts.Answer([1, 2], [0, 1], reward=0.5, token_fields={"experts": experts}),
    )
    after = resumed(tmp_path, flushed(queue).state(), answers=1)
    (group,) = after._schedule.untrained()
    ((answer,),) = group.answers
    assert answer.columns == {
        "token_fields.experts": "int16[2, 2]",
        "document_fields.reward": "float32",
    }
    assert (answer.token_fields["experts"] == experts).all()
