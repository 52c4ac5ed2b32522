"""What is offered: method × build target × version × acceptance rule. A table made from data, and one check.

The documentation, `trt-spec doctor` and the build read the same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trt_spec.config import offers, versions
from trt_spec.config.limits import engine_problems, llmapi_problems, shared_problems
from trt_spec.config.rules import Problem
from trt_spec.config.schema import BUILD_TARGETS, METHODS, RunConfig
from trt_spec.errors import CapabilityError


@dataclass(frozen=True)
class AcceptanceFacts:
    """What is promised of an acceptance rule; the runtime's registry has to agree (a test compares them).

    Attributes:
        is_lossless: Tokens follow the target's law for every request that the rule serves.
        serves_sampling: Whether it serves requests at a temperature above 0; where not, they are refused.
    """

    is_lossless: bool
    serves_sampling: bool


# "greedy" takes the target's best token, which is the target's law at temperature 0 and nowhere else.
ACCEPTANCE: dict[str, AcceptanceFacts] = {
    "greedy": AcceptanceFacts(is_lossless=True, serves_sampling=False),
    "rejection": AcceptanceFacts(is_lossless=True, serves_sampling=True),
    "exact_match": AcceptanceFacts(is_lossless=True, serves_sampling=True),
    "block": AcceptanceFacts(is_lossless=True, serves_sampling=True),
    "typical": AcceptanceFacts(is_lossless=False, serves_sampling=True),
}


@dataclass(frozen=True)
class Capability:
    """One cell of the table.

    Attributes:
        method: Speculation method.
        build_target: Build target.
        line: Line of versions of TensorRT-LLM, see `versions.line_of`; empty for torch.
        is_supported: Whether `trt-spec build` does it.
        acceptance: The acceptance rules that the engine runs, the default first.
        is_tested_here: Whether this project's own tests run it, end to end.
        note: What has to be known of it.
        remedy: Where it is not supported: the last version or the other target that can, and else what to do.
    """

    method: str
    build_target: str
    line: str
    is_supported: bool
    acceptance: tuple[str, ...] = ()
    is_tested_here: bool = False
    note: str = ""
    remedy: str = ""

    @property
    def serves_sampling(self) -> bool:
        """Whether some rule serves requests at a temperature above 0 without loss."""
        return any(ACCEPTANCE[rule].serves_sampling and ACCEPTANCE[rule].is_lossless for rule in self.acceptance)


_ENGINE_RANGE = f"tensorrt_llm_version {versions.FIRST_ENGINE_VERSION} to {versions.LAST_ENGINE_VERSION}"
_USE_ENGINE = f"set build.target to tensorrt with {_ENGINE_RANGE}"
_USE_LLMAPI = f"set build.target to llmapi with tensorrt_llm_version {versions.FIRST_LLMAPI_VERSION} or later"
_OR_TORCH = ", or to torch"

# (method, build target) -> (why not, what to do instead), for what no version of the target does.
IMPOSSIBLE: dict[tuple[str, str], tuple[str, str]] = {
    ("lookahead", "torch"): ("the torch runtime does not draft so", _USE_ENGINE),
    ("redrafter", "torch"): ("the torch runtime has no ReDrafter", _USE_ENGINE),
    ("ngram", "tensorrt"): ("Triton's TensorRT-LLM backend drafts no n-grams", _USE_LLMAPI + _OR_TORCH),
    ("eagle3", "tensorrt"): ("its converter and engine know EAGLE-1 and EAGLE-2 only", _USE_LLMAPI + _OR_TORCH),
    ("mtp", "tensorrt"): ("its engine has no prediction layers", _USE_LLMAPI + _OR_TORCH),
    ("medusa", "llmapi"): ("the PyTorch backend never ran Medusa", _USE_ENGINE + _OR_TORCH),
    ("eagle", "llmapi"): (
        "the PyTorch backend reads EAGLE-3 heads only",
        _USE_ENGINE + _OR_TORCH + ", or train an EAGLE-3 head",
    ),
    ("lookahead", "llmapi"): ("the PyTorch backend never ran it", _USE_ENGINE),
    ("redrafter", "llmapi"): ("the PyTorch backend has no ReDrafter", _USE_ENGINE),
}


def _cell(method: str, build_target: str, line: str) -> Capability:
    offer = offers.find(method, build_target, line)
    if offer is None:
        why, remedy = IMPOSSIBLE[method, build_target]
        return Capability(method, build_target, line, False, note=why, remedy=remedy)
    facts = {"acceptance": offer.acceptance, "is_tested_here": offer.is_tested_here, "note": offer.note}
    return Capability(method, build_target, line, True, **facts)


TABLE: tuple[Capability, ...] = tuple(
    _cell(method, target, line)
    for method in METHODS
    for target in BUILD_TARGETS
    for line in (offers.LINES[target] or ("",))
)


def find(method: str, build_target: str, line: str | None = None) -> Capability:
    """The cell of a method, a build target and a line of versions; without one, that of the default version.

    Raises:
        KeyError: There is no such cell.
    """
    if line is None:
        default = versions.DEFAULT_VERSION.get(build_target)
        line = versions.line_of(versions.parse(default)) if default else ""
    for cell in TABLE:
        if (cell.method, cell.build_target, cell.line) == (method, build_target, line):
            return cell
    raise KeyError((method, build_target, line))


def of_config(config: RunConfig) -> Capability:
    """The cell of a run config.

    Raises:
        CapabilityError: Its version of TensorRT-LLM does not have the build target.
    """
    refused = _version_problem(config)
    if refused is not None:
        raise _error(config, [refused])
    return find(config.speculation.method, config.build.target, _line(config))


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
    if (method, target) in IMPOSSIBLE:  # in every version, so another version is no remedy
        why, remedy = IMPOSSIBLE[method, target]
        message = f"method {method} is not offered for build target {target}: {why}"
        return [Problem("speculation.method", message, remedy)]
    refused = _version_problem(config)
    if refused is not None:
        return [refused]
    cell = find(method, target, _line(config))
    found = list(_acceptance_problems(config, cell)) + list(shared_problems(config))
    if target == "tensorrt":
        found += engine_problems(config)
    if target == "llmapi":
        found += llmapi_problems(config, cell.line)
    return found


def _line(config: RunConfig) -> str:
    version = config.build.tensorrt_llm_version
    return "" if version is None else versions.line_of(versions.parse(version))


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
    method, target = config.speculation.method, config.build.target
    others = [cell.build_target for cell in TABLE if cell.method == method and cell.is_supported]
    named = [name for name in BUILD_TARGETS if name in others and name != target]
    return f", or set build.target to {' or '.join(named)}" if named else ""


def _acceptance_problems(config: RunConfig, cell: Capability) -> list[Problem]:
    rule = config.speculation.acceptance
    if cell.method == "none" or rule in cell.acceptance:
        return []
    where = cell.build_target + (f" of TensorRT-LLM {config.build.tensorrt_llm_version}" if cell.line else "")
    message = (
        f"{cell.method} on {where} does not run rule {rule}: {_WHY_NOT.get((cell.method, cell.build_target, rule), '')}"
    )
    if not cell.serves_sampling:
        message += f"it serves temperature 0 only ({cell.note})"
    else:
        message += f"it runs {', '.join(cell.acceptance)}"
    others = [_words(other) for other in _who_runs(cell.method, rule)]
    remedy = f"set speculation.acceptance to {cell.acceptance[0]}, or remove the key"
    if others:
        lossy = "" if ACCEPTANCE[rule].is_lossless else ", and is lossy"
        remedy += f"; {rule} runs on {', '.join(others)}{lossy}"
    return [Problem("speculation.acceptance", message, remedy)]


# Rules that an engine has in some form, and that are not what they are called here.
_WHY_NOT = {
    (
        "draft_model",
        "tensorrt",
        "rejection",
    ): "with draft logits, drafts are judged by another law than the one they were drawn "
    "from (the target's logits are tempered and the draft's are not), so it is not exact; ",
    (
        "eagle",
        "tensorrt",
        "typical",
    ): "its posterior threshold accepts what is likely enough, which changes the law of the tokens; ",
}


def _who_runs(method: str, rule: str) -> list[Capability]:
    """The cells of a method that run a rule, newest version of each target first, so that the last one is named."""
    cells = [cell for cell in TABLE if cell.method == method and rule in cell.acceptance]
    return list({cell.build_target: cell for cell in cells}.values())


def _words(cell: Capability) -> str:
    return cell.build_target + (f" {cell.line}" if cell.line else "")


def _error(config: RunConfig, found: list[Problem]) -> CapabilityError:
    build = config.build
    version = f", TensorRT-LLM {build.tensorrt_llm_version}" if build.tensorrt_llm_version else ""
    got = f"{config.speculation.method}, {build.target}{version}"
    if len(found) == 1:
        only = found[0]
        offered = [
            cell.method
            for cell in TABLE
            if cell.is_supported and (cell.build_target, cell.line) == (build.target, _line(config))
        ]
        is_method = only.key == "speculation.method" and offered  # a version may have nothing of the target
        expected = f"for {build.target}: {', '.join(offered)}" if is_method else None
        return CapabilityError(only.message, where=only.key, got=got, expected=expected, remedy=only.remedy)
    details = [f"{problem.key}: {problem.message}; {problem.remedy}" for problem in found]
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
