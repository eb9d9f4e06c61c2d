"""Export of waits to a meter of OpenTelemetry, which serves Prometheus and collectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import Observation

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from streampack.watching.waits import Waits

#: Upper bounds of the histogram's buckets, in seconds.
BOUNDS_S = (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0)
LEAST_S = 1.0  # shortest interval of a gauge


def exported(waits: Waits[Any], meter: Meter) -> Callable[[float], None]:
    """Add the instruments to `meter`; return a function that records the wait of a step."""
    last = waits.mark()
    shown: dict[str, float] = {}
    labels = {"rank": waits.topology.rank}

    def occupancy(_: Any) -> Iterator[Observation]:
        nonlocal last, shown
        now = waits.mark()
        if now.at_s - last.at_s >= LEAST_S or not shown:
            shown, last = waits.between(last, now).occupancy, now
        for stage, share in shown.items():
            yield Observation(share, {**labels, "stage": stage})

    def waiting(_: Any) -> Iterator[Observation]:
        yield Observation(waits.mark().exposed_s, labels)

    meter.create_observable_gauge(
        "streampack.occupancy", [occupancy], "1", "Share of time in which a stage was at work."
    )
    meter.create_observable_counter(
        "streampack.exposed", [waiting], "s", "Waits in which the device had no work either."
    )
    for name in ("tokens", "documents", "fetched_bytes") if waits.loader is not None else ():

        def total(_: Any, name: str = name) -> Iterator[Observation]:
            assert waits.loader is not None
            yield Observation(waits.loader.metrics().as_dict()[name], labels)

        unit = "By" if name == "fetched_bytes" else ""
        title = f"streampack.{name.removesuffix('_bytes')}"
        meter.create_observable_counter(title, [total], unit, f"{name} of the loop's batches.")
    histogram = meter.create_histogram(
        "streampack.wait",
        "s",
        "Waits of the loop for a batch.",
        explicit_bucket_boundaries_advisory=BOUNDS_S,
    )
    return lambda wait_s: histogram.record(wait_s, labels)
