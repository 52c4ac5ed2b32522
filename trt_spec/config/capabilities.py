"""What is offered: method × build target × version × acceptance rule. A table made from data, and one check.

The documentation, `trt-spec doctor` and the build read the same table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trt_spec.config import versions
from trt_spec.config.limits import engine_problems, llmapi_problems, shared_problems
from trt_spec.config.rules import Problem
from trt_spec.config.schema import RunConfig
from trt_spec.errors import CapabilityError
from trt_spec.methods import ACCEPTANCE, BUILD_TARGETS, LINES, METHODS, Absence, Method


@dataclass(frozen=True)
class Capability:
    """One cell of the table, as `trt-spec doctor --json` prints it.

    Attributes:
        line: Line of versions of TensorRT-LLM, see `versions.line_of`; empty for torch.
        is_supported: Whether `trt-spec build` does it.
        acceptance: The acceptance rules that the engine runs, the default first.
        serves_sampling: Whether some rule serves requests at a temperature above 0 without loss.
        is_tested_here: Whether this project's own tests run it, end to end.
        note: What has to be known of it.
        remedy: Where it is not supported: the last version or the other target that can, and else what to do.
    """

    method: str
    build_target: str
    line: str
    is_supported: bool
    acceptance: tuple[str, ...] = ()
    serves_sampling: bool = False
    is_tested_here: bool = False
    note: str = ""
    remedy: str = ""


_WITH_VERSION = {
    "tensorrt": f"tensorrt with tensorrt_llm_version {versions.FIRST_ENGINE_VERSION} to {versions.LAST_ENGINE_VERSION}",
    "llmapi": f"llmapi with tensorrt_llm_version {versions.FIRST_LLMAPI_VERSION} or later",
    **{target: target for target in BUILD_TARGETS if not LINES[target]},
}


def _cell(method: Method, build_target: str, line: str) -> Capability:
    place, offer = (method.name, build_target, line), method.offer(build_target, line)
    if offer is not None:
        return Capability(*place, True, offer.acceptance, offer.serves_sampling, offer.is_tested_here, offer.note)
    known = (absence for absence in method.absences if absence.build_target == build_target)
    absence = next(known, Absence(build_target, "it is not offered there"))
    others = [words for target, words in _WITH_VERSION.items() if target in method.targets]
    remedy = f"set build.target to {', or to '.join(others)}{absence.also}"
    return Capability(*place, False, note=absence.why, remedy=remedy)


TABLE: tuple[Capability, ...] = tuple(
    _cell(method, target, line)
    for method in METHODS.values()
    for target in BUILD_TARGETS
    for line in (LINES[target] or ("",))
)
# What no version of a target does, one cell for each target and method.
ABSENT = tuple({(cell.method, cell.build_target): cell for cell in TABLE if not cell.is_supported}.values())


def offered_methods(build_target: str, line: str) -> list[str]:
    """The methods that a line of versions of a build target does."""
    cells = (cell for cell in TABLE if (cell.build_target, cell.line) == (build_target, line))
    return [cell.method for cell in cells if cell.is_supported]


def check(config: RunConfig) -> None:
    """Returns where a build of `config` is offered.

    Raises:
        CapabilityError: It is not; names the keys, why, and what to do.
    """
    found = problems(config)
    if found:
        raise _error(config, found)


def problems(config: RunConfig) -> list[Problem]:
    """Everything that stands against building `config`; empty where it is offered."""
    method, target = config.speculation.method, config.build.target
    absent = next((cell for cell in ABSENT if (cell.method, cell.build_target) == (method, target)), None)
    if absent is not None:  # in every version, so another version is no remedy
        message = f"method {method} is not offered for build target {target}: {absent.note}"
        return [Problem("speculation.method", message, absent.remedy)]
    refused = _version_problem(config)
    if refused is not None:
        return [refused]
    found = [*_acceptance_problems(config), *shared_problems(config)]
    if target == "tensorrt":
        found += engine_problems(config)
    if target == "llmapi":
        found += llmapi_problems(config, _line(config))
    return found


def _line(config: RunConfig) -> str:
    version = config.build.tensorrt_llm_version
    return "" if version is None else versions.line_of(version)


def _version_problem(config: RunConfig) -> Problem | None:
    target, text = config.build.target, config.build.tensorrt_llm_version
    if target == "torch" or text is None:
        return None
    version, key = versions.parse(text), "build.tensorrt_llm_version"
    if target == "tensorrt" and version >= versions.FIRST_REMOVED_VERSION:
        message = (
            f"TensorRT-LLM {text} has no TensorRT engines: trtllm-build, the converters and Triton's C++ backend were "
            f"removed with {versions.FIRST_REMOVED_VERSION}"
        )
        last, stable = versions.LAST_ENGINE_VERSION, versions.DEFAULT_VERSION["tensorrt"]
        return Problem(
            key, message, f"set it to {last} or earlier ({stable} is the last stable one){_or_target(config)}"
        )
    if target == "tensorrt" and version < versions.FIRST_ENGINE_VERSION:
        first = versions.FIRST_ENGINE_VERSION
        return Problem(key, f"the flags of TensorRT-LLM {text} are not known here", f"set it to {first} or later")
    if target == "llmapi" and version < versions.FIRST_LLMAPI_VERSION:
        message = f"the llmapi target rests on the PyTorch backend of TensorRT-LLM 1.0.0 and later, not of {text}"
        return Problem(key, message, f"set it to {versions.FIRST_LLMAPI_VERSION} or later{_or_target(config)}")
    if version >= versions.FIRST_UNKNOWN_VERSION:
        newest = versions.NEWEST_KNOWN_VERSION
        message = f"the fields of TensorRT-LLM {text} are not known here; documents up to {newest} were read"
        return Problem(key, message, f"set it to {newest} or earlier")
    return None


def _or_target(config: RunConfig) -> str:
    """ ", or set build.target to …": the others that have the method, at any version."""
    named = [name for name in METHODS[config.speculation.method].targets if name != config.build.target]
    return f", or set build.target to {' or '.join(named)}" if named else ""


def _acceptance_problems(config: RunConfig) -> Iterator[Problem]:
    method, target, rule = METHODS[config.speculation.method], config.build.target, config.speculation.acceptance
    offer = method.offer(target, _line(config))
    if offer is None or method.name == "none" or rule in offer.acceptance:
        return
    where = target + (f" of TensorRT-LLM {config.build.tensorrt_llm_version}" if offer.lines else "")
    why_not = f"{offer.why_not[rule]}; " if rule in offer.why_not else ""
    runs = (
        f"runs {', '.join(offer.acceptance)}" if offer.serves_sampling else f"serves temperature 0 only ({offer.note})"
    )
    remedy = f"set speculation.acceptance to {offer.acceptance[0]}, or remove the key"
    # The newest version of each target stands last, so that it is named.
    others = {cell.build_target: cell for cell in TABLE if cell.method == method.name and rule in cell.acceptance}
    if others:
        lossy = "" if ACCEPTANCE[rule].is_lossless else ", and is lossy"
        remedy += (
            f"; {rule} runs on {', '.join(f'{name} {cell.line}'.rstrip() for name, cell in others.items())}{lossy}"
        )
    message = f"{method.name} on {where} does not run rule {rule}: {why_not}it {runs}"
    yield Problem("speculation.acceptance", message, remedy)


def _error(config: RunConfig, found: list[Problem]) -> CapabilityError:
    build = config.build
    version = f", TensorRT-LLM {build.tensorrt_llm_version}" if build.tensorrt_llm_version else ""
    got = f"{config.speculation.method}, {build.target}{version}"
    if len(found) == 1:
        only = found[0]
        offered = offered_methods(build.target, _line(config))
        is_method = only.key == "speculation.method" and offered  # a version may have nothing of the target
        expected = f"for {build.target}: {', '.join(offered)}" if is_method else None
        return CapabilityError(only.message, where=only.key, got=got, expected=expected, remedy=only.remedy)
    details = [problem.line() for problem in found]
    return CapabilityError(f"{len(found)} things in the run config are not offered", got=got, details=details)


FORCED_ACCEPTANCE = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"


def check_environment(environment: Mapping[str, str]) -> None:
    """Returns where no variable changes what engines of TensorRT-LLM generate.

    Raises:
        CapabilityError: Drafts would be accepted without being judged, which only benchmarks of the system do.
    """
    if FORCED_ACCEPTANCE in environment:
        raise CapabilityError(
            "a variable of the environment makes TensorRT-LLM accept drafts without judging them; its output is then "
            "not the target's",
            where=FORCED_ACCEPTANCE,
            got=environment[FORCED_ACCEPTANCE],
            remedy=f"unset {FORCED_ACCEPTANCE}",
        )
