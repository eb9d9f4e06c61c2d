"""DistributedState: store a run's state in a torch.distributed.checkpoint (DCP).

Steps of `state_dict`:
  1. The data-parallel ranks show each other their states (`all_gather_object`).
  2. Every rank merges them; processes that share a data-parallel rank count once.
  3. DCP gets one entry, the same on every rank, which it stores once.

So the keys do not depend on the number of ranks or lanes, and a load requests existing keys.

Cost: the states of all lanes, some kilobytes each, pass through every rank: 4 MB for 1,000 lanes.
With tens of thousands, write one file per rank and use `merge_states`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import torch.distributed as dist

from streampack.changes.inside import ENTRY, state_inside
from streampack.distributed.merging import merge_states
from streampack.errors import StateError
from streampack.job.topology import Topology


class DistributedState:
    """A ``Stateful`` for DCP's ``save`` and ``load``, called in step on all ranks.

    ``dcp.save({"data": DistributedState(loader)}, checkpoint_id=path)`` on one number of ranks,
    ``dcp.load({"data": DistributedState(loader)}, checkpoint_id=path)`` on another.

    Args:
        loader: the `PackedLoader` of this rank.
        group: process group to gather through; None is the default one. With NCCL, pass a gloo
            group, since states are not on a device.
        batch: ``after=`` or ``before=`` with a batch, as for `PackedLoader.state_dict`.
    """

    def __init__(self, loader: Any, group: dist.ProcessGroup | None = None, **batch: Any) -> None:
        self._loader = loader
        self._group = group
        self._batch = batch

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all ranks, the same on each. This is a collective."""
        return self.of_all(self._loader.state_dict(**self._batch))

    def of_all(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the merged state of all ranks, given another state of this rank's loader."""
        topology: Topology = self._loader.dataset.topology
        numbered = (topology.rank, state)
        if dist.is_available() and dist.is_initialized():
            gathered: list[Any] = [None] * dist.get_world_size(self._group)
            dist.all_gather_object(gathered, numbered, group=self._group)
        else:
            gathered = [numbered]
        by_rank = dict(reversed(gathered))
        return {ENTRY: json.dumps(merge_states([by_rank[rank] for rank in sorted(by_rank)]))}

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Resume from a state saved by any number of ranks; `allow` as for `PackedLoader`.

        Raises:
            StateError: the state is damaged, or belongs to another run.
        """
        text = state.get(ENTRY)
        try:
            saved = json.loads(text if isinstance(text, str) else "")
        except (ValueError, RecursionError) as error:
            remedy = "Load a checkpoint that was saved with DistributedState under the same name."
            if (inside := state_inside(state)) is not None:
                other = " to loader.load_state_dict" if "load_state_dict" not in inside else ""
                remedy = f"Pass {inside}{other}."
            raise StateError(f"The entry must be JSON, got {text!r:.80}.", remedy) from error
        self._loader.load_state_dict(saved, allow=allow)
