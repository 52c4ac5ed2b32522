"""`python -m trt_spec` is `trt-spec`."""

from trt_spec.cli.app import main

main()
