"""Feed: a rank's batches, made in the loop's process or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from streampack.batch import PackedBatch
from streampack.batch.kinds import kind_of
from streampack.deals.report_channel import ReportChannel
from streampack.deals.report_exchange import ReportExchange
from streampack.lane.config import LaneShare
from streampack.lane.rotation import rotate
from streampack.lane.state import LaneEnd

if TYPE_CHECKING:
    from streampack.run.rank import RankRun

Items: TypeAlias = Iterable[PackedBatch | LaneEnd]


class Feed(Protocol):
    """Makes the batches of a rank.

    Attributes:
        name: name of the file that the processes of the feed share; None without processes.
    """

    @property
    def name(self) -> str | None:  # noqa: D102  # in the docstring of the class
        ...

    def open(
        self, share: LaneShare, sharing: ReportChannel, exchange: ReportExchange, run: RankRun
    ) -> Items:
        """Return the batches of some lanes, in rotation, and the ends of lanes without a batch.

        Args:
            share: the lanes, and their states.
            sharing, exchange: the part of the lanes in deals, and their exchange of reports.
            run: run of the rank.
        """


class InProcess:
    """Makes batches in the loop's process."""

    name = None

    def open(
        self, share: LaneShare, sharing: ReportChannel, exchange: ReportExchange, run: RankRun
    ) -> Items:
        """See `Feed`."""
        for item in rotate(share, sharing, exchange):
            yield item if isinstance(item, LaneEnd) else kind_of(item.rows).of_lane(item)
