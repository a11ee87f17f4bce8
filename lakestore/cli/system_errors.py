"""Errors of the operating system as sentences that say what to do."""

from __future__ import annotations

import errno
from pathlib import Path

_SENTENCES = {
    errno.EEXIST: "{file} is there already: name another one, or remove it",
    errno.EISDIR: "{file} is a folder: name a file",
    errno.ENOTDIR: "{file} lies below a file, which is no folder: name another place",
    errno.EACCES: "this user may not read or write {file}: get the right, or name another place",
    errno.EPERM: "this user may not read or write {file}: get the right, or name another place",
    errno.EROFS: "{file} lies on a file system that takes no writes: name another place",
    errno.ENOSPC: "there is no room left for {file}: make room, or name another place",
    errno.EDQUOT: "the quota leaves no room for {file}: make room, or name another place",
    errno.EFBIG: "{file} would be larger than its file system takes: name another place",
    errno.ENAMETOOLONG: "{file} has too long a name: name a shorter one",
    errno.EMFILE: "this process has too many files open: raise its limit (ulimit -n)",
    errno.ENFILE: "this machine has too many files open: raise its limit",
}


def sentence(error: OSError) -> str:
    """The file and the rule, in the words of the command line."""
    file = str(error.filename) if error.filename is not None else "the output"
    if error.errno == errno.ENOENT and error.filename is not None:
        return _absent(Path(file))
    known = _SENTENCES.get(error.errno or 0)
    if known is not None:
        return known.format(file=file)
    what = error.strerror or str(error)
    return f"{file} cannot be used: {what}" if error.filename is not None else what


def _absent(file: Path) -> str:
    if not file.parent.is_dir():
        return f"the folder of {file} is not there: make it, or name another place"
    return f"there is no {file}: look at the name"
