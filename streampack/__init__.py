"""streampack: remote shards in, packed GPU-ready batches out, every token exactly once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streampack import ordering, packing, sources
    from streampack.batch import PackedBatch
    from streampack.dataset import PackedDataset
    from streampack.documents import Documents, Texts
    from streampack.errors import StreampackError
    from streampack.hooks import Hook
    from streampack.loader import PackedLoader
    from streampack.loss import token_mean_loss
    from streampack.ordering import SimilarityOrder
    from streampack.packing import (
        BestFitCrop,
        BestFitDecreasing,
        Buckets,
        Concat,
        Curriculum,
        FirstFitDecreasing,
        Pad,
        Seamless,
    )
    from streampack.states.distributed_state import DistributedState
    from streampack.states.state import merge_states
    from streampack.together import end_together
    from streampack.tokenization import Tokenizer
    from streampack.topology import Topology
    from streampack.torchdata_state import extract_state
    from streampack.tracker import StateTracker
    from streampack.window.config import WindowConfig

__all__ = [
    "BestFitCrop",
    "BestFitDecreasing",
    "Buckets",
    "Concat",
    "Curriculum",
    "DistributedState",
    "Documents",
    "FirstFitDecreasing",
    "Hook",
    "PackedBatch",
    "PackedDataset",
    "PackedLoader",
    "Pad",
    "Seamless",
    "SimilarityOrder",
    "StateTracker",
    "StreampackError",
    "Texts",
    "Tokenizer",
    "Topology",
    "WindowConfig",
    "end_together",
    "extract_state",
    "merge_states",
    "ordering",
    "packing",
    "sources",
    "token_mean_loss",
]

__version__ = "0.1.0"

# Names are imported on first use, so that `streampack.packing` loads no torch and worker
# processes load only what a lane needs.
_HOME = {
    "BestFitCrop": "packing",
    "BestFitDecreasing": "packing",
    "Buckets": "packing",
    "Concat": "packing",
    "Curriculum": "packing",
    "DistributedState": "states.distributed_state",
    "Documents": "documents",
    "FirstFitDecreasing": "packing",
    "Hook": "hooks",
    "PackedBatch": "batch",
    "PackedDataset": "dataset",
    "PackedLoader": "loader",
    "Pad": "packing",
    "Seamless": "packing",
    "SimilarityOrder": "ordering",
    "StateTracker": "tracker",
    "StreampackError": "errors",
    "Texts": "documents",
    "Tokenizer": "tokenization",
    "end_together": "together",
    "token_mean_loss": "loss",
    "Topology": "topology",
    "WindowConfig": "window",
    "extract_state": "torchdata_state",
    "merge_states": "states.state",
}


def __getattr__(name: str) -> Any:
    if name in ("ordering", "packing", "sources"):
        return import_module(f"streampack.{name}")
    if name in _HOME:
        return getattr(import_module(f"streampack.{_HOME[name]}"), name)
    raise AttributeError(f"module 'streampack' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
