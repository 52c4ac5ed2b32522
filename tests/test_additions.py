"""What an addition takes: a file and one record; everything else follows from the record."""

from __future__ import annotations

import subprocess
import sys

ADDED = """
from trt_spec import methods

methods.ACCEPTANCE["mine"] = methods.Rule("mine", "is new", decide="trt_spec.runtime.acceptance:rejection")
methods.METHODS["repeat"] = methods.Method("repeat", "an echo", 1, (methods.Offer("torch", (), ("mine",)),))
methods.BUILD_TARGETS += ("dummy",)
methods.LINES["dummy"] = ()

from trt_spec.bench.kinds import Result
from trt_spec.config import capabilities
from trt_spec.config.schema import RunConfig
from trt_spec.runtime.acceptance import ACCEPTANCE_RULES, rejection

assert ACCEPTANCE_RULES["mine"].decide is rejection
run = {"name": "x", "target": {"checkpoint": "x"}}
capabilities.check(RunConfig.model_validate(run | {"speculation": {"method": "repeat", "acceptance": "mine"}}))
build = {"target": "dummy"}
refused = capabilities.problems(RunConfig.model_validate(run | {"speculation": {"method": "ngram"}, "build": build}))
print(refused[0].message, "|", refused[0].remedy)
print(Result().view().text)
"""


def test_a_method_a_rule_and_a_build_target_follow_from_their_records():
    told = subprocess.run([sys.executable, "-c", ADDED], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-2000:]
    assert "not offered" in told.stdout
    assert "set build.target to " in told.stdout
    assert told.stdout.endswith("{}\n")
