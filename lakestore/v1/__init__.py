"""Generated from proto/; see the Makefile."""
