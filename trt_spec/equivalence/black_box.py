"""Speculation on against off by their tokens alone: two servers of which only tokens come back, do they serve one law?

Outputs of both are compared cell by cell, where a cell is a token in its context: the exact prefix near the start of
the output (the first positions after the prefill are where verification first matters), the previous token later on.
The statistic sums (a − b)²/(a + b) over cells, after scaling to equal numbers of outputs. It is calibrated by
exchanging whole outputs between the servers within each prompt, which is exact for any dependence inside an output.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trt_spec.clients.client import Ask, Params
from trt_spec.equivalence.certificate import BlackBox, Cell, Certificate
from trt_spec.equivalence.certify import origin
from trt_spec.equivalence.options import Options, prompts_of, sampling_params
from trt_spec.equivalence.subject import WholeAnswers, in_process
from trt_spec.report.console import Reporter
from trt_spec.run import Run

PREFIX_DEPTH = 3  # positions whose cell is the whole prefix; further on it is the token before
NUM_PERMUTATIONS = 999
_MAX_PERMUTATIONS = 19_999


def compare(
    one: Sequence[tuple[Hashable, Sequence[int]]],
    other: Sequence[tuple[Hashable, Sequence[int]]],
    *,
    seed: int = 0,
    num_permutations: int = NUM_PERMUTATIONS,
    label: Callable[[Hashable], str] = str,
) -> BlackBox:
    """Compares outputs of two servers.

    The p-value is (1 + permutations at least as extreme) / (1 + permutations): at most α with probability α under the
    null, for every α that is a multiple of 1/(1 + permutations).

    Args:
        one, other: (prompt, output ids) per request; the same prompts on both sides, seeds of their own.
        label: what cells call a prompt.

    Raises:
        ValueError: a prompt was sent to one of the two only.
    """
    prompts = [prompt for prompt, _ in (*one, *other)]
    if {prompt for prompt, _ in one} != {prompt for prompt, _ in other}:
        raise ValueError("both servers need outputs for the same prompts")
    cells: dict[tuple[Hashable, tuple[int, ...], int], int] = {}
    rows, columns = [], []
    for index, (prompt, tokens) in enumerate((*one, *other)):
        for position, token in enumerate(tokens):
            context = tuple(tokens[:position]) if position < PREFIX_DEPTH else (-1, tokens[position - 1])
            key = (prompt if position < PREFIX_DEPTH else None, context, token)
            rows.append(index)
            columns.append(cells.setdefault(key, len(cells)))
    in_one = np.arange(len(prompts)) < len(one)
    row, column = np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64)
    total = np.bincount(column, minlength=len(cells)).astype(np.float64)
    scale = len(one) / len(prompts)

    def parts(members: NDArray[np.bool_]) -> NDArray[np.float64]:
        count = np.bincount(column, weights=members[row], minlength=len(cells))
        return (count - scale * total) ** 2 / total

    seen = parts(in_one)
    groups = [np.flatnonzero([prompt == wanted for prompt in prompts]) for wanted in dict.fromkeys(prompts)]
    generator, at_least = np.random.default_rng(seed), 0
    for _ in range(num_permutations):
        shuffled = in_one.copy()
        for members in groups:
            shuffled[members] = in_one[generator.permutation(members)]
        at_least += parts(shuffled).sum() >= seen.sum() * (1 - 1e-12)
    count = np.bincount(column, weights=in_one[row], minlength=len(cells)).astype(int)
    keys, worst = list(cells), []
    for cell in np.argsort(-seen)[:5]:
        prompt, context, token = keys[cell]
        name = None if prompt is None else label(prompt)
        worst.append(Cell(name, context, token, int(count[cell]), int(total[cell] - count[cell])))
    return BlackBox((1 + at_least) / (1 + num_permutations), len(prompts), worst)


def black_box(run: Run, options: Options, reporter: Reporter) -> Certificate:
    """Compares speculation on and off by their tokens alone; needs no reference and certifies nothing.

    Raises:
        CheckpointError: no engine is built, and no url was given.
        CapabilityError: who is judged does not tell ids, or always drafts.
        MachineError: no server at the url.
    """
    params = sampling_params(options.parameters)
    if options.url:
        client = WholeAnswers(options.url, run.config.serve.model_name)
        prompts = prompts_of(options.prompts_path)
    else:
        subject = in_process(run, reporter)
        client, prompts = subject.client, prompts_of(options.prompts_path, subject.tokenizer)
    client.require("output_ids", "speculation_switch", "seed", purpose="a comparison by tokens alone")
    outputs: dict[bool, list[tuple[int, Sequence[int]]]] = {True: [], False: []}
    num_tokens, seed, alpha = 0, 1, run.config.equivalence.alpha
    with reporter.progress(f"comparing speculation on and off for {run.config.name}") as advance:
        while num_tokens < options.max_tokens:
            asks = []
            for prompt in prompts:
                for speculation in (True, False):
                    asks.append(Ask(prompt, Params(replace(params, seed=seed), speculation), f"verify-{seed}"))
                    seed += 1
            for place, (ask, trace) in enumerate(zip(asks, client.ask_all(asks), strict=True)):
                outputs[ask.params.speculation].append((place // 2, trace.token_ids))
                num_tokens += len(trace.token_ids) if ask.params.speculation else 0
            advance(min(1.0, num_tokens / options.max_tokens), f"{num_tokens:,} tokens with speculation")
        found = compare(
            outputs[True],
            outputs[False],
            num_permutations=min(_MAX_PERMUTATIONS, int(2 / alpha)),
            label=lambda index: prompts[index].name,
        )
    is_different = found.pvalue <= max(alpha, 1 / (_MAX_PERMUTATIONS + 1))
    num_served = sum(len(ids) for side in outputs.values() for _, ids in side)
    reason = f"p-value {found.pvalue:.2g} over {found.num_outputs:,} outputs of {num_served:,} tokens"
    return Certificate(
        **origin(run, options),
        verdict="different" if is_different else "inconclusive",
        reason=reason if is_different else f"{reason}; tokens alone certify nothing",
        layer="black box",
        assumptions=["the server honours seed, speculation and the sampling parameters of each request"],
        black_box=found,
    )
