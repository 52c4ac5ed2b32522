"""Imported by the model.py of a repository that an earlier version emitted, and by nothing here."""

from trt_spec.triton.emitted import outdated

raise outdated()
