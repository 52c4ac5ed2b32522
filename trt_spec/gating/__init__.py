"""What `trt-spec gate` does around `latency.gate`: subjects to measure, options, and the result with its origin."""
