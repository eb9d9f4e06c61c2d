"""Lightning Fabric takes a `PackedLoader` as a DataLoader, and saves and loads its state."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from streampack import PackedBatch, PackedLoader
from tests.support.runs import identity, make_dataset

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def of_fabric(*loaders: PackedLoader) -> Any:
    lightning = pytest.importorskip("lightning")
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    return fabric, *(fabric.setup_dataloaders(loader) for loader in loaders)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_checkpoint_of_fabric_goes_on_after_the_last_batch(workers: int, tmp_path: Path) -> None:
    expected = [identity(batch) for batch in PackedLoader(make_dataset())]
    fabric, first, second = of_fabric(
        PackedLoader(make_dataset(), num_workers=workers), PackedLoader(make_dataset())
    )
    found = [identity(batch) for batch in islice(first, 7)]
    fabric.save(tmp_path / "checkpoint", {"train_dataloader": first, "step": 7})
    state = {"train_dataloader": second, "step": 0}
    fabric.load(tmp_path / "checkpoint", state)
    assert state["step"] == 7
    assert found + [identity(batch) for batch in second] == expected


def test_fabric_gives_the_result_of_the_transform() -> None:
    expected = [batch.input_ids.tolist() for batch in PackedLoader(make_dataset())]
    loader = PackedLoader(make_dataset(), transform=lambda batch: batch.input_ids)
    _, fabrics = of_fabric(loader)
    assert [ids.tolist() for ids in fabrics] == expected


def test_a_loader_that_libraries_make_anew_is_refused() -> None:
    pytest.importorskip("lightning")
    from lightning.fabric.utilities.data import _update_dataloader
    from torch.utils.data import SequentialSampler

    loader = PackedLoader(make_dataset(), transform=PackedBatch.hf)
    with pytest.raises(Exception, match="sampler"):
        _update_dataloader(loader, SequentialSampler([1, 2]))
