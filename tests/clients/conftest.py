"""The tiny engine in a real tritonserver, for the tests of its clients."""

from __future__ import annotations

from tests.triton.conftest import built, client, installation, server

__all__ = ["built", "client", "installation", "server"]  # fixtures
