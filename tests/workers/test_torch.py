"""Workers are to users' code as those of torch's DataLoader, which goes on working beside them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from streampack import Hook, PackedLoader
from streampack.sources.items import outside_worker
from tests.support.runs import LENGTHS, identity, make_dataset, tokens_of

WORKERS = 3


def drawn() -> list[Any]:
    info = get_worker_info()
    assert info is not None
    draws = [random.random(), torch.rand(()).item(), np.random.rand()]  # noqa: NPY002
    return [info.id, info.num_workers, info.seed, torch.get_num_threads(), *draws]


class Drawing(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield drawn()


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_a_worker_has_the_index_seeds_and_threads_of_a_worker_of_torch(tmp_path: Path) -> None:
    def note(documents: Any, seeds: Any) -> Any:
        info = get_worker_info()
        assert info is not None
        path = tmp_path / str(info.id)
        if not path.exists():
            path.write_text(json.dumps(drawn()))
        return documents

    generator = torch.Generator()
    of_torch = DataLoader(Drawing(), batch_size=None, num_workers=WORKERS, generator=generator)
    loader = PackedLoader(make_dataset(map=Hook("note", note)), num_workers=WORKERS)
    before = torch.random.get_rng_state()
    assert tokens_of(loader) == list(range(sum(LENGTHS)))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert get_worker_info() is None
    found = [json.loads((tmp_path / str(worker)).read_text()) for worker in range(WORKERS)]
    assert found == sorted(of_torch)


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_a_plain_dataloader_goes_on_beside_a_loader() -> None:
    expected = [identity(batch) for batch in PackedLoader(make_dataset())]
    plain = iter(DataLoader(make_dataset(), batch_size=None, num_workers=2))
    loader = PackedLoader(make_dataset(), num_workers=2)
    seen, found = [], []
    for batch in loader:
        found.append(identity(batch))
        seen.append(next(plain))
    seen += plain
    assert found == expected
    assert tokens_of(seen) == list(range(sum(LENGTHS)))


def test_the_worker_is_hidden_until_the_last_thread_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.utils.data._utils import worker as of_torch

    info = object()
    monkeypatch.setattr(of_torch, "_worker_info", info)
    first, second = outside_worker(), outside_worker()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert get_worker_info() is None
    second.__exit__(None, None, None)
    assert get_worker_info() is info
