"""Settings of the tests in this folder."""

from tests.support.fixtures import cache_folder

__all__ = ["cache_folder"]
