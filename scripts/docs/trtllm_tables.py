"""Tables of the documents about TensorRT-LLM, from the capability table and the run configs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import PurePosixPath

from trt_spec.config import capabilities, versions
from trt_spec.config.capabilities import Capability
from trt_spec.config.schema import RunConfig
from trt_spec.methods import ACCEPTANCE, METHODS
from trt_spec.report.reference import markdown_table


def exactness_table(cells: Iterable[Capability]) -> str:
    """What is lossless, by target, method and versions, as a Markdown table.

    Args:
        cells: the capability table.
    """
    rows = []
    offered = [cell for cell in cells if cell.line and cell.is_supported]
    offered.sort(key=lambda cell: cell.build_target != "tensorrt")
    for (target, method), group in groupby(offered, key=lambda cell: (cell.build_target, cell.method)):
        for (rules, note), run in groupby(group, key=lambda cell: (cell.acceptance, cell.note)):
            lines = [cell.line for cell in run]
            span = lines[0] if len(lines) == 1 else f"{lines[0]} to {lines[-1]}"
            judged = "-" if method == "none" else ", ".join(f"`{rule}`" for rule in rules)
            rows.append((f"`{target}`", f"`{method}`", span, judged, _above_zero(target, method, rules), note or "-"))
    header = ("target", "method", "versions", "drafts are judged by", "requests above temperature 0", "note")
    return markdown_table(header, rows)


def _above_zero(target: str, method: str, rules: Iterable[str]) -> str:
    if method == "none":
        return "exact: nothing is drafted"
    exact = [rule for rule in rules if ACCEPTANCE[rule].is_lossless and ACCEPTANCE[rule].serves_sampling]
    if exact:
        return f"exact by {' or '.join(f'`{rule}`' for rule in exact)}"
    # Models of ours refuse; in `ensemble` a request goes straight to the C++ backend, which looks at no temperature.
    return "refused" if target == "llmapi" else "refused by `tensorrt_llm_bls`; `ensemble` takes the best token"


def impossible_table() -> str:
    """What no version of a target does, and who does it, as a Markdown table."""
    rows = [(f"`{cell.method}`", f"`{cell.build_target}`", cell.note, cell.remedy) for cell in capabilities.ABSENT]
    return markdown_table(("method", "target", "why not", "what to do instead"), rows)


def deployments_table(runs: Mapping[str, RunConfig]) -> str:
    """The run configs of the TensorRT-LLM targets, one row each, as a Markdown table.

    Args:
        runs: file name in configs/ to run.
    """
    rows = []
    for file_name, config in sorted(runs.items()):
        build, spec = config.build, config.speculation
        if build.target == "torch":
            continue
        version = versions.parse(str(build.tensorrt_llm_version))
        offer = METHODS[spec.method].offer(build.target, versions.line_of(version))
        gpus = f"{build.tensor_parallel_size}" + (
            f" × {build.pipeline_parallel_size}" if build.pipeline_parallel_size != 1 else ""
        )
        draft = f", {PurePosixPath(spec.checkpoint).name}" if spec.checkpoint else ""
        rows.append(
            (
                f"[{config.name}](../configs/{file_name})",
                PurePosixPath(config.target.checkpoint).name,
                f"`{spec.method}`{draft}",
                f"`{build.target}` {version}",
                gpus,
                f"`{build.container or versions.container_of(version).image}`",
                "all" if offer.serves_sampling else "temperature 0",
            )
        )
    header = ("run", "target", "drafts by", "engine", "tensor parallel", "container image", "requests")
    return markdown_table(header, rows)
