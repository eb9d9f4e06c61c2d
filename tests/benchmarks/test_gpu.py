"""The benchmark of training steps: the labels of its arms, and trees."""

from __future__ import annotations

from itertools import islice

import pytest

from benchmarks.gpu import QUICK, Trainer, arms, rollout_steps


@pytest.mark.parametrize("name", arms(QUICK, "cpu"))
def test_an_arm_learns_every_token_but_the_first_of_a_piece(name: str) -> None:
    for step in islice(arms(QUICK, "cpu")[name], 3):
        assert step.labels is not None
        learnt = int((step.labels != -100).sum())
        assert 0 < step.tokens - learnt <= step.input_ids.numel() // 4
        assert step.tokens <= step.input_ids.numel()


def test_a_tree_learns_the_answers_that_separate_rows_learn() -> None:
    (trees, tokens), (rows, same) = (rollout_steps(QUICK, "cpu", tree=t) for t in (True, False))
    assert tokens == same == sum(int((step.labels != -100).sum()) for step in rows)
    assert sum(step.input_ids.numel() for step in trees) < sum(s.input_ids.numel() for s in rows)
    trainer = Trainer(QUICK._replace(seq_len=trees[0].input_ids.numel()), "cpu")
    trainer.learn(trees[0])
