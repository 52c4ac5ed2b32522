"""What is trained computes what the runtime computes: every recipe against the checkpoint that it saves.

The draft heads are compared step by step along chains, through the runtime's own cache; a training step that attended
to other rows than the engine does would train for something that never happens.
"""

from __future__ import annotations

import pytest
import torch

from tests import tiny
from tests.training.tools import CPU, NUM_POSITIONS, load, make_target
from trt_spec.checkpoints.checkpoint_dir import CheckpointDir
from trt_spec.checkpoints.detect import inspect
from trt_spec.errors import CapabilityError
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.heads import load_feature_head, load_medusa
from trt_spec.training import medusa
from trt_spec.training.draft_model import DraftModelRecipe
from trt_spec.training.eagle3 import Eagle3Recipe, captured_layers
from trt_spec.training.feature_cache import Sample
from trt_spec.training.losses import target_probs
from trt_spec.training.medusa import MedusaRecipe
from trt_spec.training.mtp import MtpRecipe
from trt_spec.training.padded import Padded

MAX_GAP = 2e-3
DEPTH = 4
LENGTH, NUM_PROMPT = 14, 4
IDS = torch.arange(0, 320, 2)
FAMILIES = {
    "llama": {},
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "tied": {"tie_word_embeddings": True},
    "llama3-rope": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
}


@pytest.fixture(scope="module", params=FAMILIES)
def target_dir(request, tmp_path_factory):
    return make_target(tmp_path_factory.mktemp(request.param) / "target", **FAMILIES[request.param])


def recipe_of(method: str, target_dir, target):
    checkpoint = CheckpointDir.open(target_dir)
    if method == "eagle3":
        return Eagle3Recipe(target, checkpoint, IDS, DEPTH, NUM_POSITIONS)
    if method == "mtp":
        return MtpRecipe(target, checkpoint, DEPTH, NUM_POSITIONS)
    if method == "medusa":
        return MedusaRecipe(target, num_heads=3, num_blocks=2)
    return DraftModelRecipe(target, checkpoint, num_layers=3, num_positions=NUM_POSITIONS)


def shaken(recipe) -> dict[str, torch.Tensor]:
    """The recipe's start with noise on everything, in steps that bfloat16 holds."""
    generator = torch.Generator().manual_seed(5)
    start = recipe.initial(torch.Generator().manual_seed(0))
    return {
        name: (tensor + 0.1 * torch.randn(tensor.shape, generator=generator)).bfloat16().float()
        for name, tensor in start.items()
    }


def forward(target, capture):
    tokens = torch.randint(3, 315, (LENGTH,), generator=torch.Generator().manual_seed(3))
    rows = pack([Rows(0, 0, tokens.tolist())], LENGTH, target.dtype, CPU)
    with torch.inference_mode():
        hidden = target.forward(rows, target.make_cache(1, LENGTH), capture)
    return tokens, hidden


def padded_beside_a_longer_one(tokens, hidden) -> Padded:
    """The sample in row 0, and a longer one in row 1, so that row 0 is padded."""
    aux = None if hidden.aux is None else hidden.aux.clone()
    sample = Sample(tokens, NUM_PROMPT, hidden.last.clone(), aux)
    longer = Sample(
        torch.cat((tokens, tokens)),
        2,
        torch.cat((sample.last, sample.last)),
        None if aux is None else torch.cat((aux, aux)),
    )
    return Padded.of([sample, longer], torch.float32, CPU)


def trained_states(recipe, weights, batch) -> list[tuple[int, torch.Tensor]]:
    """(first row, what the head reads [rows, H]) of every step, for the first sample."""
    seen, step = [], recipe._step

    def spy(weights, features, embedded, start, steps):
        found = step(weights, features, embedded, start, steps)
        seen.append((start, found[1][0]))
        return found

    recipe._step = spy
    recipe.losses(weights, batch)
    return seen


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_every_step_of_a_chain_is_that_of_the_runtime(tmp_path, target_dir, method):
    target = load(target_dir)
    recipe = recipe_of(method, target_dir, target)
    weights = shaken(recipe)
    tokens, hidden = forward(target, recipe.capture)
    seen = trained_states(recipe, weights, padded_beside_a_longer_one(tokens, hidden))
    assert len(seen) == DEPTH
    out = tmp_path / "out"
    out.mkdir()
    recipe.save(out, weights)
    served = load(out) if method == "mtp" else target
    head = load_feature_head(method, out, served, out if method == "mtp" else target_dir, NUM_POSITIONS)
    compared = IDS if method == "eagle3" else torch.arange(320)
    with torch.inference_mode():
        for root in range(NUM_PROMPT - 1, LENGTH - 1 - DEPTH):
            cache = head.make_cache(1, 2 * LENGTH)
            pairs = pack([Rows(0, 0, tokens[1 : root + 2].tolist())], 2 * LENGTH, head.dtype, CPU)
            features = head.forward(head.target_features(hidden)[: root + 1], pairs, cache)[-1:]
            for depth, (start, states) in enumerate(seen):
                trained = states[root + depth - start] @ recipe.head(weights).T
                assert (head.logits(features)[0][compared] - trained).abs().max() <= MAX_GAP, (root, depth)
                if depth + 1 < DEPTH:
                    node = Rows(0, root + 1, [int(tokens[root + 2 + depth])], range(-1, depth), num_cached_nodes=depth)
                    features = head.forward(features, pack([node], 2 * LENGTH, head.dtype, CPU), cache)


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_the_first_loss_is_against_the_law_of_the_token_after_next(target_dir, method):
    """Row t knows token t + 1 and learns the target's law given tokens up to t + 1, in the reply alone."""
    target = load(target_dir)
    recipe = recipe_of(method, target_dir, target)
    weights = shaken(recipe)
    tokens, hidden = forward(target, recipe.capture)
    batch = Padded.of(
        [Sample(tokens, NUM_PROMPT, hidden.last.clone(), None if hidden.aux is None else hidden.aux.clone())],
        torch.float32,
        CPU,
    )
    [(_, states), *_] = trained_states(recipe, weights, batch)
    found = recipe.losses(weights, batch)
    assert [one.num_rows for one in found] == [LENGTH - 1 - NUM_PROMPT - step for step in range(DEPTH)]
    rows = range(NUM_PROMPT - 1, LENGTH - 2)
    laws = target_probs(hidden.last[[row + 1 for row in rows]], recipe.target_head)
    drafts = (states[list(rows)] @ recipe.head(weights).T).log_softmax(-1)
    assert float(found[0].loss) == pytest.approx(float(-(laws.probs * drafts).sum()), rel=1e-4)


