"""The options of `trt-spec gate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trt_spec.errors import UsageError
from trt_spec.run import Run

REPORTS_DIR = Path("reports")


@dataclass(frozen=True)
class Options:
    """What a command line asks for beyond its run.

    Attributes:
        url: a Triton server.
        openai_url: an OpenAI-compatible server.
        plain_url: where the plain arm is asked, of the same kind; by default the same server.
        num_pairs: blocks of each arm.
        rate_per_s: requests arrive as a Poisson process, instead of by latency.concurrencies.
        prompts_path: one's own prompts, instead of latency.workload.
        records_path: records to judge again; nothing is measured.
        api_key: for the OpenAI-compatible server.
    """

    url: str | None = None
    openai_url: str | None = None
    plain_url: str | None = None
    num_pairs: int = 20
    rate_per_s: float | None = None
    prompts_path: Path | None = None
    records_path: Path | None = None
    api_key: str | None = None

    @property
    def server(self) -> str:
        return self.url or self.openai_url or "in process"


def check(run: Run, options: Options) -> None:
    """Refuses what does not go together.

    Raises:
        UsageError: names the option.
    """
    if options.num_pairs % 2:
        raise UsageError("ABBA needs an even number of blocks", where="--blocks", got=options.num_pairs)
    if options.url and options.openai_url:
        raise UsageError("two servers to measure", got="--url and --openai-url", remedy="give one of the two")
    if options.plain_url and options.server == "in process":
        raise UsageError("--plain-url needs --url or --openai-url", remedy="name the speculative server too")
    if options.records_path is not None:
        measured = {
            "--url": options.url,
            "--openai-url": options.openai_url,
            "--rate": options.rate_per_s,
            "--prompts": options.prompts_path,
        }
        given = [flag for flag, value in measured.items() if value is not None]
        if given:
            raise UsageError("--records judges again and measures nothing", got=", ".join(given), remedy="leave it out")
        return
    config = run.config
    if config.speculation.method == "none" and not options.plain_url:
        raise UsageError(
            "this run drafts nothing, so there is nothing to compare",
            where="speculation.method",
            remedy="gate a run with a drafter",
        )
    if config.build.target != "torch" and options.server == "in process":
        raise UsageError(
            f"an engine of the target {config.build.target} does not run in this process",
            where="build.target",
            remedy="serve it, and give --url or --openai-url",
        )
