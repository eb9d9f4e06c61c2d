"""The Trainer, accelerate: each rank trains on its own documents; a second split is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from streampack import (
    PackedDataset,
    PackedLoader,
    TokenRules,
    Topology,
    merge_states,
    sources,
)
from streampack.errors import ConfigError, StateError
from streampack.packing import BestFitDecreasing
from streampack.trainers import TrainerMixin
from streampack.trainers.hugging_face import check_parallelism, saved_state, whole_rows
from tests.support.memory_source import MemorySource
from tests.support.packed_batches import random_documents
from tests.support.tiny_families import tiny_model

pytest.importorskip("accelerate")
ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"


def dataset(**options: Any) -> PackedDataset:
    return PackedDataset(
        MemorySource([random_documents([5, 9, 3, 12, 7, 6])]),
        packer=BestFitDecreasing(seq_len=16), batch_size=1, lanes=1, topology=Topology(), **options,
    )  # fmt: skip


def torchrun(folder: Path, *arguments: object) -> None:
    path = os.pathsep.join([str(SUPPORT / "torchvision_on_cpu"), str(ROOT)])
    run = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(SUPPORT / "trainer_run.py"), str(folder)),
            *map(str, arguments),
        ],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]


def counts(folder: Path, max_steps: int) -> Any:
    paths = [folder / f"counts-{rank}-{max_steps}.json" for rank in range(2)]
    return np.array([json.loads(path.read_text()) for path in paths])


@pytest.mark.slow
def test_two_ranks_that_stop_and_resume_train_on_every_document_once(tmp_path: Path) -> None:
    from tests.support.trainer_run import DOCUMENTS

    lengths = np.zeros(128, dtype=np.int64)
    for i in range(DOCUMENTS):
        lengths[1 + i % 127] += 1 + i * 7 % 60
    stop = 7
    torchrun(tmp_path, stop, stop)
    first = counts(tmp_path, stop)
    assert first[:, 1:].sum(axis=1).min() > 0  # both ranks had documents
    steps = steps_of_the_run(tmp_path)  # one more would begin the next pass
    assert stop < steps
    torchrun(tmp_path, steps, 1000, tmp_path / "run" / f"checkpoint-{stop}")
    second = counts(tmp_path, steps)
    np.testing.assert_array_equal((first + second).sum(axis=0)[1:], lengths[1:])


def test_a_step_without_any_loss_token_has_the_loss_0(tmp_path: Path) -> None:
    from examples.hf_trainer import PackedTrainer, make_trainer, write_corpus

    losses = []

    class RecordingTrainer(PackedTrainer):
        def training_step(self, *arguments: Any) -> Any:
            losses.append(float(super().training_step(*arguments)))
            return torch.tensor(losses[-1])

    write_corpus(tmp_path / "corpus", 1)
    lines = '{"tokens": [5]}\n' * 640  # documents of one token: none has a token to predict
    (tmp_path / "corpus" / "documents.jsonl").write_text(lines)
    corpus = sources.JSONL(str(tmp_path / "corpus" / "documents.jsonl"), tokens="tokens")
    make_trainer(
        tmp_path / "run", corpus, max_steps=2, save_steps=100, kind=RecordingTrainer
    ).train()
    assert losses == [0.0] * 4


def test_it_resumes_from_the_last_checkpoint_and_reports_a_missing_one(tmp_path: Path) -> None:
    from examples.hf_trainer import make_trainer, write_corpus

    corpus = write_corpus(tmp_path / "corpus", 100)
    first = make_trainer(tmp_path / "run", corpus, max_steps=2, save_steps=1)
    first.train()
    second = make_trainer(tmp_path / "run", corpus, max_steps=3, save_steps=100)
    second.train(resume_from_checkpoint=True)
    assert second.state.global_step == 3
    assert second.loader.metrics().batches == 2  # of the third step
    for file in (tmp_path / "run" / "checkpoint-2").glob("loader-*"):
        file.unlink()
    with pytest.raises(StateError, match="loader-0-of"):
        second.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    with pytest.raises(ConfigError):
        TrainerMixin()


@pytest.mark.parametrize("passes", [1, pytest.param(3, marks=pytest.mark.slow), None])
def test_the_epoch_counts_passes_over_the_corpus_and_goes_on_after_a_resume(
    passes: int | None, tmp_path: Path
) -> None:
    from examples.hf_trainer import PackedTrainer, make_trainer, write_corpus

    class Passes(PackedTrainer):
        def __init__(self, *arguments: Any, loader: PackedLoader, **options: Any) -> None:
            config = loader.dataset._config
            dataset = PackedDataset(
                config.source, seq_len=64, batch_size=2, lanes=4, epochs=passes,
                token_rules=TokenRules(pad_id=0, eos_id=0),
            )  # fmt: skip
            super().__init__(*arguments, loader=PackedLoader(dataset), **options)

    corpus = write_corpus(tmp_path / "corpus", 200)
    batches = sum(1 for _ in PackedLoader(PackedDataset(
        corpus, seq_len=64, batch_size=2, lanes=4, epochs=passes or 1,
        token_rules=TokenRules(pad_id=0, eos_id=0),
    )))  # fmt: skip
    steps = batches // (passes or 1) // 2  # of two batches, in a pass
    first = make_trainer(
        tmp_path / "run", corpus, max_steps=steps, save_steps=steps // 3, kind=Passes
    )
    first.train()
    assert first.state.epoch == pytest.approx(1, abs=0.05)
    checkpoint = str(tmp_path / "run" / f"checkpoint-{steps // 3}")
    saved = json.loads(Path(checkpoint, "trainer_state.json").read_text())
    assert saved["epoch"] == pytest.approx(1 / 3, abs=0.05)
    again = make_trainer(
        tmp_path / "run", corpus, max_steps=2 * steps, save_steps=1000, kind=Passes
    )
    again.train(resume_from_checkpoint=checkpoint)
    assert again.state.epoch == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("size", ["cp_size", "sp_size"])
def test_accelerates_context_parallelism_is_refused(size: str, tmp_path: Path) -> None:
    parallelism = pytest.importorskip("accelerate.parallelism_config")
    from transformers import TrainingArguments

    from examples.hf_trainer import PackedTrainer

    config = parallelism.ParallelismConfig(**{size: 2})
    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=1, use_cpu=True, report_to=[],
        parallelism_config=config,
    )  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        PackedTrainer(args=arguments, model=torch.nn.Linear(1, 1), loader=PackedLoader(dataset()))
    assert caught.value.setting == "parallelism_config"


@pytest.mark.parametrize("attention", ["document", "row"])
def test_whole_rows_equal_accelerates_context_parallelism(attention: Any) -> None:
    """Its hooks drop the mask and attend causally over each row. Parts of rows need GPUs."""
    hooks = pytest.importorskip("accelerate.big_modeling")
    parallelism = pytest.importorskip("accelerate.parallelism_config")
    config = parallelism.ParallelismConfig(cp_size=2)
    loader = PackedLoader(dataset(attention=attention))
    if attention == "document":
        with pytest.raises(ConfigError) as caught:
            check_parallelism(config, loader)
        assert caught.value.setting == "parallelism_config"
    else:
        check_parallelism(config, loader)
    model, batches = tiny_model("llama", "sdpa").double(), list(loader)
    expected = [float(model(**batch.hf(model=model)).loss.detach()) for batch in batches]
    hooks._attach_context_parallel_hooks(model)
    found = [float(model(**whole_rows(model, batch)).loss.detach()) for batch in batches]
    off = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    assert off < 1e-6 if attention == "row" else off > 1e-3


def test_ranks_of_one_model_with_batches_of_their_own_are_refused(tmp_path: Path) -> None:
    parallelism = pytest.importorskip("accelerate.parallelism_config")
    from transformers import TrainingArguments

    from examples.hf_trainer import PackedTrainer

    arguments = TrainingArguments(
        output_dir=str(tmp_path), max_steps=1, use_cpu=True, report_to=[],
        parallelism_config=parallelism.ParallelismConfig(tp_size=2),
    )  # fmt: skip
    ranks = PackedDataset([[1, 2, 3]] * 99, seq_len=8, topology=Topology(0, 2))
    with pytest.raises(ConfigError) as caught:
        PackedTrainer(args=arguments, model=torch.nn.Linear(1, 1), loader=PackedLoader(ranks))
    assert caught.value.setting == "topology"


def held_out() -> PackedDataset:
    documents = [[1 + i % 70] * (3 + i * i % 61) for i in range(99)] + [[9]] * 1500
    return PackedDataset.evaluation(documents, seq_len=64, batch_size=2)


def loss_over_tokens(trainer: Any, made: PackedDataset) -> float:
    total, tokens = 0.0, 0
    for batch in PackedLoader(made):
        with torch.no_grad():
            logits = trainer.model.eval()(**batch.hf(model=trainer.model)).logits
        total += float(batch.loss(logits)) * batch.num_loss_tokens
        tokens += batch.num_loss_tokens
    return total / tokens


def test_evaluations_are_means_over_all_loss_tokens(tmp_path: Path) -> None:
    from examples.hf_trainer import make_trainer, write_corpus

    counts = [batch.num_loss_tokens for batch in PackedLoader(held_out())]
    assert 0 in counts  # its loss would be 0 / 0
    assert len(set(counts)) > 2  # the mean of means is another number
    trainer = make_trainer(
        tmp_path, write_corpus(tmp_path, 100), max_steps=2, save_steps=9, eval_dataset=held_out()
    )
    trainer.args.eval_strategy, trainer.args.eval_steps = "steps", 1
    trainer.train()
    logged = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    expected = loss_over_tokens(trainer, held_out())
    assert len(logged) == 2
    assert logged[1] == pytest.approx(expected, rel=1e-5)
    loader = PackedLoader(held_out())
    for given in (None, held_out(), loader, loader):
        assert trainer.evaluate(given)["eval_loss"] == pytest.approx(expected, rel=1e-5)
    several = trainer.evaluate({"one": held_out(), "two": held_out()})
    assert several["eval_one_loss"] == several["eval_two_loss"] == pytest.approx(expected, rel=1e-5)
    predicted = trainer.predict(held_out())
    assert predicted.metrics["test_loss"] == pytest.approx(expected, rel=1e-5)
    assert predicted.label_ids.size == 128 * len(counts)


def test_a_model_of_the_trainer_that_mixes_documents_is_refused(tmp_path: Path) -> None:
    from transformers import BloomConfig, BloomForCausalLM

    from examples.hf_trainer import PackedTrainer, make_trainer, write_corpus

    made = make_trainer(tmp_path, write_corpus(tmp_path, 100), max_steps=1, save_steps=9)
    config = BloomConfig(vocab_size=512, hidden_size=16, n_layer=1, n_head=2)
    loader = PackedLoader(dataset())
    trainer = PackedTrainer(model=BloomForCausalLM(config), args=made.args, loader=loader)
    with pytest.raises(ConfigError):
        trainer.train()


def test_a_trainer_resumes_with_changed_settings_where_they_are_allowed(tmp_path: Path) -> None:
    from examples.hf_trainer import PackedTrainer, make_trainer, write_corpus

    corpus = write_corpus(tmp_path / "corpus", 100)
    first = make_trainer(tmp_path / "run", corpus, max_steps=2, save_steps=2)
    first.train()
    config = first.loader.dataset.plan.config
    other = PackedDataset(
        corpus, packer=config.packer, batch_size=2 * config.batch_tokens // 64, seed=config.seed,
        lanes=config.lanes, epochs=config.epochs, token_rules=TokenRules(pad_id=0, eos_id=0),
    )  # fmt: skip
    first.args.max_steps = 3
    for allow in ((), ("batch_size",)):
        loader = PackedLoader(other)
        again = PackedTrainer(model=first.model, args=first.args, loader=loader, allow=allow)
        if allow:
            again.train(resume_from_checkpoint=True)
            assert again.state.global_step == 3
        else:
            with pytest.raises(StateError, match="batch_tokens"):
                again.train(resume_from_checkpoint=True)


def test_a_checkpoint_of_two_ranks_goes_on_on_one_and_not_beside_another_runs(
    tmp_path: Path,
) -> None:
    whole = PackedDataset([[7] * 9] * 99, seq_len=16, lanes=1, topology=Topology())
    states = []
    for rank in range(2):
        mine = PackedDataset([[7] * 9] * 99, seq_len=16, lanes=1, topology=Topology(rank, 2))
        loader = PackedLoader(mine)
        next(iter(loader))
        states.append(loader.state_dict())
        (tmp_path / f"loader-{rank}-of-2.json").write_text(json.dumps(states[-1]))
    assert saved_state(tmp_path, Topology(1, 2)) == states[1]
    assert saved_state(tmp_path, whole.topology) == merge_states(states)
    (tmp_path / "loader-0-of-1.json").write_text(json.dumps(states[0]))
    with pytest.raises(StateError):
        saved_state(tmp_path, whole.topology)


def steps_of_the_run(folder: Path) -> int:
    """Optimiser steps of one pass, of two batches of each rank."""
    from examples.hf_trainer import write_corpus
    from tests.support.trainer_run import DOCUMENTS

    made = PackedDataset(
        write_corpus(folder / "corpus", DOCUMENTS), seq_len=64, batch_size=2, lanes=4,
        token_rules=TokenRules(pad_id=0, eos_id=0), topology=Topology(),
    )  # fmt: skip
    last = max(batch.step * 4 + batch.lane for batch in PackedLoader(made) if batch.num_documents)
    batches = last // 2 + 1
    assert batches % 2 == 0, "the last step would take a batch of the next pass"
    return batches // 2


@pytest.mark.parametrize("workers", [0, 1])
def test_datasets_that_split_ours_are_refused(workers: int) -> None:
    from accelerate.data_loader import DataLoaderDispatcher, IterableDatasetShard
    from transformers.trainer_pt_utils import IterableDatasetShard as TrainerShard

    for shard in (IterableDatasetShard, TrainerShard):
        split = shard(dataset(), batch_size=1, num_processes=2, process_index=0)
        loader: Any = DataLoader(split, batch_size=None, num_workers=workers)
        with pytest.raises(ConfigError):
            next(iter(loader))
    dispatcher = DataLoaderDispatcher(dataset(), batch_size=None, num_workers=workers)
    with pytest.raises(ConfigError):
        next(iter(dispatcher))


def test_accelerate_leaves_our_loader_alone() -> None:
    from accelerate import Accelerator

    loader = PackedLoader(dataset())
    assert Accelerator(cpu=True).prepare(loader) is loader
