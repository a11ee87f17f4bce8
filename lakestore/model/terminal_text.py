"""Escapes other people's names, rows and errors for a terminal."""

from __future__ import annotations

import re

_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks, embeddings, overrides and isolates of text direction
    "\u2028\u2029\ud800-\udfff]"  # separators of lines and paragraphs, lone surrogates
)


def terminal_text(text: str) -> str:
    r"""Escape control characters, such as `\x1b`; tabs and newlines stay."""
    return _CONTROLS.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
