"""What commands return, as tables for a terminal. Pure: data in, renderables out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.text import Text

from trt_spec.report.tables import facts, table, titled

if TYPE_CHECKING:
    from trt_spec.checkpoints.trtllm.conversion import Conversion
    from trt_spec.config.capabilities import Capability
    from trt_spec.doctor import MachineReport, TrtllmReport
    from trt_spec.engines.builder import BuildResult
    from trt_spec.engines.plan import BuildPlan

_MOST_CHANGES = 40  # shown; --json and conversion.json have all
_YES, _NO = "[green]yes[/green]", "[red]no[/red]"


def doctor(report: MachineReport) -> RenderableType:
    """What `doctor.examine` returns."""
    hardware, installed = report.hardware, report.versions
    machine = facts(
        [
            ("system", hardware.system),
            ("processor", f"{hardware.processor}, {hardware.num_cores} cores, {hardware.memory_gib} GiB"),
            ("GPU", ", ".join(gpu.name for gpu in hardware.gpus) or "none"),
            ("interpreter", report.python),
            ("packages", ", ".join(f"{name} {version}" for name, version in installed.items())),
            ("tensorrt-llm", installed.get("tensorrt-llm", "not installed")),
            ("tritonserver", report.tritonserver or "not installed"),
        ],
    )
    rows = []
    for ability in report.abilities:
        reason = escape(ability.reason) + (f"\n[dim]{escape(ability.remedy)}[/dim]" if ability.remedy else "")
        rows.append((ability.name, _YES if ability.is_possible else _NO, reason))
    works = table(("what", "works", "how, or what is missing"), rows)
    shown = [titled("This machine", machine), Text(), titled("What works here", works)]
    return Group(*shown, titled(*_trtllm_offers(report.tensorrt_llm)))


def _trtllm_offers(found: TrtllmReport) -> tuple[str, RenderableType]:
    """A title, and what a version of TensorRT-LLM does with each method, one column for each build target."""
    targets = list(dict.fromkeys(offer.build_target for offer in found.offers))
    rows = []
    for method in dict.fromkeys(offer.method for offer in found.offers):
        of_method = {offer.build_target: offer for offer in found.offers if offer.method == method}
        rows.append((method, *(_offer_words(of_method[target]) for target in targets)))
    state = "installed here" if found.is_installed else f"not installed here; container {found.container}"
    return f"What TensorRT-LLM {found.version} does ({state})", table(("method", *targets), rows)


def _offer_words(offer: Capability) -> str:
    if not offer.is_supported:
        return f"{_NO}, {escape(offer.note)}"
    requests = "all requests" if offer.serves_sampling else "temperature 0"
    rules = "" if offer.method == "none" else f" ({', '.join(offer.acceptance)})"
    return f"{requests}{rules}"


def conversion(path: str, done: Conversion) -> RenderableType:
    """What was converted; `path` is what TensorRT-LLM is to be given."""
    reader = f"{done.build_target}, TensorRT-LLM {done.version}"
    if not done.is_needed:
        return Text(f"Nothing to convert: {reader} reads {path} as it is; nothing was written.")
    names = [f"{name} ({len(pieces)} tensors)" for name, pieces in done.files.items()]
    changes = done.changes
    shown = [*changes[:_MOST_CHANGES], *([f"and {len(changes) - _MOST_CHANGES} more"] * (len(changes) > _MOST_CHANGES))]
    settings = [(key.replace("_", " "), value) for key, value in done.facts.items()]
    pairs = [("method", done.method), ("for", reader), ("files", ", ".join(names)), *settings]
    return titled(f"Checkpoint {path}", facts(pairs), Text(), *(Text(f"- {line}") for line in shown))


def inspection(found: Mapping[str, Any]) -> RenderableType:
    """What `inspect --json` prints, as a table of facts and one of problems."""
    skipped = ("problems", "fits_target")
    fits = {True: "yes", False: "no", None: "no target was given"}[found.get("fits_target")]
    pairs = [(name.replace("_", " "), _short(value)) for name, value in found.items() if name not in skipped]
    shown = [titled("Checkpoint", facts([*pairs, ("fits target", fits)]))]
    problems = found["problems"]
    if problems:
        rows = [
            (problem["code"], escape(problem["message"]), escape(problem.get("remedy") or "")) for problem in problems
        ]
        shown += [Text(), titled("Problems", table(("code", "what", "what to do"), rows))]
    return Group(*shown)


def _short(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        said = {key: _id_range(item) if key.endswith("_padded_ids") else _short(item) for key, item in value.items()}
        return ", ".join(f"{key.replace('_', ' ')} {item}" for key, item in said.items() if item != "")
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    return value


def _id_range(ids: Sequence[int]) -> str:
    """A range [first, last + 1) in words; nothing where it is empty."""
    first, end = ids
    return f"{first} to {end - 1}" if end > first else ""


def plan(planned: BuildPlan) -> RenderableType:
    """What a build would do."""
    steps = [(index, escape(step.what)) for index, step in enumerate(planned.steps, 1)]
    files = [(escape(file.path), escape(file.source)) for file in planned.files]
    shown: list[RenderableType] = [
        titled(f"Build of {planned.run} for {planned.build_target}", table(("", "step"), steps))
    ]
    for number, command in planned.tools:
        shown += [titled(f"Step {number} runs", _shell(command)), Text()]
    if planned.sizes:
        rows = [(size.name, size.asked, size.built, escape(size.why)) for size in planned.sizes]
        sizes = table(("size", "asked", "in the engine", "why"), rows, numeric=(1, 2))
        shown.append(titled("Sizes that the builder makes", sizes))
    shown.append(titled(f"Files in {planned.engine_dir}/", table(("file", "from"), files)))
    for name, text in planned.texts:
        shown += [titled(name, _shell(text)), Text()]
    shown.append(titled("Commands", _shell("\n".join(planned.commands))))
    if planned.container_command:
        title = "Without the tools, in their container, from the checkout of this project"
        shown += [Text(), titled(title, _shell(planned.container_command))]
    return Group(*shown)


def _shell(command: str) -> RenderableType:
    """Commands to be copied: never broken where the terminal ends."""
    indented = "\n".join(f"  {line}" for line in command.splitlines())
    return Text(indented, no_wrap=True, overflow="ignore")


def engine(result: BuildResult) -> RenderableType:
    """An engine in place, from its manifest."""
    manifest, limits = result.manifest, result.manifest.engine
    pairs = [
        (role, f"{record.path}: {record.num_tensors} tensors, {record.num_parameters / 1e6:.1f} M parameters")
        for role, record in manifest.inputs.items()
    ]
    checks = "\n".join(f"{check.check}: {check.result}" for check in manifest.verified)
    state = "up to date, nothing to do" if result.is_reused else f"built in {result.seconds:.1f} s"
    shown = facts(
        [
            *pairs,
            ("method", f"{limits.method}, up to {limits.max_draft_len} draft tokens, {limits.acceptance}"),
            ("limits", f"batch {limits.max_batch_size}, {limits.max_seq_len} tokens, {limits.dtype}"),
            ("verified", checks),
            ("not verified", "\n".join(manifest.not_verified)),
            ("digest", manifest.digest),
        ],
    )
    return titled(f"Engine {result.engine_dir}: {state}", shown)


def completion_lines(outputs: Mapping[str, Any]) -> list[str]:
    """The counts and times of one generation, from what `generate --json` prints, in two lines."""
    first = f"{outputs['num_output_tokens']} tokens ({outputs['finish_reason']})"
    if "num_drafts" not in outputs:  # switched off by the request
        return [first]
    first += f", TTFT {outputs['ttft_ms']:.0f} ms"
    if outputs["tpot_ms"] is not None:
        first += f", TPOT {outputs['tpot_ms']:.1f} ms"
    accepted, drafted = outputs["total_accepted_draft_tokens"], outputs["total_draft_tokens"]
    if drafted is None:
        return [first, "the engine does not tell what was drafted"]
    if outputs["num_drafts"] == 0 or drafted == 0:
        return [first, "no draft tokens"]
    if outputs["num_drafts"] is None:  # TensorRT-LLM counts tokens, not steps
        return [first, f"{accepted} of {drafted} draft tokens accepted"]
    length = outputs["mean_acceptance_length"]
    return [
        first,
        f"{outputs['num_drafts']} drafts, {accepted} of {drafted} draft tokens accepted, "
        f"mean acceptance length {length:.2f}",
    ]


def trained(output: str, card: Mapping[str, Any]) -> RenderableType:
    """The card of a training run."""
    corpus, training = card["corpus"], card["training"]
    pairs = [
        ("text", f"{corpus['num_reply_tokens']:,} reply tokens in {corpus['num_replies']:,} replies"),
        ("steps", f"{training['num_steps']:,}, {training['num_token_visits']:,} token visits"),
        ("loss", " / ".join(f"{value:.3f}" for value in training["loss_by_position"])),
        ("accuracy", " / ".join(f"{100 * value:.1f} %" for value in training["accuracy_by_position"])),
    ]
    parts: list[RenderableType] = [facts(pairs)]
    if "acceptance" in card:
        measured = card["acceptance"]["by_temperature"]
        rows = [
            (
                f"{row['temperature']:g}",
                f"{row['mean_acceptance_length']:.2f}",
                " / ".join(f"{100 * share:.0f} %" for share in row["accepted_share_per_pos"]),
            )
            for row in measured
        ]
        parts.append(table(("T", "tokens per step", "accepted up to position 1 / 2 / ..."), rows, numeric=(0, 1)))
    return titled(f"Trained {card['method']}: {output}", *parts)
