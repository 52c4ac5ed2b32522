"""Every draft head against an independent forward of its own layout, packed as the engine packs it.

In one go, in chunks, ragged, and as levels of a tree. Tolerance: float32 sums in another order over one layer with
outputs below 100; `test_references_are_sensitive` shows that a token, a feature, a position or a mask that is wrong
changes them by far more.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests import tiny
from tests.runtime import head_references as reference
from tests.runtime.head_cases import (
    EAGLE,
    EAGLE3,
    IDS,
    LAYER,
    MAX_GAP,
    MTP,
    NUM_POSITIONS,
    Case,
    assert_close,
    deepseek_target,
    draft,
    eagle3_case,
    eagle_case,
    expected,
    load,
    load_head,
    mimo_target,
    mtp_case,
    random_pairs,
    run,
    stored,
)
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.heads import MedusaHeads
from trt_spec.runtime.models import Hidden

PARENTS = (-1, -1, 0, 0, 1, 4, 2)  # two roots, a fork, and a path of three under each


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory) -> Path:
    return tiny.llama_checkpoint(tmp_path_factory.mktemp("target") / "target")


@pytest.fixture(scope="module")
def target(target_dir):
    return load(target_dir)


CASES = [*(f"eagle/{name}" for name in EAGLE), *(f"eagle3/{name}" for name in EAGLE3), *(f"mtp/{name}" for name in MTP)]


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory, target, target_dir) -> Case:
    method, name = request.param.split("/")
    directory = tmp_path_factory.mktemp("draft") / name
    if method == "eagle":
        return eagle_case(directory, target, target_dir, name)
    return eagle3_case(directory, target, target_dir, name) if method == "eagle3" else mtp_case(directory, name)


def test_whole_sequence(case):
    features, tokens = random_pairs(case.head, 40)
    cache = case.head.make_cache(1, NUM_POSITIONS)
    assert cache.rows.shape[0] == case.head.num_layers
    actual = run(case, cache, [Rows(0, 0, tokens)], features)
    assert_close(actual, expected(case, features, tokens))
    assert actual[1].dtype is torch.float32
    assert cache.layers[case.layer][:40].abs().amax(-1).min() > 0


def test_references_are_sensitive(case):
    """The last output depends on the first feature, the first token and their order, by far more than the tolerance."""
    features, tokens = random_pairs(case.head, 40)
    last = expected(case, features, tokens)[0][-1]
    other = features.clone()
    other[0] = -other[0]
    swapped = torch.cat((features[:-3], features[[-2, -3, -1]]))
    for changed in (
        expected(case, other, tokens),
        expected(case, features, [(tokens[0] + 1) % 90, *tokens[1:]]),
        expected(case, swapped, [*tokens[:-3], tokens[-2], tokens[-3], tokens[-1]]),
    ):
        assert (changed[0][-1] - last).abs().max() > 10 * MAX_GAP


def test_chunks(case):
    features, tokens = random_pairs(case.head, 84)
    cache, start, parts = case.head.make_cache(1, NUM_POSITIONS), 0, []
    for size in (7, 1, 66, 10):
        parts.append(run(case, cache, [Rows(0, start, tokens[start : start + size])], features[start : start + size]))
        start += size
    actual = tuple(torch.cat(part) for part in zip(*parts, strict=True))
    assert_close(actual, expected(case, features, tokens))


def test_ragged_batch(case):
    """Three sequences of different length are read in one forward, then go on together with 1 to 3 pairs each."""
    sequences = [random_pairs(case.head, length + 6, seed=length) for length in (5, 17, 30)]
    cache, cached = case.head.make_cache(3, NUM_POSITIONS), [0, 0, 0]
    parts = [[], [], []]
    for counts in ((5, 17, 30), (1, 1, 1), (2, 1, 3), (3, 3, 2)):
        rows = [
            Rows(slot, cached[slot], sequences[slot][1][cached[slot] : cached[slot] + count])
            for slot, count in enumerate(counts)
        ]
        features = torch.cat(
            [sequences[slot][0][cached[slot] : cached[slot] + count] for slot, count in enumerate(counts)]
        )
        for slot, part in enumerate(zip(*(t.split(counts) for t in run(case, cache, rows, features)), strict=True)):
            parts[slot].append(part)
            cached[slot] += counts[slot]
    for (features, tokens), found, end in zip(sequences, parts, cached, strict=True):
        actual = tuple(torch.cat(part) for part in zip(*found, strict=True))
        assert_close(actual, expected(case, features[:end], tokens[:end]))


def tree_pairs(features: Tensor, tokens: Sequence[int], num_before: int) -> reference.Pairs:
    """The pairs of a prefix, then of tree nodes that see the prefix, their ancestors and themselves."""
    count = len(tokens)
    visible = torch.ones(count, count, dtype=torch.bool).tril()
    visible[num_before:, num_before:] = False
    positions = list(range(num_before))
    for node, parent in enumerate(PARENTS):
        visible[num_before + node, num_before + node] = True
        depth = 0
        while parent >= 0:
            visible[num_before + node, num_before + parent] = True
            depth, parent = depth + 1, PARENTS[parent]
        positions.append(num_before + depth)
    return reference.Pairs(features, torch.tensor(tokens), torch.tensor(positions), visible)


@pytest.mark.parametrize("by_level", [False, True], ids=["at-once", "level-by-level"])
def test_tree(case, by_level):
    """A tree of drafts behind a prefix, beside a chain of another sequence."""
    before, nodes = 12, len(PARENTS)
    features, tokens = random_pairs(case.head, before + nodes)
    chain_features, chain = random_pairs(case.head, 20 + 3, seed=9)
    cache = case.head.make_cache(2, NUM_POSITIONS)
    run(
        case,
        cache,
        [Rows(0, 0, tokens[:before]), Rows(1, 0, chain[:20])],
        torch.cat((features[:before], chain_features[:20])),
    )
    levels = [nodes] if not by_level else [2, 3, 1, 1]
    outputs, fed = [], 0
    for level, size in enumerate(levels):
        rows = [Rows(0, before, tokens[before + fed : before + fed + size], PARENTS[: fed + size], fed)]
        batch_features = [features[before + fed : before + fed + size]]
        if level < 3:
            rows.append(Rows(1, 20 + level, [chain[20 + level]]))
            batch_features.append(chain_features[20 + level : 21 + level])
        actual = run(case, cache, rows, torch.cat(batch_features))
        outputs.append(tuple(part[:size] for part in actual))
        if level < 3:
            end = 21 + level
            wanted = expected(case, chain_features[:end], chain[:end])
            assert_close(tuple(part[size:] for part in actual), tuple(part[-1:] for part in wanted))
        fed += size
    pairs = tree_pairs(features, tokens, before)
    wanted = tuple(part[before:] for part in case.reference(pairs))
    assert_close(tuple(torch.cat(part) for part in zip(*outputs, strict=True)), wanted)
    as_a_chain = case.reference(pairs._replace(visible=torch.ones_like(pairs.visible).tril()))[0][before:]
    assert (as_a_chain - wanted[0])[2:].abs().max() > 10 * MAX_GAP


# ---- features, captured layers, limits, sharing, dtypes ----


@pytest.mark.parametrize("name", ["midlayer", "fc-bias", "narrow", "norm-before-fc", "norm-of-each"])
def test_eagle3_fuses_the_captured_states(tmp_path, target, target_dir, name):
    head = eagle3_case(tmp_path / "draft", target, target_dir, name).head
    tensors = stored(tmp_path / "draft")
    aux = torch.randn(5, 96)
    states = aux
    if name == "norm-before-fc":
        states = reference.rms(aux, tensors["input_norm.weight"], 1e-5)
    elif name == "norm-of-each":
        parts = [aux[:, 32 * i : 32 * i + 32] for i in range(3)]
        states = torch.cat(
            [reference.rms(part, tensors[f"fc_norm.{i}.weight"], 1e-5) for i, part in enumerate(parts)], dim=-1
        )
    wanted = states @ tensors["fc.weight"].T + tensors.get("fc.bias", 0.0)
    assert (head.target_features(Hidden(torch.zeros(5, 32), aux)) - wanted).abs().max() <= MAX_GAP


def test_the_others_take_the_state_behind_the_final_norm(tmp_path, target, target_dir):
    hidden = Hidden(torch.randn(5, 32))
    mimo_target(tmp_path / "mimo")
    for head in (
        eagle_case(tmp_path / "draft", target, target_dir, "layers.0").head,
        load_head("mtp", None, load(tmp_path / "mimo"), tmp_path / "mimo"),
    ):
        assert (head.capture, head.num_layers) == ((), 1)
        assert torch.equal(head.target_features(hidden), hidden.last)


@pytest.mark.parametrize(
    ("config", "num_layers", "captured"),
    [
        (IDS, 2, (0, 1, 2)),  # under eagle_config: outputs, −1 is the embedding
        ({"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "eagle_config": None}, 2, (0, 1, 2)),  # inputs
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [6, 1, 3]}}, 8, (2, 4, 7)),
        ({"eagle_config": {}}, 8, (2, 4, 5)),
        ({"eagle_config": None}, 7, (2, 3, 4)),
    ],
)
def test_captured_layers(tmp_path, config, num_layers, captured):
    directory = tiny.llama_checkpoint(tmp_path / "target", num_hidden_layers=num_layers)
    draft(tmp_path / "draft", tiny.eagle3_shapes(), tensors=tiny.vocabulary_maps(), **config)
    head = load_head("eagle3", tmp_path / "draft", load(directory), directory)
    assert head.capture == captured


def test_captured_states_are_those_of_transformers(tmp_path, target, target_dir):
    """From tokens to features: what the target's forward captures is what fc was trained on."""
    from transformers import AutoModelForCausalLM

    head = eagle3_case(tmp_path / "draft", target, target_dir, "midlayer").head
    tokens = list(range(30))
    batch = pack([Rows(0, 0, tokens)], NUM_POSITIONS, target.dtype, target.device)
    with torch.inference_mode():
        hidden = target.forward(batch, target.make_cache(1, NUM_POSITIONS), head.capture)
        model = AutoModelForCausalLM.from_pretrained(target_dir, dtype=torch.float32)
        states = model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False).hidden_states
    streams = [states[0], states[1], hidden.aux[None, :, 64:]]  # transformers norms the last one before giving it
    wanted = torch.cat(streams, dim=-1)[0] @ stored(tmp_path / "draft")["fc.weight"].T
    assert (head.target_features(hidden) - wanted).abs().max() <= MAX_GAP
    assert (target.norm(hidden.aux[:, 64:]) - states[2][0]).abs().max() <= MAX_GAP


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({}, 96),
        ({"max_position_embeddings": None}, 2048),
        ({"sliding_window": 40}, 40),
        ({"sliding_window": 40, "use_sliding_window": False}, 96),
        ({"sliding_window": 40, "layer_types": ["full_attention"]}, 96),
    ],
)
def test_drafting_ends_where_the_draft_was_made_for(tmp_path, target, target_dir, config, limit):
    draft(tmp_path, tiny.eagle_shapes(), **config)
    assert load_head("eagle", tmp_path, target, target_dir).max_positions == limit


