"""What is offered: method × build target, and which acceptance rules are lossless. A table as data, and one check.

The documentation, `trt-spec doctor` and the build read the same table.
"""

from __future__ import annotations

from dataclasses import dataclass

from trt_spec.config import offers
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
        is_supported: Whether `trt-spec build` does it.
        is_tested_here: Whether this project's own tests run it, end to end.
        remedy: Where it is not supported: what to do instead.
    """

    method: str
    build_target: str
    is_supported: bool
    is_tested_here: bool = False
    remedy: str = ""


def _cell(method: str, build_target: str) -> Capability:
    if build_target != "torch":
        remedy = "set build.target to torch; builds for TensorRT-LLM are not in this version"
        return Capability(method, build_target, False, remedy=remedy)
    if offers.find(method, build_target) is None:
        return Capability(method, build_target, False, remedy=f"set build.target to tensorrt for {method}")
    return Capability(method, build_target, True, is_tested_here=True)


TABLE: tuple[Capability, ...] = tuple(_cell(method, target) for method in METHODS for target in BUILD_TARGETS)


def find(method: str, build_target: str) -> Capability:
    """The cell of a method and a build target.

    Raises:
        KeyError: Either is unknown.
    """
    for cell in TABLE:
        if (cell.method, cell.build_target) == (method, build_target):
            return cell
    raise KeyError((method, build_target))


def check(config: RunConfig) -> None:
    """Returns where a build of `config` is offered.

    Raises:
        CapabilityError: It is not; names the keys and what to do.
    """
    cell = find(config.speculation.method, config.build.target)
    if not cell.is_supported:
        offered = [other.method for other in TABLE if other.is_supported and other.build_target == cell.build_target]
        raise CapabilityError(
            f"method {cell.method} is not offered for build target {cell.build_target}",
            where="speculation.method and build.target",
            got=f"{cell.method}, {cell.build_target}",
            expected=f"for {cell.build_target}: " + (", ".join(offered) or "nothing in this version"),
            remedy=cell.remedy,
        )
