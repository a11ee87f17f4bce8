"""What is wrong with a YAML text, in a sentence of ours."""

from __future__ import annotations

import yaml


def sentence(error: yaml.YAMLError) -> str:
    """Line and problem, without the parser's drawing of the place."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return where + " ".join(str(problem).split())
