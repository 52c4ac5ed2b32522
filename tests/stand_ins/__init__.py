"""Stand-ins for libraries that cannot be installed here; tests that need one put this folder on the path."""
