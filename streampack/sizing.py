"""How many lanes a run has, where the caller does not say."""

from __future__ import annotations

from streampack.errors import ConfigError
from streampack.sources.base import Source
from streampack.topology import Topology

__all__ = ["choose_lanes"]

LANES_PER_RANK = 12  # so that 1, 2, 3, 4, 6 and 12 times as many ranks can go on with the run
WINDOWS_PER_LANE = 8  # a lane that sees fewer packs its end badly, as a share of everything
BYTES_PER_TOKEN = 8  # of a window: ids of four bytes, twice, since a round copies what stays


def choose_lanes(
    source: Source, topology: Topology, workers: int, *, window_tokens: int, memory_limit: int
) -> int:
    """Lanes for a run: 12 per rank, or fewer where corpus or memory do not allow so many.

    Args:
        source: prepared.
        topology: of the first start; the lanes are a multiple of its ranks.
        workers: worker processes per rank; each gets at least one lane where the source allows,
            and all get equally many where that costs no more than half of the lanes.
        window_tokens: of one lane.
        memory_limit: bytes for the windows of one rank.

    Raises:
        ConfigError: the source cannot be split into as many lanes as there are ranks.
    """
    ranks = topology.world_size
    most = source.max_lanes()
    if most is not None and most < ranks:
        raise ConfigError(
            f"{type(source).__name__} can be split into {most} lanes, and there are {ranks} ranks.",
            "A rank would have nothing to read.",
            f"Use {most} ranks or fewer, or rewrite the corpus with more shards or in a splittable "
            "format with `streampack convert`.",
        )
    per_rank = LANES_PER_RANK
    tokens = source.estimate_tokens()
    if tokens is not None:
        per_rank = min(per_rank, tokens // (WINDOWS_PER_LANE * window_tokens * ranks))
    per_rank = min(per_rank, memory_limit // (BYTES_PER_TOKEN * window_tokens))
    per_rank = max(per_rank, workers, 1)
    if most is not None:
        per_rank = min(per_rank, most // ranks)
    if workers > 1 and per_rank > workers:
        per_rank -= per_rank % workers
    return per_rank * ranks
