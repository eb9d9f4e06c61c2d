"""Ranks that share batches as processes over gloo: killed, and gone on with as more of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from streampack import Buckets, PackedLoader, Topology, merge_states
from streampack.packing import Balance
from tests.support.forked import Host
from tests.support.runs import filled, identity, make_dataset

JOB = """
import json, os, signal, sys
import torch.distributed as dist
from streampack import PackedLoader
from tests.context_parallel.test_cp_ranks import shared
from tests.support.runs import identity

folder, until = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
loader = PackedLoader(shared(), num_workers=rank % 2)
if os.path.exists(f"{folder}/state"):
    loader.load_state_dict(json.load(open(f"{folder}/state")))
found = []
for batch in loader:
    found.append([identity(batch), batch.cp_size, batch.cp_rank, batch.num_items_in_batch])
    if len(found) == until:
        break
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump([found, loader.state_dict()], file)
dist.barrier()
if len(found) == until:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def shared(topology: Topology | None = None) -> Any:
    packer = Buckets(seq_lens=(16, 32), cp=(1, 2), shares=(0.5, 0.5), choice=Balance("attention"))
    return make_dataset(packer, lanes=12, topology=topology)


def test_killed_and_gone_on_with_as_more_processes_every_batch_comes_once(
    host: Host, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    found: list[Any] = []
    for ranks, until in ((2, 11), (4, 0)):
        statuses, output = host.run_job(tmp_path / "job.py", tmp_path, until, processes=ranks)
        assert statuses == [-9 if until else 0] * ranks, output
        results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(ranks)]
        for step in zip(*(batches for batches, _ in results), strict=True):
            (degree,) = {batch[1] for batch in step}
            assert [batch[2] for batch in step] == [rank % degree for rank in range(ranks)]
            assert len({batch[3] for batch in step}) == 1
            heads = [batch[0] for batch in step[::degree]]
            assert [batch[0] for batch in step] == [one for one in heads for _ in range(degree)]
            found += sorted(heads, key=lambda one: one[:2][::-1])
        state = merge_states([saved for _, saved in results])
        (tmp_path / "state").write_text(json.dumps(state))
    whole = json.loads(json.dumps([identity(b) for b in PackedLoader(shared(Topology()))]))
    assert filled(found) == whole
