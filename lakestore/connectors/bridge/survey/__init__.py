"""Surveys: what a bridge would do and meet, before anything is written: checks, plans, first files."""
