"""The engine's counters as Prometheus metrics on Triton's metrics port.

Triton's custom metrics crash the whole server when two threads call them at once (seen with server 2.51), so every call
is behind one lock here, and nothing else in the project touches them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PREFIX = "trt_spec_"


@dataclass(frozen=True)
class Series:
    """One metric: its name without the prefix, its help text, and how to read it off the worker."""

    name: str
    doc: str
    read: Callable[[Any], int]


def _stat(name: str, doc: str, field: str) -> Series:
    return Series(name, doc, lambda worker: getattr(worker.engine.stats, field))


COUNTERS: tuple[Series, ...] = (
    _stat("steps_total", "Steps of the engine.", "num_steps"),
    _stat("num_output_tokens_total", "Tokens generated.", "num_output_tokens"),
    _stat("num_drafts_total", "Steps of a request with at least one draft token.", "num_drafts"),
    _stat("num_draft_tokens_total", "Draft tokens verified.", "num_draft_tokens"),
    _stat("num_accepted_tokens_total", "Draft tokens accepted.", "num_accepted_tokens"),
    _stat(
        "num_drafter_errors_total",
        "Times the drafter raised; requests go on without its drafts. The first is in the log.",
        "num_drafter_errors",
    ),
)
GAUGES: tuple[Series, ...] = (
    Series(
        "num_requests_running", "Requests that hold a KV slot.", lambda worker: len(worker.engine.scheduler.running)
    ),
    Series(
        "num_requests_waiting",
        "Requests accepted and waiting for a slot.",
        lambda worker: max(worker.num_in_flight - len(worker.engine.scheduler.running), 0),
    ),
    Series("kv_slots_used", "KV slots in use.", lambda worker: len(worker.engine.scheduler.running)),
    Series("kv_slots", "KV slots there are.", lambda worker: worker.engine.limits.max_batch_size),
    Series("engine_up", "1 while the engine works, 0 after it failed.", lambda worker: int(worker.failure is None)),
)
PER_POSITION = "num_accepted_tokens_per_pos_total"
PER_POSITION_DOC = "Draft tokens accepted at each position of the draft, from 0."
REQUESTS = "requests_total"
REQUESTS_DOC = "Requests ended, by how: a finish reason, refused or failed."


def accepted_per_position(worker: Any) -> list[int]:
    """Accepted draft tokens of each position of the draft, from 0, as the torch engine counts them."""
    return list(worker.engine.stats.num_accepted_tokens_per_pos)


class EngineMetrics:
    """Publishes one worker's numbers under the label of one model.

    Args:
        pb_utils: Triton's module of the stub process.
        worker: whose numbers.
        model_name: label of every series.
        counters, gauges: what is published; the torch engine's unless given.
        per_position: reads the accepted tokens per position; None where the engine does not tell.
    """

    def __init__(
        self,
        pb_utils: Any,
        worker: Any,
        model_name: str,
        *,
        counters: tuple[Series, ...] = COUNTERS,
        gauges: tuple[Series, ...] = GAUGES,
        per_position: Callable[[Any], list[int]] | None = accepted_per_position,
    ) -> None:
        self._pb, self._worker, self._labels = pb_utils, worker, {"model": model_name}
        self._lock = threading.Lock()
        self._counters, self._gauges, self._per_position = counters, gauges, per_position
        self._published: dict[str, int] = {}
        counter, gauge = pb_utils.MetricFamily.COUNTER, pb_utils.MetricFamily.GAUGE
        families = [(series.name, series.doc, counter) for series in counters]
        families += [(series.name, series.doc, gauge) for series in gauges]
        if per_position is not None:
            families.append((PER_POSITION, PER_POSITION_DOC, counter))
        families.append((REQUESTS, REQUESTS_DOC, counter))
        with self._lock:
            # A family that is collected takes its metrics along: keep them all.
            self._families = {
                name: pb_utils.MetricFamily(name=PREFIX + name, description=doc, kind=kind)
                for name, doc, kind in families
            }
            self._metrics = {
                series.name: self._families[series.name].Metric(labels=self._labels) for series in (*counters, *gauges)
            }
        self.publish()

    def count_request(self, outcome: str) -> None:
        """Counts one ended request: a finish reason, `refused` or `failed`."""
        with self._lock:
            self._labelled(REQUESTS, "outcome", outcome).increment(1)

    def publish(self) -> None:
        """Brings every series up to the worker's numbers of now; only what changed costs a call."""
        with self._lock:
            for series in self._counters:
                self._advance(series.name, self._metrics[series.name], series.read(self._worker))
            for position, count in enumerate(self._per_position(self._worker) if self._per_position else ()):
                metric = self._labelled(PER_POSITION, "position", str(position))
                self._advance(f"{PER_POSITION}{position}", metric, count)
            for series in self._gauges:
                value = series.read(self._worker)
                if self._published.get(series.name) != value:
                    self._metrics[series.name].set(value)
                    self._published[series.name] = value

    def _advance(self, key: str, metric: Any, value: int) -> None:
        increment = value - self._published.get(key, 0)
        if increment > 0:
            metric.increment(increment)
            self._published[key] = value

    def _labelled(self, family: str, label: str, value: str) -> Any:
        key = f"{family}{{{value}}}"
        if key not in self._metrics:
            self._metrics[key] = self._families[family].Metric(labels={**self._labels, label: value})
        return self._metrics[key]
