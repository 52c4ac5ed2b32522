"""Features are what the serving forward gives, and a pass over them sees every sample once."""

from __future__ import annotations

import pytest
import torch

from tests.training.tools import FixedCorpus, load, make_target
from trt_spec.errors import CheckpointError
from trt_spec.runtime.batch import Rows, pack
from trt_spec.training import feature_cache
from trt_spec.training.feature_cache import FeatureCache, batches

CAPTURE = (1, 3, 6)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return load(make_target(tmp_path_factory.mktemp("target") / "t"))


def quiet(done, wanted):
    pass


@pytest.fixture
def cache(tmp_path, target, monkeypatch):
    monkeypatch.setattr(feature_cache, "BATCH_TOKENS", 40)
    cache = FeatureCache(tmp_path / "features", FixedCorpus(), CAPTURE)
    cache.write(target, 2, quiet)
    return cache


def test_features_are_those_of_a_forward_of_each_conversation(cache, target):
    for index in range(2):
        for one, sample in zip(cache.corpus.read(index), cache.read(index), strict=True):
            ids = one.prompt_ids + one.reply_ids
            rows = pack([Rows(0, 0, ids)], len(ids), target.dtype, target.device)
            with torch.inference_mode():
                hidden = target.forward(rows, target.make_cache(1, len(ids)), CAPTURE)
            assert (sample.token_ids.tolist(), sample.num_prompt) == (ids, len(one.prompt_ids))
            assert torch.allclose(sample.last, hidden.last, atol=1e-4)
            assert torch.allclose(sample.aux, hidden.aux, atol=1e-4)


def test_only_missing_shards_are_computed(cache, target):
    kept = cache.shard_path(0).stat().st_mtime_ns
    cache.shard_path(1).unlink()
    cache.write(target, 2, quiet)
    assert cache.shard_path(0).stat().st_mtime_ns == kept
    assert cache.shard_path(1).is_file()


def test_a_pass_sees_every_sample_once_in_an_order_of_its_own(cache):
    def order(seed: str) -> list[tuple[int, ...]]:
        found = [one for batch in batches(cache, range(2), 40, seed) for one in batch]
        return [tuple(one.token_ids.tolist()) for one in found]

    all_of_them = [tuple(one.token_ids.tolist()) for index in range(2) for one in cache.read(index)]
    assert sorted(order("a")) == sorted(all_of_them)
    assert order("a") == order("a") != order("b")
    for batch in batches(cache, range(2), 40, "a"):
        assert len(batch) == 1 or len(batch) * max(map(len, batch)) <= 40


def test_the_last_state_alone_is_read_from_a_cache_that_has_more(cache):
    assert all(one.aux is None for one in FeatureCache(cache.directory, cache.corpus).read(0))


def test_a_damaged_file_says_what_to_remove(cache):
    path = cache.shard_path(0)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="damaged") as error:
        cache.read(0)
    assert str(path) in error.value.remedy