def test_a_draft_layer_keeps_its_own_geometry_on_a_target_with_latent_attention(tmp_path):
    """EAGLE-3 for DeepSeek-V3: the draft layer is Llama-like, whatever the target's layers are."""
    deepseek_target(tmp_path / "target")
    model = load(tmp_path / "target")
    shapes, maps = tiny.eagle3_shapes(vocab=97, draft_vocab=24), tiny.vocabulary_maps(97, 24)
    tensors = draft(tmp_path / "draft", shapes, tensors=maps, **IDS)
    head = load_head("eagle3", tmp_path / "draft", model, tmp_path / "target")
    case = Case(head, reference.eagle3(tensors, stored(tmp_path / "target"), LAYER, name="midlayer"))
    batch = pack([Rows(0, 0, list(range(20)))], NUM_POSITIONS, model.dtype, model.device)
    with torch.inference_mode():
        hidden = model.forward(batch, model.make_cache(1, NUM_POSITIONS), head.capture)
        features, tokens = head.target_features(hidden)[:-1], list(range(1, 20))
    actual = run(case, head.make_cache(1, NUM_POSITIONS), [Rows(0, 0, tokens)], features)
    assert actual[1].shape == (19, 97)
    assert_close(actual, expected(case, features, tokens))


def test_equal_copies_are_not_kept_twice(tmp_path, target, target_dir):
    copies = {"embed_tokens.weight": target.embedding.clone(), "lm_head.weight": target.head_weight.clone()}
    draft(tmp_path / "eagle", tiny.eagle_shapes(), drop=["embed_tokens.weight"], tensors=copies)
    head = load_head("eagle", tmp_path / "eagle", target, target_dir)
    assert head.embedding is target.embedding
    assert head.head == target.logits
    deepseek_target(tmp_path / "deepseek", copies="equal")
    model = load(tmp_path / "deepseek")
    [layer] = load_head("mtp", None, model, tmp_path / "deepseek").layers
    assert layer.embedding is model.embedding
    assert layer.head == model.logits