def test_medusa_is_that_of_the_runtime(tmp_path, target_dir):
    target = load(target_dir)
    recipe = recipe_of("medusa", target_dir, target)
    weights = shaken(recipe)
    tokens, hidden = forward(target, ())
    recipe.save(tmp_path, weights)
    assert inspect(tmp_path, target_dir).problems == ()
    logits = load_medusa(tmp_path, target, target_dir).logits(hidden.last.clone())
    batch = Padded.of([Sample(tokens, NUM_PROMPT, hidden.last.clone(), None)], torch.float32, CPU)
    for head, one in enumerate(recipe.losses(weights, batch)):
        rows = list(range(NUM_PROMPT - 1, LENGTH - 2 - head))
        laws = target.logits(hidden.last[[row + 1 + head for row in rows]].clone()).softmax(-1)
        expected = -(laws * logits[head][rows].log_softmax(-1)).sum()
        assert (one.num_rows, float(one.loss)) == (len(rows), pytest.approx(float(expected), rel=1e-4))


def test_medusa_over_some_of_the_vocabulary_computes_the_frequent_ids_and_others(monkeypatch, target_dir):
    monkeypatch.setattr(medusa, "NUM_OTHERS", 5)
    target = load(target_dir)
    frequent = torch.tensor([3, 4, 9])
    recipe = MedusaRecipe(target, num_heads=2, frequent_ids=frequent)
    rows = [recipe._head_rows(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    assert torch.equal(rows[0][:3], target.head_weight[frequent])
    found = [int((target.head_weight == row).all(-1).nonzero()) for row in rows[0]]
    assert len(set(found)) == 8


def test_a_draft_model_is_that_of_the_runtime(tmp_path, target_dir):
    target = load(target_dir)
    recipe = recipe_of("draft_model", target_dir, target)
    weights = shaken(recipe)
    tokens, hidden = forward(target, ())
    recipe.save(tmp_path, weights)
    found = inspect(tmp_path, target_dir)
    assert (found.problems, found.num_layers) == ((), 3)
    _, drafted = forward(load(tmp_path), ())
    batch = Padded.of([Sample(tokens, NUM_PROMPT, hidden.last.clone(), None)], torch.float32, CPU)
    [one] = recipe.losses(weights, batch)
    rows = list(range(NUM_PROMPT, LENGTH - 1))
    laws = target.logits(hidden.last[rows].clone()).softmax(-1)
    embedding = target.head_weight.bfloat16().float()  # drafts are saved in bfloat16
    expected = -(laws * (drafted.last[rows] @ embedding.T).log_softmax(-1)).sum()
    assert (one.num_rows, float(one.loss)) == (len(rows), pytest.approx(float(expected), rel=3e-2))


def test_a_warm_start_takes_the_targets_last_layer_norm_and_head(target_dir):
    target = load(target_dir)
    start = recipe_of("eagle3", target_dir, target).initial(torch.Generator().manual_seed(0))
    source = CheckpointDir.open(target_dir)
    last = "model.layers.5."
    assert torch.equal(start["midlayer.mlp.up_proj.weight"], source.read(f"{last}mlp.up_proj.weight"))
    assert torch.equal(start["midlayer.self_attn.q_proj.weight"][:, 32:], source.read(f"{last}self_attn.q_proj.weight"))
    assert torch.equal(start["midlayer.hidden_norm.weight"], source.read(f"{last}input_layernorm.weight"))
    assert torch.equal(start["lm_head.weight"], target.head_weight[IDS])


def test_targets_of_other_families_get_a_layer_of_their_own(tmp_path):
    tiny.save_deepseek_v3(tmp_path / "target", num_hidden_layers=6)
    target = load(tmp_path / "target")
    checkpoint = CheckpointDir.open(tmp_path / "target")
    recipe = Eagle3Recipe(target, checkpoint, torch.arange(0, 97, 3), 2, NUM_POSITIONS)
    assert not recipe.is_warm
    (tmp_path / "out").mkdir()
    recipe.save(tmp_path / "out", recipe.initial(torch.Generator().manual_seed(0)))
    assert inspect(tmp_path / "out", tmp_path / "target").problems == ()
    load_feature_head("eagle3", tmp_path / "out", target, tmp_path / "target", NUM_POSITIONS)
    with pytest.raises(CapabilityError, match="Llama-like targets only"):
        MtpRecipe(target, checkpoint, 2, NUM_POSITIONS)


@pytest.mark.parametrize(("num_layers", "layers"), [(30, (2, 15, 27)), (6, (2, 3, 3)), (2, (0, 1, 2))])
def test_captured_layers_are_three_different_ones(num_layers, layers):
    found = captured_layers(num_layers)
    if len(set(layers)) == 3:
        assert found == layers
    assert len(set(found)) == 3
    assert list(found) == sorted(found)
    assert found[-1] <= num_layers
