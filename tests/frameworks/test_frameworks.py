"""torchtitan, Lightning and TRL as installed: `scripts/test_frameworks.sh` has an environment."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from streampack import PackedDataset, PackedLoader, TokenRules, Topology
from streampack.errors import ConfigError
from streampack.trainers import TrainerMixin

SUPPORT = Path(__file__).parents[1] / "support"


def documents() -> list[list[int]]:
    return [[1 + i % 63] * (1 + i * 7 % 60) for i in range(300)]


def test_lightning_resumes_behind_the_last_step_and_repeats_no_token() -> None:
    pytest.importorskip("lightning.pytorch", reason="Lightning, or a torchvision it finds, fails")
    from examples.lightning_datamodule import Bigrams, make_data, make_trainer

    whole = Bigrams()
    make_trainer(12).fit(whole, datamodule=make_data())
    parts, data = Bigrams(), make_data()
    make_trainer(5).fit(parts, datamodule=data)
    state = json.loads(json.dumps(data.state_dict()))
    again = make_data()
    again.load_state_dict(state)
    make_trainer(7).fit(parts, datamodule=again)
    assert torch.equal(whole.seen, parts.seen)
    assert whole.seen[1:].sum() > 0


def test_lightning_is_refused_a_loader_that_it_would_save_too_late() -> None:
    pytest.importorskip("lightning.pytorch", reason="Lightning, or a torchvision it finds, fails")
    from examples.lightning_datamodule import Bigrams, PackedDataModule, make_data, make_trainer

    with pytest.raises(ConfigError):
        make_trainer(2).fit(Bigrams(), train_dataloaders=make_data().loader)
    with pytest.raises(ConfigError):
        PackedDataModule(make_data().loader.dataset)


@pytest.mark.slow
def test_lightning_on_two_ranks_goes_on_on_one_and_loses_no_token(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch", reason="Lightning, or a torchvision it finds, fails")
    lines = [json.dumps({"tokens": document}) for document in documents()]
    (tmp_path / "documents.jsonl").write_text("\n".join(lines) + "\n")
    lightning_run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")(
        tmp_path, 10
    )
    first, second = (json.loads((tmp_path / f"tokens-{rank}.json").read_text()) for rank in (0, 1))
    assert min(first, second) > 0
    lightning_run()(tmp_path, 1000, tmp_path / "saved.ckpt")
    with_first = json.loads((tmp_path / "tokens-0.json").read_text())  # counted in the checkpoint
    assert with_first + second == sum(map(len, documents()))


def lightning_run(*launcher: str) -> Any:
    def run(*arguments: object) -> None:
        paths = [str(SUPPORT / "torchvision_on_cpu"), str(SUPPORT.parents[1])]
        done = subprocess.run(
            [sys.executable, *launcher, str(SUPPORT / "lightning_run.py"), *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]

    return run


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ({"seq_len": 64, "local_batch_size": 2, "snapshot_every_n_steps": None}, (2, 64)),
        ({"max_context_length": 64, "num_tokens_per_batch": 128}, (128,)),
    ],
)
def test_torchtitan_builds_our_loader_from_its_config(shape: Any, expected: Any) -> None:
    pytest.importorskip("torchtitan", reason="not in the development environment")
    from examples.torchtitan_loader import PackedDataLoader

    assert not inspect.isabstract(PackedDataLoader)
    config = PackedDataLoader.Config(source=documents(), options={"lanes": 1})
    job = {"dp_world_size": 1, "dp_rank": 0, "tokenizer": None, **shape}
    loader = config.build(**job)
    batches = iter(loader)
    inputs, labels = next(batches)
    assert set(inputs) == {"input", "positions"}
    assert labels.shape == inputs["input"].shape == expected
    state = loader.state_dict()
    following = next(batches)[1]
    again = config.build(**job)
    again.load_state_dict(state)
    assert torch.equal(next(iter(again))[1], following)


def test_trls_sft_trainer_trains_on_packed_batches(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl", reason="not in the development environment")
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from tests.support.corpora import byte_tokenizer

    seen: list[Any] = []
    loader = PackedLoader(
        PackedDataset(
            documents(), seq_len=64, lanes=1, topology=Topology(), token_rules=TokenRules(pad_id=0)
        ),
    )

    class PackedSFTTrainer(TrainerMixin, trl.SFTTrainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *arguments: Any) -> Any:
            seen.append(inputs["input_ids"].clone())
            return super().training_step(model, inputs, *arguments)

    config = LlamaConfig(
        vocab_size=257, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2,
    )  # fmt: skip
    trainer = PackedSFTTrainer(
        loader=loader,
        model=LlamaForCausalLM(config),
        args=trl.SFTConfig(
            output_dir=str(tmp_path), max_steps=4, use_cpu=True, report_to=[], bf16=False,
            dataset_kwargs={"skip_prepare_dataset": True}, save_strategy="no",
        ),
        train_dataset=Dataset.from_dict({"input_ids": [[1]]}),  # wanted, and never read
        eval_dataset=PackedDataset.evaluation(documents(), seq_len=64),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=byte_tokenizer(), eos_token="<|endoftext|>", pad_token="<|endoftext|>"
        ),
    )  # fmt: skip
    trainer.train()
    assert len(seen) == 4
    expected = [
        batch.input_ids.view(1, -1)
        for batch, _ in zip(PackedLoader(loader.dataset), range(4), strict=False)
    ]
    for ours, theirs in zip(seen, expected, strict=True):
        assert torch.equal(ours, theirs)
    total, tokens = 0.0, 0
    for batch in PackedLoader(PackedDataset.evaluation(documents(), seq_len=64)):
        with torch.no_grad():
            loss = batch.loss(trainer.model.eval()(**batch.hf()).logits)
        total, tokens = total + float(loss) * batch.num_loss_tokens, tokens + batch.num_loss_tokens
    assert trainer.evaluate()["eval_loss"] == pytest.approx(total / tokens, rel=1e-5)