def test_a_tied_target_shares_its_embedding_as_head(tmp_path):
    directory = tiny.llama_checkpoint(tmp_path / "target", tie_word_embeddings=True)
    draft(tmp_path / "draft", tiny.eagle_shapes(), drop=["embed_tokens.weight"])
    model = load(directory)
    head = load_head("eagle", tmp_path / "draft", model, directory)
    features = torch.randn(3, 32)
    assert torch.equal(head.logits(features), model.logits(features))


def test_padding_of_the_vocabularies_may_differ(tmp_path):
    """The tokenizer has 315 ids: a draft of 318 rows fits a target of 320 or 316, and never drafts what it lacks."""
    for vocab in (320, 316):
        directory = tiny.llama_checkpoint(tmp_path / f"target{vocab}", vocab_size=vocab)
        draft(tmp_path / f"eagle{vocab}", tiny.eagle_shapes(vocab=318), add={"lm_head.weight": (318, 32)})
        head = load_head("eagle", tmp_path / f"eagle{vocab}", load(directory), directory)
        logits = head.logits(torch.randn(2, 32))
        assert logits.shape == (2, vocab)
        assert logits.isinf().any(0).nonzero().flatten().tolist() == list(range(318, vocab))
        assert len(head.embedding) >= vocab


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dtypes(tmp_path, target_dir, dtype):
    """The head follows the target's type; maps stay integers, logits are float32, DeepSeek's router keeps float32."""
    target = load(target_dir, dtype)
    draft(tmp_path / "eagle3", tiny.eagle3_shapes(), tensors=tiny.vocabulary_maps(), **IDS)
    head = load_head("eagle3", tmp_path / "eagle3", target, target_dir)
    narrow = load_head("eagle3", tmp_path / "eagle3", load(target_dir), target_dir)
    features, tokens = random_pairs(narrow, 20)
    wanted = run(Case(narrow, None), narrow.make_cache(1, 32), [Rows(0, 0, tokens)], features)
    actual = run(Case(head, None), head.make_cache(1, 32), [Rows(0, 0, tokens)], features.to(target.activation_dtype))
    assert (actual[0].dtype, actual[1].dtype) == (target.activation_dtype, torch.promote_types(dtype, torch.float32))
    assert torch.equal(actual[1].isinf(), wanted[1].isinf())
    gap = (actual[0] - wanted[0]).pow(2).mean().sqrt() / wanted[0].std()
    assert gap < (0.05 if dtype is torch.bfloat16 else 1e-4)  # 8 bits of mantissa, some 10 roundings in a row
    deepseek_target(tmp_path / "deepseek")
    [layer] = load_head("mtp", None, load(tmp_path / "deepseek", dtype), tmp_path / "deepseek").layers
    assert layer.layer.mlp.router.weight.dtype is torch.promote_types(dtype, torch.float32)


