"""The corpus: what it holds, that it is the target's own text, and that it goes on where it was stopped."""

from __future__ import annotations

import json

import pytest
import torch

from tests.training.tools import SETTINGS, make_target, plain_engine, writer
from trt_spec.checkpoints.tokenizer import Tokenizer
from trt_spec.errors import CheckpointError, RequestError
from trt_spec.runtime.batch import Rows, pack
from trt_spec.runtime.request import Request, SamplingParams
from trt_spec.training.chat import ChatFormat, read_prompts
from trt_spec.training.corpus import Corpus
from trt_spec.training.prompts import HELD_OUT, seed_prompt


@pytest.fixture(scope="module")
def target_dir(tmp_path_factory):
    return make_target(tmp_path_factory.mktemp("target") / "t")


def quiet(done, wanted):
    pass


def test_a_corpus_is_replies_of_the_target(tmp_path, target_dir):
    made = writer(tmp_path, target_dir)
    num_shards = made.write(60, quiet)
    found = [one for index in range(num_shards) for one in made.corpus.read(index)]
    assert sum(len(one.reply_ids) for one in found) >= 60
    assert {one.temperature for one in found} == {0.0, 0.7, 1.0}
    greedy = [one for one in found if one.temperature == 0.0]
    engine = plain_engine(target_dir)
    for one in greedy:
        params = SamplingParams(max_tokens=SETTINGS.max_reply_tokens)
        [again] = engine.generate([Request("again", tuple(one.prompt_ids), params)])
        assert again.token_ids == one.reply_ids
    # The others are drawn from the whole law: over some hundred tokens, unlikely ones come too.
    target, ranks = engine.target, []
    for one in [one for one in found if one.temperature == 1.0]:
        ids = one.prompt_ids + one.reply_ids
        with torch.inference_mode():
            rows = pack([Rows(0, 0, ids)], len(ids), target.dtype, target.device)
            logits = target.logits(target.forward(rows, target.make_cache(1, len(ids))).last)
        laws = logits[len(one.prompt_ids) - 1 : -1]
        ranks += (laws > laws.gather(1, torch.tensor(one.reply_ids)[:, None])).sum(-1).tolist()
    assert max(ranks) > 10
    chat = ChatFormat(Tokenizer.load(target_dir))
    for one in found:
        assert one.prompt_ids[: len(chat.opening)] == chat.opening
        assert one.prompt_ids[-len(chat.closing) :] == chat.closing
        assert len(one.prompt_ids) <= SETTINGS.max_prompt_tokens


def test_the_target_writes_prompts_too(tmp_path, target_dir):
    """A random target ends a turn in time only by chance: with all prompts its own, some are kept, and none repeat."""
    from dataclasses import replace

    settings = replace(SETTINGS, self_written=1.0, shard_size=60)
    made = writer(tmp_path, target_dir, settings=settings)
    made.write(1, quiet)
    found = made.corpus.read(0)
    assert found
    assert {one.source for one in found} == {"self"}
    assert len({tuple(one.prompt_ids) for one in found}) == len(found)


def test_what_is_there_is_kept_and_the_rest_is_added(tmp_path, target_dir):
    first = writer(tmp_path / "a", target_dir)
    first.write(60, quiet)
    before = {path.name: path.read_text() for path in (tmp_path / "a").iterdir()}
    grown = writer(tmp_path / "a", target_dir)
    num_shards = grown.write(200, quiet)
    assert num_shards > len(before) - 2
    assert grown.corpus.num_shards(200) is not None
    for name, text in before.items():
        assert (tmp_path / "a" / name).read_text() == text


def test_a_shard_that_was_lost_is_written_again_alike(tmp_path, target_dir):
    made = writer(tmp_path, target_dir)
    made.write(60, quiet)
    path = made.corpus.shard_path(0)
    text = path.read_text()
    path.unlink()
    writer(tmp_path, target_dir).write(60, quiet)
    assert [json.loads(line)["prompt_ids"] for line in path.read_text().splitlines()] == [
        json.loads(line)["prompt_ids"] for line in text.splitlines()
    ]


def test_a_stopped_writer_leaves_whole_shards_alone(tmp_path, target_dir):
    class Stopped(Exception):
        pass

    def stop(done, wanted):
        if done > 0:
            raise Stopped

    made = writer(tmp_path, target_dir)
    with pytest.raises(Stopped):
        made.write(500, stop)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["shard-00000.jsonl"]
    assert made.corpus.num_shards(500) is None
    assert writer(tmp_path, target_dir).write(100, quiet) >= 2


def test_given_prompts_are_used_and_long_ones_left_out(tmp_path, target_dir):
    prompts = ["the cat", "the dog", "x " * 200]
    made = writer(tmp_path, target_dir, prompts)
    made.write(60, quiet)
    chat = ChatFormat(Tokenizer.load(target_dir))
    wanted = {tuple(chat.prompt(text)) for text in prompts[:2]}
    found = made.corpus.read(0)
    assert {tuple(one.prompt_ids) for one in found} == wanted
    assert {one.source for one in found} == {"file"}
    with pytest.raises(RequestError, match="too long"):
        writer(tmp_path, target_dir, ["x " * 200])


@pytest.mark.parametrize("message", ["the cat", " the cat ", "{{ x }} <b>\n\nthe café"])
def test_prompts_are_what_the_template_makes(target_dir, message):
    tokenizer = Tokenizer.load(target_dir)
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": message}])
    assert ChatFormat(tokenizer).prompt(message) == tokenizer.encode(rendered, add_special_tokens=False)


def test_settings_name_the_corpus():
    from dataclasses import replace

    digests = {SETTINGS.digest(), replace(SETTINGS, seed=1).digest(), replace(SETTINGS, temperatures=(0.0,)).digest()}
    assert len(digests) == 3


@pytest.mark.parametrize(
    "line", ['"one"', '{"prompt": "one"}', '{"text": "one"}', '{"messages": [{"role": "user", "content": "one"}]}']
)
def test_prompts_from_a_file(tmp_path, line):
    (tmp_path / "p.jsonl").write_text(f"{line}\n\n{line}\n")
    assert read_prompts(tmp_path / "p.jsonl") == ["one", "one"]


@pytest.mark.parametrize(
    ("text", "where"),
    [('{"prompt": 3}', ":1"), ('"a"\n{', ":2"), ('"  "', ":1"), ('{"messages": [{"role": "system"}]}', ":1"), ("", "")],
)
def test_files_that_hold_no_prompts(tmp_path, text, where):
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(RequestError) as error:
        read_prompts(path)
    assert error.value.where == f"{path}{where}"


def test_a_damaged_shard_says_what_to_remove(tmp_path):
    corpus = Corpus(tmp_path, SETTINGS)
    corpus.shard_path(0).write_text('{"prompt_ids": [1]}\n')
    with pytest.raises(CheckpointError, match="damaged") as error:
        corpus.read(0)
    assert str(corpus.shard_path(0)) in error.value.remedy


def test_seeds_vary_and_held_out_prompts_are_not_among_them():
    import random

    drawn = {seed_prompt(random.Random(index)) for index in range(4000)}
    assert len(drawn) > 2500
    assert not drawn & set(HELD_OUT)
    assert len(set(HELD_OUT)) == len(HELD_OUT) >= 40
