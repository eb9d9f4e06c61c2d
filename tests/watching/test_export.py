"""Waits reach Prometheus: a real scrape over HTTP."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.exporter.prometheus", reason="the extra otel is not installed")
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server
from prometheus_client.parser import text_string_to_metric_families

from streampack import Hook, PackedDataset, PackedLoader, Topology, Waits, metrics
from streampack.watching.export import BOUNDS_S


@pytest.fixture(autouse=True)
def same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "thread_clock", time.thread_time)


@pytest.fixture
def served() -> Iterator[tuple[Any, int]]:
    provider = MeterProvider([PrometheusMetricReader()])
    server, thread = start_http_server(0, addr="127.0.0.1")
    try:
        yield provider.get_meter("streampack"), server.server_port
    finally:
        provider.shutdown()
        server.shutdown()
        server.server_close()
        thread.join()


def scrape(port: int) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by name of the sample, and by the labels stage, le and rank that it has."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [sample.labels[key] for key in ("stage", "le", "rank") if key in sample.labels]
            found.setdefault(sample.name, {})[tuple(labels)] = sample.value
    return found


def slow(documents: Any, seeds: Any) -> Any:
    time.sleep(0.02)
    return documents


@pytest.mark.sampled(1)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_scrape_has_the_loop_s_waits_counts_and_occupancy(
    num_workers: int, served: tuple[Any, int]
) -> None:
    meter, port = served
    dataset = PackedDataset(
        [[1] * 20] * 3000, seq_len=32, map=Hook("slow", slow), topology=Topology(3, 4)
    )
    loader: PackedLoader[Any] = PackedLoader(dataset, num_workers=num_workers)
    waits = Waits(loader, meter=meter)
    for _ in waits:
        pass
    found, report = scrape(port), waits.report()
    assert found["streampack_tokens_total"] == {("3",): loader.metrics().tokens}
    assert found["streampack_documents_total"] == {("3",): loader.metrics().documents}
    assert found["streampack_wait_seconds_count"] == {("3",): report.steps}
    assert found["streampack_wait_seconds_sum"][("3",)] == pytest.approx(report.wait_s)
    assert found["streampack_exposed_seconds_total"][("3",)] == pytest.approx(report.exposed_s)
    assert len(found["streampack_wait_seconds_bucket"]) == len(BOUNDS_S) + 1
    occupancy = found["streampack_occupancy"]
    assert set(occupancy) == {(stage, "3") for stage in report.occupancy}
    assert all(0 <= share <= 1 for share in occupancy.values())
    assert occupancy["hooks", "3"] > occupancy["storage", "3"]


def test_of_another_loader_only_waits_are_exported(served: tuple[Any, int]) -> None:
    meter, port = served
    for _ in Waits(range(5), meter=meter):
        pass
    found = scrape(port)
    assert found["streampack_wait_seconds_count"] == {("0",): 4}
    assert "streampack_tokens_total" not in found
    assert "streampack_occupancy" not in found
