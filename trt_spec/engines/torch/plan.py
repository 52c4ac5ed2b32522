"""What a build for the `torch` target would do. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath

from trt_spec.config.schema import RunConfig
from trt_spec.engines.plan import BuildPlan, Listing, PlannedFile, Step, assumed_notes, commands, last_steps

# Files beside the weights that an engine needs: text in and out, chat, end-of-text ids. Licences travel with weights.
COMPANION_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
    "LICENSE",
    "NOTICE",
)
INDEX_FILE = "model.safetensors.index.json"  # the name that Hugging Face loaders look for


def plan(
    config: RunConfig, target: Listing, draft: Listing | None = None, *, engines_dir: str = "engines", run: str = ""
) -> BuildPlan:
    """The steps, files and commands of a build.

    Args:
        config: the run.
        target: the target checkpoint's file names.
        draft: the draft checkpoint's, where the method has one.
        engines_dir: where engines are kept.
        run: how the user named the run on the command line (a name or a file); the commands repeat it.
    """
    engine_dir = str(PurePosixPath(engines_dir) / config.name)
    steps = [Step("inspect the target" + (" and the draft, and check that they fit" if draft else ""))]
    steps.append(_checkpoint_step("target", target, config.target.dtype))
    if draft is not None:
        steps.append(_checkpoint_step("draft", draft, config.target.dtype))
    steps += last_steps(engine_dir, [Step(_self_check_words(config))])
    words, notes = commands(run or config.name), tuple(assumed_notes(target, draft))
    return BuildPlan(config.name, config.build.target, engine_dir, tuple(steps), words, notes)


def _checkpoint_step(role: str, listing: Listing, dtype: str) -> Step:
    files = [PlannedFile(f"{role}/config.json", f"{listing.path}/config.json, dtype set to {dtype}")]
    for source, written in listing.outputs.items():
        files.append(PlannedFile(f"{role}/{written}", f"{listing.path}/{source}, in {dtype}"))
    if len(listing.weights) > 1:
        files.append(PlannedFile(f"{role}/{INDEX_FILE}", "which tensor is in which of them"))
    files += [PlannedFile(f"{role}/{name}", f"{listing.path}/{name}") for name in listing.companions]
    return Step(f"write the {role} in {dtype}", tuple(files))


def _self_check_words(config: RunConfig) -> str:
    if config.speculation.method == "none":
        return "load the engine and generate a few tokens"
    return "load the engine and compare a few greedy tokens with speculation on and off"
