from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.stores import STORES, Store


def _running(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with STORES[name](tmp_path_factory.mktemp(name)) as store:
        yield store


@pytest.fixture(
    scope="session",
    params=[
        "s3",
        "hub",
        pytest.param("google", marks=pytest.mark.stores),
        pytest.param("azure", marks=pytest.mark.stores),
    ],
)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    """Each store in turn, with the objects of earlier tests."""
    yield from _running(request.param, tmp_path_factory)
