"""Checkers are held against hand-made histories, bad ones of every anomaly and good ones with unknown outcomes."""
