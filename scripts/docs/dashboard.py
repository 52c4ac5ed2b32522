"""A Grafana dashboard of a served model, as data: what it does, what drafting gives it, and what the server says of it.

Every query names metrics that the server exports; a test compares them with a real server's page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trt_spec.triton.metrics import PREFIX, REQUESTS

UID = "trt-spec"
SCHEMA_VERSION = 39  # of Grafana 11; later ones read it
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS, _WIDTH, _HEIGHT = 24, 8, 8


@dataclass(frozen=True)
class Panel:
    """One graph.

    Attributes:
        queries: legend to PromQL.
        unit: Grafana's name of it.
        doc: shown as the panel's description.
        is_stat: one number instead of a graph.
    """

    title: str
    queries: Mapping[str, str]
    unit: str
    doc: str
    is_stat: bool = False


def _ours(name: str) -> str:
    return f'{PREFIX}{name}{{model="$model"}}'


def _rate(name: str, by: str = "") -> str:
    """Events a second over Grafana's interval, of all servers together."""
    total = f"rate({_ours(name)}[$__rate_interval])"
    return f"sum by ({by}) ({total})" if by else f"sum({total})"


def _theirs(name: str) -> str:
    """Triton's own counters, of all the models that clients may ask: the alias is one of its own."""
    return f'rate({name}{{model=~"$model|${{model}}_unary|ensemble|tensorrt_llm_bls"}}[$__rate_interval])'


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Load",
        (
            Panel(
                "Engine",
                {"up": f"min({_ours('engine_up')})"},
                "none",
                "1 while the engine works, 0 after it failed.",
                is_stat=True,
            ),
            Panel(
                "Requests",
                {
                    "running": f"sum({_ours('num_requests_running')})",
                    "waiting": f"sum({_ours('num_requests_waiting')})",
                    "in flight (llmapi)": f"sum({_ours('num_requests_in_flight')})",
                },
                "short",
                "Waiting requests have no slot yet. TensorRT-LLM does not tell the two apart.",
            ),
            Panel(
                "KV slots",
                {"used": f"sum({_ours('kv_slots_used')})", "there are": f"sum({_ours('kv_slots')})"},
                "short",
                "All used, with requests waiting: the server is full.",
            ),
            Panel(
                "Requests ended",
                {"{{outcome}}": _rate(REQUESTS.name, "outcome")},
                "reqps",
                "By finish reason; refused and failed ones too.",
            ),
            Panel("Output tokens", {"tokens": _rate("num_output_tokens_total")}, "short", "Tokens a second."),
            Panel("Steps", {"steps": _rate("steps_total")}, "short", "Steps of the engine a second."),
        ),
    ),
    (
        "Speculation",
        (
            Panel(
                "Acceptance rate",
                {"accepted / drafted": f"{_rate('num_accepted_tokens_total')} / {_rate('num_draft_tokens_total')}"},
                "percentunit",
                "Accepted draft tokens over draft tokens verified, without recovered and bonus tokens.",
            ),
            Panel(
                "Mean acceptance length",
                {"1 + accepted / drafts": f"1 + {_rate('num_accepted_tokens_total')} / {_rate('num_drafts_total')}"},
                "short",
                "Tokens of a drafted step of one request, with the token that ends it.",
            ),
            Panel(
                "Acceptance by position",
                {
                    "position {{position}}": f"{_rate('num_accepted_tokens_per_pos_total', 'position')} "
                    f"/ ignoring(position) group_left() {_rate('num_drafts_total')}"
                },
                "percentunit",
                "How often the draft token at each position was accepted, of all drafts.",
            ),
            Panel(
                "Tokens a step",
                {"tokens / step": f"{_rate('num_output_tokens_total')} / {_rate('steps_total')}"},
                "short",
                "Of all running requests together.",
            ),
            Panel(
                "Drafts",
                {
                    "drafts": _rate("num_drafts_total"),
                    "draft tokens": _rate("num_draft_tokens_total"),
                    "errors of the drafter": _rate("num_drafter_errors_total"),
                },
                "short",
                "Steps of a request that verified a draft, the tokens in them, and errors of the drafter, a second.",
            ),
            Panel(
                "Drafter errors",
                {"errors": _rate("num_drafter_errors_total")},
                "short",
                "Times the drafter raised, a second; requests go on without its drafts. The first is in the log.",
            ),
        ),
    ),
    (
        "Triton",
        (
            Panel(
                "Requests by model",
                {
                    "{{model}}": f"sum by (model) ({_theirs('nv_inference_request_success')})",
                    "{{model}} failed": f"sum by (model) ({_theirs('nv_inference_request_failure')})",
                },
                "reqps",
                "The streaming model also counts what its aliases ask it.",
            ),
            Panel(
                "Time of a request",
                {
                    "{{model}}": f"sum by (model) ({_theirs('nv_inference_request_duration_us')}) "
                    f"/ sum by (model) ({_theirs('nv_inference_request_success')})"
                },
                "µs",
                "Mean, from arrival to the last response.",
            ),
            Panel(
                "Pending requests",
                {"{{model}}": 'sum by (model) (nv_inference_pending_request_count{model=~"$model|${model}_unary"})'},
                "short",
                "Accepted by Triton and not yet taken by a model: near 0, since the queue is the engine's.",
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": UID,
        "title": "trt-spec: served model",
        "tags": ["trt-spec", "triton"],
        "timezone": "browser",
        "schemaVersion": SCHEMA_VERSION,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_source_variable(), _model_variable()]},
        "panels": list(_panels()),
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _model_variable() -> dict[str, Any]:
    query = f"label_values({PREFIX}engine_up, model)"
    return {
        "name": "model",
        "label": "Model",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "model"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for title, panels in ROWS:
        number += 1
        place = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        y += 1
        for index, panel in enumerate(panels):
            number += 1
            column, line = index % (_COLUMNS // _WIDTH), index // (_COLUMNS // _WIDTH)
            yield _graph(panel, number, {"x": column * _WIDTH, "y": y + line * _HEIGHT, "w": _WIDTH, "h": _HEIGHT})
        y += _HEIGHT * -(-len(panels) // (_COLUMNS // _WIDTH))


def _graph(panel: Panel, number: int, place: Mapping[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": "stat" if panel.is_stat else "timeseries",
        "title": panel.title,
        "description": panel.doc,
        "datasource": _SOURCE,
        "gridPos": dict(place),
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": targets,
    }
