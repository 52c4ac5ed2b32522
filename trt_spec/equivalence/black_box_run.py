"""Speculation on against off by their tokens alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trt_spec import provenance
from trt_spec.equivalence.options import Options, prompts_of, sampling_params, texts_of
from trt_spec.equivalence.subject import asker, in_process
from trt_spec.report.console import Reporter
from trt_spec.run import Run

_MAX_PERMUTATIONS = 19_999


def black_box(run: Run, options: Options, reporter: Reporter) -> dict[str, Any]:
    """Compares speculation on and off by their tokens alone; needs no reference and certifies nothing.

    Raises:
        CheckpointError: no engine is built, and no url was given.
        MachineError: no server at the url.
    """
    from trt_spec.equivalence.black_box import compare

    params = sampling_params(options.parameters)
    if options.url:
        from trt_spec.clients.triton import TritonClient

        client, texts = (
            TritonClient(options.url, model_name=run.config.serve.model_name),
            texts_of(options.prompts_path),
        )
        ask = asker(client, lambda request: texts[request.input_ids[0]])
        labels, ids = texts, [(index,) for index in range(len(texts))]
    else:
        subject = in_process(run, reporter)
        prompts = prompts_of(subject.tokenizer, options.prompts_path)
        ask, labels, ids = subject.serve, [p.label for p in prompts], [p.input_ids for p in prompts]
    from trt_spec.runtime.request import Request

    arms: dict[bool, list[tuple[int, list[int]]]] = {True: [], False: []}
    num_tokens, seed = 0, 1
    with reporter.progress(f"comparing speculation on and off for {run.config.name}") as advance:
        while num_tokens < options.max_tokens:
            requests = []
            for prompt in ids:
                for speculation in (True, False):
                    request_id = f"verify-{seed}"
                    requests.append(Request(request_id, prompt, replace(params, seed=seed), speculation))
                    seed += 1
            for place, (request, answer) in enumerate(zip(requests, ask(requests), strict=True)):
                arms[request.speculation].append((place // 2, list(answer.token_ids)))
                num_tokens += len(answer.token_ids) if request.speculation else 0
            advance(min(1.0, num_tokens / options.max_tokens), f"{num_tokens:,} tokens with speculation")
        alpha = run.config.equivalence.alpha
        found = compare(arms[True], arms[False], num_permutations=min(_MAX_PERMUTATIONS, int(2 / alpha)))
    is_different = found.pvalue <= max(alpha, 1 / (_MAX_PERMUTATIONS + 1))
    reason = f"p-value {found.pvalue:.2g} over {found.num_outputs:,} outputs of {found.num_tokens:,} tokens"
    reason += "" if is_different else "; tokens alone certify nothing"
    worst = [
        {"prompt": None if prompt is None else labels[prompt], "context": list(context), "token": token}
        | {"count_on": on, "count_off": off}
        for prompt, context, token, on, off in found.worst
    ]
    return {
        "run": run.config.name,
        "words": run.words,
        "acceptance": run.config.speculation.acceptance,
        "server": options.url or "in process",
        "provenance": provenance.collect(run.config),
        "verdict": "different" if is_different else "inconclusive",
        "reason": reason,
        "black_box": {"pvalue": found.pvalue, "num_outputs": found.num_outputs, "worst": worst},
        "assumptions": ["the server honours seed, speculation and the sampling parameters of each request"],
    }
