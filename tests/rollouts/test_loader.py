"""Rollouts from prompts to micro-batches: every prompt trained once, also after kills."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import queue as queues
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streampack import rollouts, sources
from streampack.errors import ConfigError, ContentError, PlanError, StateError, WorkerError
from streampack.rollouts.schedule import Group
from streampack.rollouts.step import steps_of_ranks
from tests.support.chats import bpe_tokenizer
from tests.support.rollout_runs import (
    SEQ_LEN,
    answers,
    make_queue,
    prompts,
    sample,
    serials_of,
    train,
)


def test_rollouts_are_imported_when_they_are_used() -> None:
    assert rollouts.Queue.__module__ == "streampack.rollouts.queue"


@pytest.mark.parametrize("layout", ["documents", "tree"])
def test_every_answer_to_every_prompt_is_trained_once_with_its_own_values(layout: Any) -> None:
    queue = make_queue(20)
    by_serial = {}
    while True:  # tickets of all prompts, for comparison
        serial = len(by_serial)
        if not (other := prompts(20)).has(serial):
            break
        by_serial[serial] = other.read(serial)
    seen = []
    loader = rollouts.Loader(queue, seq_len=SEQ_LEN, layout=layout, pad_to=8)
    sample(queue)
    for step in loader:
        for batch in step:
            if layout == "tree":
                tokens = batch.input_ids.ravel()[batch.slot].tolist()
                ids = batch.sequence_ids.tolist()
                pairs: dict[int, list[int]] = {}
                for token, sequence in zip(tokens, ids, strict=True):
                    pairs.setdefault(sequence, []).append(token)
                sequences = [*pairs.values()]
            else:
                row = batch.input_ids[0].tolist()
                ends = batch.cu_seqlens.tolist()
                sequences = [row[a:b] for a, b in itertools.pairwise(ends)]
                sequences = sequences[: len(batch.document_fields["age"])]
            numbers = batch.document_fields["prompt_serial"].tolist()
            advantages = batch.document_fields["advantage"].tolist()
            for serial, advantage, ids in zip(numbers, advantages, sequences, strict=True):
                prompt = by_serial[serial].ids.tolist()
                assert ids[: len(prompt)] == prompt
                assert ids[-1] == 2000 + advantage
                seen.append((serial, int(advantage)))
        loader.published(step.index + 1)
        sample(queue)
    assert sorted(seen) == [(serial, number) for serial in range(20) for number in range(2)]


def test_tokens_in_the_loss_are_counted_over_all_micro_batches() -> None:
    queue = make_queue(6, groups=6)
    sample(queue)
    (step,) = rollouts.Loader(queue, seq_len=8)
    assert len(step) > 1
    assert step.num_loss_tokens == sum(batch.num_loss_tokens for batch in step)
    assert "6 groups, 12 sequences" in str(step)


@pytest.mark.parametrize("seed", range(6))
def test_killed_runs_train_every_prompt_once(seed: int) -> None:
    """A run is killed at random moments; its states go through JSON."""
    rng = random.Random(seed)
    state: dict[str, Any] | None = None
    done: list[list[int]] = []  # sequences of the steps before the state
    for _ in range(30):
        queue = make_queue(
            60, window=rng.choice([1, 2, "strict"]), steps_ahead=rng.choice([0, 1, 2])
        )
        left = rng.randrange(1, 6)
        run = train(queue, state, layout=rng.choice(["documents", "tree"]))
        later: list[list[int]] = []
        for loader, serials in run:
            later.append(serials)
            if rng.random() < 0.5:
                state = json.loads(json.dumps(loader.state_dict()))
                done, later = done + later, []
            left -= 1
            if not left:
                break
        else:
            break
    trained = Counter(serial for step in done + later for serial in step)
    assert trained == dict.fromkeys(range(60), 2)


def test_a_state_inside_a_step_is_the_state_of_its_beginning() -> None:
    queue = make_queue(12, groups=6)
    sample(queue)
    loader = rollouts.Loader(queue, seq_len=8)
    before = loader.state_dict()
    steps = iter(loader)
    step = next(steps)
    for number, _ in enumerate(step, 1):
        state = loader.state_dict()
        if number < len(step):
            assert (state["steps"], state["in_flight"]) == (0, before["in_flight"])
    assert state["steps"] == 1
    assert [serial for serial, _ in state["in_flight"]] == [*range(6, 12)]


def test_after_a_resume_prompts_in_flight_come_first_and_answers_to_old_tickets_are_refused() -> (
    None
):
    queue = make_queue(30, window=3)
    old = [queue.get() for _ in range(6)]
    assert None not in old
    state = queue.state()
    resumed = make_queue(30, window=3)
    resumed.load_state(state)
    new = [resumed.get() for _ in range(6)]
    for before, after in zip(old, new, strict=True):
        assert before is not None
        assert after is not None
        assert (after.serial, after.fields) == (before.serial, before.fields)
        assert after.prompt.tolist() == before.prompt.tolist()
        assert not resumed.put(before, next(answers(before)))
        assert resumed.put(after, next(answers(after)))
    assert resumed.metrics().counts.refused == 6


def test_a_state_of_other_prompts_is_refused() -> None:
    queue = make_queue()
    sample(queue)
    state = queue.state()
    with pytest.raises(StateError) as error:
        make_queue(41).load_state(state)
    assert error.value.setting == "source.manifest"
    with pytest.raises(StateError):
        make_queue().load_state({**state, "next": 3})
    with pytest.raises(StateError):
        make_queue().load_state({})


def test_other_ids_under_a_serial_in_flight_are_refused(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one", "two")]
    for file, first in zip(files, (1, 2), strict=True):
        file.mkdir()
        (file / "a.jsonl").write_text("".join(f'{{"ids": [{first}, {n}]}}\n' for n in range(9)))
    queue, other = (
        rollouts.Queue(rollouts.Prompts(str(file), tokens="ids"), answers=1, groups=2)
        for file in files
    )
    ticket = queue.get()
    assert ticket is not None
    with pytest.raises(StateError):
        other.load_state(queue.state())


def test_prompts_come_from_a_mixture_with_their_texts_and_without_an_end() -> None:
    def rows(name: str, count: int) -> list[dict[str, str]]:
        return [{"question": f"{name} {n}?", "right": f"{name}{n}"} for n in range(count)]

    named = {
        name: sources.open(rows(name, count), text="question")
        for name, count in (("a", 5), ("b", 3))
    }
    tokenizer = bpe_tokenizer()
    mixed = rollouts.Prompts(
        sources.Mixture(named, weights={"a": 2, "b": 1}),
        tokenizer=tokenizer,
        document_fields={"right": "text"},
    )
    queue = rollouts.Queue(mixed, answers=1, groups=8)
    tickets = [queue.get() for _ in range(16)]
    state = queue.state()
    for ticket in tickets:
        assert ticket is not None
        text = tokenizer.decode(ticket.prompt.tolist())
        assert text.replace(" ", "").rstrip("?") == ticket.fields["right"]
    again = rollouts.Queue(mixed, answers=1, groups=8)
    again.load_state(state)
    for ticket in tickets:
        other = again.get()
        assert other is not None
        assert ticket is not None
        assert other.fields == ticket.fields


def test_samplers_in_threads_and_a_trainer_work_at_the_same_time() -> None:
    queue = make_queue(60, timeout_s=20, window=2)

    def samples(seed: int) -> None:
        rng = random.Random(seed)
        while (ticket := queue.get()) is not None:
            if rng.random() < 0.1:
                queue.give_back(ticket, "tired")
            elif rng.random() < 0.1:
                queue.reject(ticket, "all rewards equal")
            else:
                for answer in answers(ticket):
                    queue.put(ticket, answer)

    threads = [threading.Thread(target=samples, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    loader = rollouts.Loader(queue, seq_len=SEQ_LEN)
    trained = Counter[int]()
    for step in loader:
        trained.update(serials_of(step))
        loader.published(step.index)
    for thread in threads:
        thread.join()
    counts = queue.metrics().counts
    assert {*trained.values()} == {2}
    assert len(trained) + counts.rejected + counts.failed == 60
    assert counts.rejected > 0


def test_samplers_of_asyncio_wait_for_slots_and_for_the_end() -> None:
    queue = make_queue(20)
    trained = Counter[int]()

    async def samples() -> None:
        while (ticket := await queue.aget()) is not None:
            await asyncio.sleep(0)
            for answer in answers(ticket):
                queue.put(ticket, answer)

    async def all_samples() -> None:
        await asyncio.gather(*(samples() for _ in range(5)))

    thread = threading.Thread(target=asyncio.run, args=(all_samples(),))
    thread.start()
    loader = rollouts.Loader(queue, seq_len=SEQ_LEN)
    for step in loader:
        trained.update(serials_of(step))
        loader.published(step.index)
    thread.join()
    assert trained == dict.fromkeys(range(20), 2)


def test_a_ticket_that_timed_out_goes_to_another_sampler() -> None:
    queue = make_queue(4, timeout_s=0.01, groups=1, steps_ahead=0)
    lost = queue.get()
    again = queue.get(timeout=60)  # waits for the timeout of the first
    assert lost is not None
    assert again is not None
    assert (again.serial, again.attempt) == (lost.serial, 2)
    assert not queue.put(lost, next(answers(lost)))


def test_one_bad_prompt_is_counted_and_many_stop_the_run(caplog: pytest.LogCaptureFixture) -> None:
    queue = make_queue(12, max_attempts=1, steps_ahead=0)
    loader = iter(rollouts.Loader(queue, seq_len=SEQ_LEN))
    bad = queue.get()
    assert bad is not None
    with caplog.at_level(logging.WARNING):
        queue.give_back(bad, "too hard")
    assert "too hard" in caplog.text
    sample(queue)
    assert {*serials_of(next(loader))} == {1, 2, 3}
    queue.publish(1, 1)
    for _ in range(3):
        bad = queue.get()
        assert bad is not None
        queue.give_back(bad)
    with pytest.raises(WorkerError) as error:
        next(loader)
    assert error.value.setting == "timeout_s"


def test_a_failed_prompt_is_an_error_if_that_is_asked_for() -> None:
    queue = make_queue(12, max_attempts=1, on_error="raise")
    bad = queue.get()
    assert bad is not None
    queue.give_back(bad)
    with pytest.raises(WorkerError):
        next(iter(rollouts.Loader(queue, seq_len=SEQ_LEN)))


def test_prompts_that_cannot_be_read_stop_the_trainer_too(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"ids": [1]}\n{"ids": [2]}\n{"ids": "x"}\n')
    source = rollouts.Prompts(str(tmp_path / "a.jsonl"), tokens="ids", shuffle=False)
    queue = rollouts.Queue(source, answers=1, groups=4)
    with pytest.raises(ContentError):
        sample(queue)
    with pytest.raises(ContentError):
        next(iter(rollouts.Loader(queue, seq_len=8)))


def test_a_trainer_that_publishes_nothing_gets_an_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streampack.rollouts.loader.WARN_AFTER_S", 0.0)
    monkeypatch.setattr("streampack.rollouts.loader._PAUSE_S", 0.01)
    queue = make_queue(60, steps_ahead=0)
    sample(queue)
    loader = rollouts.Loader(queue, seq_len=SEQ_LEN)
    steps = iter(loader)
    [*next(steps)]
    threading.Timer(0.3, lambda: loader.published(1)).start()
    threading.Timer(0.4, lambda: sample(queue)).start()
    with caplog.at_level(logging.WARNING):
        assert next(steps).index == 1
    assert "loader.published(version)" in caplog.text


def test_weights_that_arrive_later_free_only_their_own_steps() -> None:
    queue = make_queue(60, steps_ahead=1)
    sample(queue)
    loader = rollouts.Loader(queue, seq_len=SEQ_LEN)
    steps = iter(loader)
    [*next(steps)]
    [*next(steps)]
    loader.published(1, steps=1)
    assert sample(queue) == 3
    loader.published(2)
    assert sample(queue) == 3


def test_a_sequence_longer_than_a_row_is_an_error_and_its_step_is_not_lost() -> None:
    queue = make_queue(6)
    sample(queue)
    loader = rollouts.Loader(queue, seq_len=2)
    with pytest.raises(PlanError):
        next(iter(loader))
    assert loader.state_dict()["steps"] == 0
    assert len(loader.state_dict()["in_flight"]) == 6


def test_a_group_larger_than_a_row_is_divided_among_rows_and_ranks() -> None:
    groups = [
        Group(serial, answers=[rollouts.Answer([serial, n], [0, 1]) for n in range(20)])
        for serial in (7, 9)
    ]
    steps = steps_of_ranks(0, groups, ranks=2, layout="tree", options={"seq_len": 8})
    assert len({len(step) for step in steps}) == 1
    assert Counter(serial for step in steps for serial in serials_of(step)) == {7: 20, 9: 20}


def test_a_late_joiner_gets_no_prompt_at_the_end() -> None:
    queue = make_queue(4)
    for _ in train(queue):
        pass
    assert queue.get() is None
    assert asyncio.run(queue.aget()) is None


def test_a_closed_queue_ends_samplers_and_loader_and_its_state_has_the_rest() -> None:
    queue = make_queue(20)
    loader = rollouts.Loader(queue, seq_len=SEQ_LEN)
    held, *_ = (queue.get() for _ in range(6))
    assert held is not None
    got: list[Any] = []
    waits = [lambda: got.append(queue.get())] * 2 + [lambda: got.append(asyncio.run(queue.aget()))]
    threads = [threading.Thread(target=wait) for wait in waits]
    for thread in threads:
        thread.start()
    queue.close()
    for thread in threads:
        thread.join()
    assert got == [None] * 3
    assert not queue.put(held, next(answers(held)))
    assert [*loader] == []
    trained = Counter(
        serial for _, serials in train(make_queue(20), loader.state_dict()) for serial in serials
    )
    assert trained == dict.fromkeys(range(20), 2)


def test_get_without_waiting_raises_as_queues_of_python_do() -> None:
    queue = make_queue(60)
    sample(queue)
    with pytest.raises(queues.Empty):
        queue.get(block=False)
    with pytest.raises(queues.Empty):
        queue.get(timeout=0.001)


def test_metrics_count_groups_tokens_and_ages() -> None:
    queue = make_queue(60, window=2)
    sample(queue, 5)
    ticket = queue.get()
    assert ticket is not None
    queue.put(ticket, next(answers(ticket)))
    metrics = queue.metrics()
    assert (metrics.in_flight, metrics.finished, metrics.partial) == (6, 5, 1)
    assert metrics.sampled_tokens > metrics.trained_tokens == 0
    loader = rollouts.Loader(queue, seq_len=SEQ_LEN)
    next(iter(loader))
    values = queue.metrics().as_dict()
    assert (values["trained"], values["steps"], values["age_p99"]) == (3, 1, 0.0)
    assert values["most_age"] == queue.rule.most_age == 3


@pytest.mark.parametrize(
    ("values", "setting"),
    [
        ({"ids": []}, "ids"),
        ({"ids": [[1, 2]]}, "ids"),
        ({"ids": [1.5]}, "ids"),
        ({"ids": [-1, 2, 3]}, "ids"),
        ({"ids": "abc"}, "ids"),
        ({"loss_mask": [1]}, "loss_mask"),
        ({"logprobs": [0.0]}, "logprobs"),
        ({"advantage": [1.0, 2.0]}, "advantage"),
        ({"version": 1.5}, "version"),
        ({"version": [1, 2]}, "version"),
        ({"document_fields": {"a": [1, 2, 3]}}, "a"),
        ({"document_fields": {"age": 1}}, "age"),
        ({"token_fields": {"experts": np.zeros((2, 4))}}, "experts"),
    ],
)
def test_a_malformed_answer_names_its_field(values: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as error:
        rollouts.Answer(**{"ids": [1, 2, 3], "loss_mask": [0, 1, 1], **values})
    assert error.value.setting == setting


def test_answers_hold_versions_experts_and_values_per_token() -> None:
    experts = np.arange(12, dtype=np.int16).reshape(3, 2, 2)
    one = rollouts.Answer(
        [1, 2, 3],
        [0, 1, 1],
        advantage=[0.0, 1.0, 2.0],
        version=(3, 5),
        token_fields={"experts": experts},
    )
    assert one.newest_version == 5
    assert one.num_loss_tokens == 2
    queue = make_queue(2, answers=1, groups=2)
    for _ in range(2):
        ticket = queue.get()
        assert ticket is not None
        queue.put(ticket, one)
    (step,) = rollouts.Loader(queue, seq_len=8)
    (batch,) = step
    assert batch.fields["experts"].shape == (1, 8, 2, 2)
    assert batch.fields["advantage"][0, :6].tolist() == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]
    assert batch.document_fields["version_min"].tolist() == [3, 3]


def test_answers_with_other_fields_than_before_are_refused() -> None:
    queue = make_queue()
    ticket = queue.get()
    assert ticket is not None
    queue.put(ticket, rollouts.Answer([1, 2], [0, 1], reward=1.0))
    with pytest.raises(ConfigError) as error:
        queue.put(ticket, rollouts.Answer([1, 2], [0, 1]))
    assert error.value.setting == "reward"
    with pytest.raises(ConfigError):
        queue.put(ticket, {"ids": [1]})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ({"groups": 0}, "groups"),
        ({"window": "fifo"}, "window"),
        ({"steps_ahead": -1}, "steps_ahead"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"on_error": "count"}, "on_error"),
    ],
)
def test_a_wrong_setting_is_named(arguments: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_queue(**arguments)
    assert error.value.setting == setting


def test_a_loader_names_a_missing_queue() -> None:
    with pytest.raises(ConfigError) as error:
        rollouts.Loader(None, seq_len=8)
    assert error.value.setting == "queue"
