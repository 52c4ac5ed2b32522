"""An HTTP front in OpenAI's format for the served model: it checks, translates, and forwards over gRPC."""
