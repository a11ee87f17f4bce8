"""Lanes: a cluster's records on their way to the lake: consumer, batches, three stages, commits, figures."""
