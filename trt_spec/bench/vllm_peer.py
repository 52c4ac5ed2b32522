"""vLLM in a Python and a process of its own, as a peer in benchmarks: prompts in, seconds out, one JSON line each way.

This file is also the program that runs there, so it imports nothing of this project.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


class VllmPeer:
    """A vLLM process, idle between calls, of the environment of an interpreter, on a Hugging Face directory.

    Raises OSError where there is no such interpreter, ValueError where vLLM ended before it was ready, with its code.
    """

    def __init__(self, python: str, target_dir: Path, *, max_seq_len: int, max_batch_size: int):
        sizes = {"max_model_len": max_seq_len, "max_num_seqs": max_batch_size}
        options = {"model": str(Path(target_dir).resolve()), **sizes}
        environment = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "ERROR"}
        self._process = subprocess.Popen(
            [python, __file__, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self.version = self._answer()["version"]

    def run(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> tuple[float, list[list[int]]]:
        """Seconds and output ids of greedy decoding of all prompts at once, the end of text ignored."""
        asked = {"prompts": [list(ids) for ids in prompts], "num_tokens": num_tokens}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        return answer["seconds"], answer["token_ids"]

    def close(self) -> None:
        """Ends the process."""
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict:
        for line in self._process.stdout:
            if line.startswith("{"):  # vLLM prints lines of its own
                return json.loads(line)
        raise ValueError(f"vLLM ended with exit code {self._process.wait()}; its last words are above")


def _serve(options: dict) -> None:
    import time

    import vllm

    model = vllm.LLM(dtype="bfloat16", enable_prefix_caching=False, **options)
    sys.stdout.write(json.dumps({"version": vllm.__version__}) + "\n")
    sys.stdout.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        params = vllm.SamplingParams(temperature=0.0, max_tokens=asked["num_tokens"], ignore_eos=True, detokenize=False)
        started = time.perf_counter()
        prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
        outputs = model.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        found = {"seconds": seconds, "token_ids": [list(output.outputs[0].token_ids) for output in outputs]}
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
