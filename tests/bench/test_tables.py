"""Tables of ways to draft: what they show, and that they fit 100 columns."""

from __future__ import annotations

from tests.cli.test_views import shown
from trt_spec.bench import demo, methods


def arm(**changes):
    return demo.Figures(**{**ARM, "mean_acceptance_length": None, **changes})


ARM = {"tokens_per_s": 50.04, "ttft_ms": 80.4, "tpot_ms": 18.25, "tokens_per_step": 1.0}
FAST = arm(tokens_per_s=101.8, tpot_ms=8.2, tokens_per_step=3.64)


def row(prompt, **changes):
    return demo.Row(**{"off": arm(), "on": FAST, "speedup": 2.034, "prompt": prompt, **changes})


def demo_run(method, rows, total, name=None):
    return demo.DemoRun(name or method, method, "engines/x", "triton_repo/x", rows, {}, total)


def demo_result(**changes):
    tie = row("chat: explain", outcome="tie at 13: 0.016 nats", speedup=0.91)
    runs = [demo_run(name, [row("copy: notice"), tie], row("all")) for name in ("eagle3", "medusa", "ngram")]
    values = {"target": "checkpoints/smollm2-135m", "dtype": "bfloat16", "runs": runs, "is_repeatable": True}
    return demo.DemoResult(**{**values, **changes})


def line_of(text, start):
    [line] = [line for line in text.splitlines() if line.strip().startswith(start)]
    return line


def test_the_demo_has_a_row_per_prompt_and_a_column_per_run():
    text = shown(demo_result().view())
    assert line_of(text, "plain").split() == ["plain", "eagle3", "medusa", "ngram"]
    assert line_of(text, "copy: notice").split()[2:] == ["50.0", *["2.03", "(3.6)"] * 3]
    assert "0.91 (3.6)" in line_of(text, "chat: explain")
    assert line_of(text, "TPOT ms").split()[2:] == ["18.2", "8.2", "8.2", "8.2"]
    assert line_of(text, "tokens per step").split()[3:] == ["1.00", "3.64", "3.64", "3.64"]
    assert line_of(text, "greedy outputs").count("1 equal, 1 tie") == 3
    assert "ngram: chat: explain, tie at 13: 0.016 nats." in text
    assert "equal requests had equal answers" in text
    assert "different answers" in shown(demo_result(is_repeatable=False).view())


def test_the_demo_says_where_outputs_differ_and_leaves_out_what_was_not_measured():
    wrong = row("chat: a", outcome="differs at 3: 2 nats", is_explained=False, on=arm(tpot_ms=None))
    result = demo_result(runs=[demo_run("ngram", [wrong], wrong, "mine")])
    assert (result.exit_code, demo_result().exit_code) == (1, 0)
    text = shown(result.view())
    assert line_of(text, "greedy outputs").split()[-2:] == ["1", "differ"]
    assert line_of(text, "TPOT ms").split()[-1] == "-"


def methods_result(**changes):
    fast = {**ARM, "tokens_per_step": 1.91, "tpot_ms": 8.62}
    arms = {
        "plain": methods.Figures(**ARM, speedup=1.0, lowest=0.98, highest=1.02),
        "smollm2-135m-eagle3": methods.Figures(**fast, speedup=1.34, lowest=1.31, highest=1.36),
    }
    certificate = methods.Certificate("equivalent", reason="", num_tokens=11073, tau=0.05, alpha=1e-4)
    run = methods.Method("eagle3", {}, {}, methods.Greedy(equal=10, tie=1), certificate)
    values = {
        "command": "trt-spec bench smollm2-135m-eagle3 --what methods --certify",
        "target": "smollm2-135m",
        "dtype": "bfloat16",
        "num_tokens": 64,
        "num_rounds": 3,
        "num_prompts": 8,
        "machine": methods.Machine("AMD EPYC", 2, "2.13.0"),
        "workloads": {"chat": arms, "code_editing": arms},
        "runs": {"smollm2-135m-eagle3": run},
        "is_right": True,
    }
    return methods.MethodsResult(**{**values, **changes})


def test_methods_for_a_terminal():
    text = shown(methods_result().view(), width=120)
    assert line_of(text, "eagle3 ").split()[1:7] == ["1.91", "8.6", "1.34", "1.31", "to", "1.36"]
    assert "eagle3: 10 equal, 1 tie; equivalent, τ = 0.05, α = 0.0001, 11,073 tokens" in text
    assert "Nothing was verified" not in text
    bare = methods.Method("eagle3", {}, {}, methods.Greedy(equal=9, different=2))
    text = shown(methods_result(runs={"smollm2-135m-eagle3": bare}).view(), width=120)
    assert "eagle3: 9 equal, 2 differ\n" in text.replace(" \n", "\n")
    assert "Nothing was verified" in text


def test_methods_as_a_block_of_the_readme():
    lines = methods_result().markdown().splitlines()
    head, _, plain, eagle3 = lines[:4]
    assert head.count("|") == plain.count("|") == eagle3.count("|") == 10
    assert eagle3.startswith("| `eagle3` | 1.91 | 8.6 | **1.34** | 1.91 ")
    assert eagle3.endswith("| 10 equal, 1 tie | equivalent, τ = 0.05, α = 0.0001, 11,073 tokens |")
    assert lines[5].startswith("`trt-spec bench smollm2-135m-eagle3 --what methods --certify`: ")
    assert "2 cores of AMD EPYC" in lines[5]


def test_two_runs_of_one_method_go_by_their_names():
    result = methods_result()
    [run] = result.runs.values()
    arms = {**result.workloads["chat"], "other": result.workloads["chat"]["plain"]}
    block = methods_result(runs={**result.runs, "other": run}, workloads={"chat": arms}).markdown()
    assert "| `smollm2-135m-eagle3` |" in block
    assert "| `other` |" in block
