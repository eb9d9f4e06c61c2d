"""Data that each rank has split itself: an error on all ranks, which names the cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import Host

pytest.importorskip("datasets")

JOB = """
import json, sys
from pathlib import Path
import torch.distributed as dist
from streampack import PackedDataset, PackedLoader, Topology
from streampack.errors import RankError
from tests.support.presplit import IDS, KINDS, LEGITIMATE, dataset_of, jsonl

dist.init_process_group("gloo")
process, ranks, folder = dist.get_rank(), int(sys.argv[1]), Path("files")
topology = Topology(process // (dist.get_world_size() // ranks), ranks)
part, whole, found = slice(process % 2, None, 2), slice(None), {}

def tokens(dataset, workers=0):
    try:
        loader = PackedLoader(dataset, num_workers=workers, rank_timeout_s=60)
        return sum(batch.num_tokens for batch in loader)
    except RankError as error:
        return [error.setting, str(error)]

def both(make, *, workers=0, evaluate=False, **options):
    of = PackedDataset.evaluation if evaluate else PackedDataset
    alone = tokens(dataset_of(make(), topology=Topology(), **options))
    return [alone, tokens(dataset_of(make(), topology=topology, **options), workers)]

if ranks == dist.get_world_size():
    for name, make in list(KINDS.items())[:: int(sys.argv[2])]:
        found[name] = [tokens(dataset_of(make(part, folder))), *both(lambda: make(whole, folder))]
    for name, make in LEGITIMATE.items():
        found[name] = [None, *both(lambda: make(folder))]
lists, records = KINDS["lists"], KINDS["texts"]
for name, options in {"workers": {"workers": 2, "lanes": 4}, "replicas": {}}.items():
    own = dict(options)
    workers = own.pop("workers", 0)
    split = tokens(dataset_of(lists(part, folder), topology=topology, **own), workers)
    found[name] = [split, *both(lambda: lists(whole, folder), **options)]
evaluation = PackedDataset.evaluation(lists(part, folder), seq_len=16, topology=topology)
evaluated = PackedDataset.evaluation(lists(whole, folder), seq_len=16, topology=topology)
alone = PackedDataset.evaluation(lists(whole, folder), seq_len=16, topology=Topology())
found["evaluation"] = [tokens(evaluation), tokens(alone), tokens(evaluated)]
Path(f"{process}.json").write_text(json.dumps(found))
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.presplit import jsonl

    folder = tmp_path_factory.mktemp("presplit")
    (folder / "files").mkdir()
    for number in range(8):
        jsonl(folder / f"files/{number}.jsonl", slice(number * 15, number * 15 + 15))
    (folder / "job.py").write_text(JOB)
    return folder


def results(
    host: Host, folder: Path, processes: int, ranks: int, every: int = 1
) -> list[dict[str, Any]]:
    """Results of each process, for one in so many kinds of data."""
    statuses, output = host.run_job(folder / "job.py", ranks, every, processes=processes)
    assert statuses == [0] * processes, output
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(processes)]


def assert_found(found: list[dict[str, Any]], replicas: int) -> None:
    wrong = {}
    for name in found[0]:
        splits, alone, whole = ([each[name][i] for each in found] for i in range(3))
        refused = splits[0] is None or all(
            isinstance(split, list)
            and split[0] == "source"
            and "different documents" in split[1]
            and "whole data set" in split[1]
            for split in splits
        )
        if not refused or not all(isinstance(each, int) for each in whole):
            wrong[name] = splits, whole
        elif "augmented" not in name and sum(whole) != replicas * alone[0]:
            wrong[name] = "lost", whole, alone
    assert not wrong, json.dumps(wrong, indent=1)


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_every_kind_of_split_data_is_refused_on_all_ranks_and_whole_data_lose_nothing(
    host: Host, folder: Path, every: int
) -> None:
    assert_found(results(host, folder, 2, 2, every), replicas=1)


@pytest.mark.slow
def test_processes_that_share_a_rank_must_hold_the_same_documents(host: Host, folder: Path) -> None:
    assert_found(results(host, folder, 4, 2), replicas=2)
