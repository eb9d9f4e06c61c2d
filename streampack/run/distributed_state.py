"""DistributedState: a run's state in a torch.distributed.checkpoint (DCP), for any ranks.

Steps of `state_dict`:
  1. The data-parallel ranks show each other their states (`all_gather_object`).
  2. Every rank merges them; of ranks that share a data-parallel rank, one counts.
  3. DCP gets one entry, the same on every rank, which it stores once.
So the keys do not depend on the number of ranks or lanes, and a load asks for what is there.

Cost: the states of all lanes, some kilobytes each, pass through every rank: 4 MB for 1,000 lanes.
With tens of thousands, write one file per rank and use `merge_states`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

import torch.distributed as dist

from streampack.errors import StateError
from streampack.job.topology import Topology
from streampack.run.state import merge_states

_KEY = "streampack"


class DistributedState:
    """What DCP's ``save`` and ``load`` call (a ``Stateful``), in step on all ranks.

    ``dcp.save({"data": DistributedState(loader)}, checkpoint_id=path)`` on one number of ranks,
    ``dcp.load({"data": DistributedState(loader)}, checkpoint_id=path)`` on another.

    Args:
        loader: the `PackedLoader` of this rank.
        group: process group to gather through; None is the default one. With NCCL, pass a gloo
            group, for states are not on a device.
    """

    def __init__(self, loader: Any, group: dist.ProcessGroup | None = None) -> None:
        self._loader = loader
        self._group = group

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks, the same on each of them. A collective."""
        return self.of_all(self._loader.state_dict())

    def of_all(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The same, of another state of this rank's loader."""
        topology: Topology = self._loader.dataset.topology
        own = (topology.rank, state)
        if dist.is_available() and dist.is_initialized():
            gathered: list[Any] = [None] * dist.get_world_size(self._group)
            dist.all_gather_object(gathered, own, group=self._group)
        else:
            gathered = [own]
        by_rank = dict(reversed(gathered))
        return {_KEY: json.dumps(merge_states([by_rank[rank] for rank in sorted(by_rank)]))}

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Go on after what any number of ranks saved; `allow` as for `PackedLoader`.

        Raises:
            StateError: it is damaged, or the state is of another run.
        """
        text = state.get(_KEY)
        try:
            saved = json.loads(text if isinstance(text, str) else "")
        except (ValueError, RecursionError) as error:
            raise StateError(
                f"The checkpoint's entry for the data is {text!r:.80}.",
                "It is not what streampack saved.",
                "Load a checkpoint that was saved with DistributedState under the same name.",
            ) from error
        self._loader.load_state_dict(saved, allow=allow)
