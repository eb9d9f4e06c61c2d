"""Warn when a source of a mixture has ended and its weight no longer applies."""

from __future__ import annotations

import logging

from streampack.mixtures.token_shares import TokenShares

logger = logging.getLogger(__name__)

#: Fraction of a source's due tokens that must be missing for a warning. Sources that should end
#: together end a few quanta apart.
_NOTABLE = 0.1


class Shortfall:
    """Tokens that ended sources of a mixture would have given a lane.

    Args:
        lanes: number of lanes of the run.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._ends: dict[str, int] = {}  # tokens of the lane at the end of each source

    def end(self, name: str, tokens: int) -> None:
        """Record that a source ended after the lane had drawn `tokens` tokens."""
        self._ends[name] = tokens

    def warn(self, shares: TokenShares, tokens: int, drawn: dict[str, int]) -> None:
        """Log each source, once, that gives notably less than its weight asks for.

        Args:
            shares: shares of the lane's draws, for the sources in the order of `drawn`.
            tokens: tokens drawn in the lane.
            drawn: tokens drawn from each source, by its name.
        """
        for name, end in [*self._ends.items()]:
            if tokens <= end:
                continue
            due = shares.integrals(end * self._lanes, tokens * self._lanes)
            missing = (tokens - end) * due[[*drawn].index(name)] / max(sum(due), 1)
            if missing <= _NOTABLE * (drawn[name] + missing):
                continue
            del self._ends[name]
            logger.warning(
                'Source "%s" of the mixture has ended, and the others share its weight: from now '
                "on it has a smaller share of the tokens than its weight asks for. Mixture(..., "
                'epochs={"%s": None}) repeats it, and at_end="stop" ends the run with it.',
                name,
                name,
            )