# ---- Medusa ----

SEQUENTIAL = ("{prefix}{head}.{block}.linear.{part}", "{prefix}{head}.{blocks}.weight")
MEDUSA = {
    "trainer": (*SEQUENTIAL, "", 1),
    "two-blocks": (*SEQUENTIAL, "", 2),
    "medusa_head": (*SEQUENTIAL, "medusa_head.", 1),
    "three-blocks-of-vllm": ("blocks.{head}.layers.{block}.{part}", "lm_heads.{head}.weight", "", 3),
    "tensorrt-llm": (
        "medusa_heads.{head}.medusa_layers.{block}.linear.{part}",
        "medusa_heads.{head}.lm_head.weight",
        "",
        2,
    ),
}


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("has_bias", [True, False, None], ids=["bias", "no-bias", "some-bias"])
@pytest.mark.parametrize("layout", MEDUSA)
def test_medusa(tmp_path, target, target_dir, layout, has_bias, suffix):
    block_name, output_name, prefix, num_blocks = MEDUSA[layout]

    def names(head: int, block: int) -> tuple[str, str]:
        return tuple(block_name.format(prefix=prefix, head=head, block=block, part=part) for part in ("weight", "bias"))

    def output(head: int) -> str:
        return output_name.format(prefix=prefix, head=head, blocks=num_blocks)

    shapes = {}
    for head in range(3):
        for block in range(num_blocks):
            weight, bias = names(head, block)
            shapes[weight] = (32, 32)
            if has_bias or (has_bias is None and head == 1):
                shapes[bias] = (32,)
        shapes[output(head)] = (320, 32)
    tensors = tiny.random_tensors(shapes, 0, torch.float32)
    if suffix == ".pt":
        torch.save(tensors, tmp_path / "medusa_lm_head.pt")
    else:
        save_file(tensors, tmp_path / "medusa_lm_head.safetensors")
    tiny.write_json(tmp_path / "config.json", {"medusa_num_heads": 5, "medusa_num_layers": 1})  # the tensors count
    heads = load_head("medusa", tmp_path, target, target_dir)
    assert isinstance(heads, MedusaHeads)
    assert heads.num_heads == 3
    hidden = torch.randn(7, 32)
    logits = heads.logits(hidden)
    assert (logits.shape, logits.dtype) == ((3, 7, 320), torch.float32)
    assert (logits - reference.medusa(tensors, hidden, names, output)).abs().max() <= MAX_GAP
    assert (logits[0] - logits[1]).abs().max() > 10 * MAX_GAP
    assert torch.equal(heads.logits(hidden, 2), logits[:2])


def test_medusa_heads_that_share_the_targets_output(tmp_path, target, target_dir):
    shapes = {name: shape for name, shape in tiny.medusa_shapes(num_blocks=2).items() if "linear" in name}
    tiny.save_draft(tmp_path, shapes)
    hidden = torch.randn(5, 32)
    tensors = stored(tmp_path)
    heads = load_head("medusa", tmp_path, target, target_dir)
    assert heads.logits(hidden, 1).shape == (1, 5, 320)
    for head, logits in enumerate(heads.logits(hidden)):
        x = hidden
        for block in range(2):
            name = f"{head}.{block}.linear"
            x = x + torch.nn.functional.silu(x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"])
        assert (logits - x @ target.head_weight.T).abs().max() <= MAX_GAP


def test_medusa_heads_of_another_padding(tmp_path, target, target_dir):
    tiny.save_draft(tmp_path, tiny.medusa_shapes(vocab=316))
    logits = load_head("medusa", tmp_path, target, target_dir).logits(torch.randn(2, 32))
    assert logits.isinf().flatten(0, 1).any(0).nonzero().flatten().tolist() == [316, 317, 318, 319]
