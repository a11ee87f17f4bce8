"""Union reads: one plan, and its Arrow executor."""
