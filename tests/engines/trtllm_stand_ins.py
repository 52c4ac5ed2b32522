"""Stand-ins for `trtllm-build` and TensorRT-LLM's converters: same flags, same files, none of the work.

They are programs of their own, on PATH and in an examples/ directory, and know nothing of trt_spec. What they accept
is in tests/data/trtllm_flags.json; what the builder makes of sizes is written down here from TensorRT-LLM's builder.py.
The file `orders.json` beside them says what goes wrong: {"fail": step, "hang": step, "lie": {key: value}}.
"""

from __future__ import annotations

import json
import stat
import sys
import textwrap
from pathlib import Path
from typing import Any

FLAGS = Path(__file__).parent.parent / "data" / "trtllm_flags.json"

_COMMON = """\
#!{python}
import argparse, json, os, pathlib, sys, time

FLAGS = json.loads(pathlib.Path({flags!r}).read_text())
HOME = pathlib.Path({home!r})
VERSION = {version!r}
orders = json.loads((HOME / "orders.json").read_text())


def parser_of(*names):
    parser = argparse.ArgumentParser()
    for flag in dict.fromkeys(flag for name in names for flag in FLAGS[name]):
        if flag in FLAGS["switches"]:
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag)
    return parser


def trouble(step):
    print(f"[TensorRT-LLM] TensorRT-LLM version: {{VERSION}}", flush=True)
    with (HOME / "ran.txt").open("a") as ran:
        ran.write(step + "\\n")
    if orders.get("hang") == step:
        (HOME / "hanging").write_text(str(os.getpid()))
        print("Loading weights:  40%", end="\\r", flush=True)
        time.sleep(60)
    if orders.get("fail") == step:
        print("Traceback (most recent call last):\\n" + orders.get("why", "ValueError: no"), file=sys.stderr)
        sys.exit(1)


def write(path, value):
    for key, other in orders.get("lie", {{}}).items():
        parts = key.split(".")
        inner = value
        for part in parts[:-1]:
            inner = inner.get(part, {{}})
        if parts[-1] in inner:
            inner[parts[-1]] = other
    path.write_text(json.dumps(value))
"""

_CONVERT = """\
kind = {kind!r}
names = {{"model": ("convert_common", "convert_llama"), "redrafter": ("convert_redrafter",)}}.get(
    kind, ("convert_common", "convert_" + kind)
)
parser = parser_of(*names)
if kind == "redrafter" and {is_late!r}:
    parser = argparse.ArgumentParser()
    for flag in [f for f in FLAGS["convert_redrafter"] if f != "--model_dir"] + FLAGS["convert_redrafter_from_1.0"]:
        parser.add_argument(flag, **({{"action": "store_true"}} if flag in FLAGS["switches"] else {{}}))
args = parser.parse_args()
source = pathlib.Path(getattr(args, "model_dir", None) or args.base_model_checkpoint_dir)
output = pathlib.Path(args.output_dir)
trouble("convert:" + output.name)
assert args.dtype in FLAGS["dtypes"], args.dtype
hf = json.loads((source / "config.json").read_text())
tp, pp = int(args.tp_size), int(getattr(args, "pp_size", None) or 1)
quant = {{"quant_algo": None, "kv_cache_quant_algo": None}}
if getattr(args, "use_weight_only", False):
    assert args.weight_only_precision in FLAGS["weight_only_precisions"]
    quant["quant_algo"] = {{"int8": "W8A16", "int4": "W4A16"}}[args.weight_only_precision]
if getattr(args, "use_fp8_rowwise", False):
    quant["quant_algo"] = "FP8_PER_CHANNEL_PER_TOKEN"
if getattr(args, "int8_kv_cache", False):
    quant["kv_cache_quant_algo"] = "INT8"
config = {{
    "architecture": "LlamaForCausalLM", "dtype": args.dtype, "logits_dtype": "float32", "quantization": quant,
    "vocab_size": hf["vocab_size"], "hidden_size": hf["hidden_size"], "num_hidden_layers": hf["num_hidden_layers"],
    "num_attention_heads": hf["num_attention_heads"],
    "mapping": {{"world_size": tp * pp, "tp_size": tp, "pp_size": pp}},
}}
if kind == "medusa":
    heads = pathlib.Path(args.medusa_model_dir)
    assert (heads / "medusa_lm_head.pt").exists() or (heads / "medusa_lm_head.safetensors").exists()
    assert args.model_type in FLAGS["medusa_model_types"]
    config.update(architecture="MedusaForCausalLM", max_draft_len=int(args.max_medusa_token_len),
                  num_medusa_heads=int(args.num_medusa_heads), num_medusa_layers=int(args.num_medusa_layers))
if kind == "eagle":
    draft = json.loads((pathlib.Path(args.eagle_model_dir) / "config.json").read_text())
    assert int(args.max_draft_len) <= 256
    config.update(architecture="EagleForCausalLM", max_draft_len=int(args.max_draft_len),
                  num_eagle_layers=int(args.num_eagle_layers),
                  max_non_leaves_per_layer=int(args.max_non_leaves_per_layer),
                  eagle_net_config={{"num_hidden_layers": draft["num_hidden_layers"]}})
if kind == "redrafter":
    assert ("mapping" in hf) == {is_late!r}, "a converted checkpoint from 1.0 on, a Hugging Face one before"
    config.update(redrafter_num_beams=int(args.redrafter_num_beams),
                  redrafter_draft_len_per_beam=int(args.redrafter_draft_len_per_beam),
                  redrafter_greedy_search=not args.redrafter_no_greedy_search)
output.mkdir(parents=True, exist_ok=True)
write(output / "config.json", config)
for rank in range(tp * pp):
    print(f"Converting rank {{rank}}", flush=True)
    (output / f"rank{{rank}}.safetensors").write_bytes(b"weights")
print("Total time of converting checkpoints: 00:00:01")
"""

