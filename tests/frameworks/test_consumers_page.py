"""The snippets of docs/consumers.md, with Fabric, the Trainer and Lightning themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from streampack import PackedBatch, PackedDataset, PackedLoader

PAGE = Path(__file__).parents[2] / "docs" / "consumers.md"
DOCUMENTS = [[2 + n % 30] * (1 + n % 15) for n in range(60)]
# The last is run by tests/job/test_sharding_page.py.
ISOLATION, FABRIC, TRAINER, LIGHTNING, _ = re.findall(
    r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL
)


def names_of(snippet: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(snippet, PAGE.name, "exec"), names)
    return names


def tiny_llama() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=32,
            hidden_size=8,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=1,
        )
    )


def test_the_check_of_a_model_finds_leaks() -> None:
    assert not names_of(ISOLATION)["found"]


def test_fabric_trains_and_goes_on_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    pretrain = names_of(FABRIC)["pretrain"]
    model = tiny_llama()
    optimizer = torch.optim.AdamW(model.parameters())
    pretrain(model, optimizer, PackedDataset(DOCUMENTS, seq_len=16))
    trained = [weights.clone() for weights in model.parameters()]
    pretrain(model, optimizer, PackedDataset(DOCUMENTS, seq_len=16), "checkpoint.ckpt")
    for weights, before in zip(model.parameters(), trained, strict=True):
        assert torch.equal(weights, before)  # nothing was left to train on


def test_the_trainer_trains_and_evaluates(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    train = names_of(TRAINER)["train"]
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, report_to="none", use_cpu=True
    )
    held_out = PackedDataset.evaluation(DOCUMENTS, seq_len=16)
    loss = train(tiny_llama(), PackedDataset(DOCUMENTS, seq_len=16), held_out, args)
    assert 2 < loss < 5  # about log(32)


def test_lightning_trains_with_the_data_module(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    module = names_of(LIGHTNING)["PackedDataModule"](
        PackedLoader(PackedDataset(DOCUMENTS, seq_len=16, batch_size=2))
    )

    losses: list[torch.Tensor] = []

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny_llama()

        def training_step(self, batch: PackedBatch) -> torch.Tensor:
            losses.append(batch.loss(self.model(**batch.hf()).logits))
            return losses[-1]

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    trainer = lightning.Trainer(
        max_epochs=1, use_distributed_sampler=False, default_root_dir=tmp_path, logger=False
    )
    trainer.fit(Model(), datamodule=module)
    assert len(losses) == module.loader.metrics().batches > 3
