"""`python -m trt_spec` is `trt-spec`."""

from trt_spec.cli import main

main()
