"""`make bench`: the figures of docs/benchmarks.md."""