_BUILD = """\
parser = parser_of("build")
for flag, values in FLAGS["build_plugins"].items():
    parser.add_argument(flag, choices=values)
args = parser.parse_args()
output = pathlib.Path(args.output_dir)
trouble("build:" + output.name)
checkpoint = pathlib.Path(args.checkpoint_dir)
pretrained = json.loads((checkpoint / "config.json").read_text())
mode = (args.speculative_decoding_mode or "none").upper()
assert mode == "NONE" or mode.lower() in FLAGS["modes"]
batch, seq_len = int(args.max_batch_size or 2048), int(args.max_seq_len)
num_tokens = min(int(args.max_num_tokens or 8192), seq_len * batch)
draft_len = int(pretrained.get("max_draft_len") or args.max_draft_len or 0)
if "redrafter_num_beams" in pretrained:
    mode = "EXPLICIT_DRAFT_TOKENS"
    draft_len = pretrained["redrafter_num_beams"] * pretrained["redrafter_draft_len_per_beam"]
if mode != "NONE":
    seq_len += draft_len + (pretrained["num_eagle_layers"] if mode == "EAGLE" else 0)
    num_tokens = max(num_tokens, batch * (draft_len + 1))
    assert args.max_beam_width == "1", "beams"
if mode == "EAGLE":
    assert batch <= 512, "Max batch size > 512 is not supported for EAGLE"
if (args.gather_context_logits or args.gather_all_token_logits) and draft_len:
    raise RuntimeError("gather_context_logits with draft tokens")
paged = args.use_paged_context_fmha == "enable"
if paged and pretrained["quantization"]["kv_cache_quant_algo"] == "INT8":
    raise RuntimeError("Paged Context FMHA doesn't work with int8 kv cache currently.")
config = {{
    "version": VERSION,
    "pretrained_config": pretrained,
    "build_config": {{
        "max_input_len": int(args.max_input_len or 1024), "max_seq_len": seq_len, "max_batch_size": batch,
        "max_beam_width": int(args.max_beam_width or 1), "max_num_tokens": num_tokens,
        "kv_cache_type": args.kv_cache_type.upper(), "gather_context_logits": False,
        "max_draft_len": draft_len, "speculative_decoding_mode": FLAGS["mode_numbers"][mode],
        "plugin_config": {{"use_paged_context_fmha": paged, "paged_kv_cache": args.kv_cache_type == "paged",
                          "remove_input_padding": args.remove_input_padding == "enable"}},
    }},
}}
output.mkdir(parents=True, exist_ok=True)
write(output / "config.json", config)
for rank in range(pretrained["mapping"]["world_size"]):
    if orders.get("drop") != f"{{output.name}}/rank{{rank}}":
        (output / f"rank{{rank}}.engine").write_bytes(b"engine")
pathlib.Path(args.output_timing_cache or "model.cache").write_bytes(b"cache")
print("[TRT-LLM] [I] Total time of building all engines: 00:00:02")
"""


class StandIns:
    """The tools under `home`: bin/trtllm-build, bin/python3, bin/nvidia-smi and examples/."""

    def __init__(self, home: Path, version: str = "1.2.1") -> None:
        self.home = home
        self.version = version
        self.examples = home / "examples"
        self.bin = home / "bin"
        is_early = version.startswith("0.19")
        models = self.examples if is_early else self.examples / "models" / "core"
        is_late = not version.startswith("0.")
        home.mkdir(parents=True, exist_ok=True)
        self.order()
        for folder in ("llama", "qwen"):
            self._program(models / folder / "convert_checkpoint.py", _CONVERT, kind="model", is_late=is_late)
        for kind in ("medusa", "eagle", "redrafter"):
            self._program(self.examples / kind / "convert_checkpoint.py", _CONVERT, kind=kind, is_late=is_late)
        self._program(self.bin / "trtllm-build", _BUILD)
        (self.bin / "python3").symlink_to(sys.executable)
        smi = self.bin / "nvidia-smi"
        smi.write_text('#!/bin/sh\necho "NVIDIA H100, 81559 MiB, 580.95.05"\n', encoding="utf-8")
        smi.chmod(0o755)

    def order(self, **orders: Any) -> None:
        """What goes wrong from now on; nothing without arguments."""
        (self.home / "orders.json").write_text(json.dumps(orders), encoding="utf-8")

    def ran(self) -> list[str]:
        """The steps that ran since the last call."""
        path = self.home / "ran.txt"
        steps = path.read_text(encoding="utf-8").split() if path.exists() else []
        path.unlink(missing_ok=True)
        return steps

    def _program(self, path: Path, body: str, **values: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        facts = {"python": sys.executable, "flags": str(FLAGS), "home": str(self.home), "version": self.version}
        path.write_text(textwrap.dedent(_COMMON + "\n\n" + body).format(**facts, **values), encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
