"""Failure: an error of another process, as this one raises it."""

from __future__ import annotations

import pickle
import traceback
from typing import NamedTuple

from streampack.errors import StreampackError, WorkerError


class Failure(NamedTuple):
    """An error that was raised in another process.

    Attributes:
        error: the error, if it can be pickled.
        traceback: text of its traceback.
    """

    error: BaseException | None
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return the failure of an error that is being handled."""
        text = traceback.format_exc()
        try:  # test the round trip that the error will make
            again = pickle.loads(pickle.dumps(error))  # noqa: S301
        except Exception:
            return cls(None, text)
        return cls(error if type(again) is type(error) else None, text)

    def as_raised(self) -> BaseException:
        """Return the error, or a substitute, with the traceback of the other process as cause."""
        cause = WorkerError(f"In a worker:\n{self.traceback}")
        error = self.error
        if not isinstance(error, Exception):
            error = WorkerError("A worker failed.", remedy="The cause above names the place.")
        if isinstance(error, StreampackError) or error.__cause__ is None:
            error.__cause__ = cause
        return error
