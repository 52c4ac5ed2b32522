"""`trt-spec verify`: which server, which reference, which prompts, and evidence that outlives a run.

The check itself is in `trt_spec.equivalence`; the pages are in `trt_spec.report`.
"""
