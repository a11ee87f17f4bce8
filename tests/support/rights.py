"""An auth file with a few principals, their tokens in clear for the test alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lakestore_server.access.principals import TOKEN_PREFIX, hash_of

Grants = Mapping[str, Sequence[str]]
"""Pattern to rights."""


def token_of(name: str) -> str:
    """The token of a principal of a test; long and plain to see in any output."""
    return f"{TOKEN_PREFIX}secret{name}{'s3cr3t' * 6}"


def write_auth(file: Path, principals: Mapping[str, Grants], **fields: Mapping[str, Any]) -> Path:
    """Write an auth file that only its owner may read; `fields` adds to a principal's entry."""
    content = {
        name: {
            "tokens": [{"sha256": hash_of(token_of(name))}],
            "grants": [{"rights": list(rights), "tables": [pattern]} for pattern, rights in grants.items()],
            **fields.get(name, {}),
        }
        for name, grants in principals.items()
    }
    new = file.with_suffix(".new")
    new.touch(0o600)
    new.write_text(yaml.safe_dump({"principals": content}))
    os.replace(new, file)
    return file
