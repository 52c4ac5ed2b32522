"""`trt-spec tune`: from a run to its draft-length schedule, by measuring its engine or from given numbers."""
