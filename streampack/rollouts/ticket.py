"""Ticket: a prompt that a sampler has been asked to answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.rollouts.schedule import TicketId


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A prompt to be sampled.

    Attributes:
        id: identity of this dispatch.
        prompt: (T,) int64 token ids.
        fields: declared fields of the prompt by name, such as the right answer.
        answers: number of answers that the group needs.
    """

    id: TicketId
    prompt: NDArray[np.int64]
    fields: Mapping[str, Any]
    answers: int

    @property
    def serial(self) -> int:
        """Index of the prompt in the stream of prompts."""
        return self.id.serial

    @property
    def attempt(self) -> int:
        """1 for the first dispatch since the start or the last load."""
        return self.id.attempt
