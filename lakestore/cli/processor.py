"""The processor, where numpy's fastest code for it is not the fastest.

On AMD's Zen 4 numpy sorts with AVX-512, one instruction of which that processor takes apart into a hundred: four times
as long as with AVX2, which numpy chooses when its environment tells it to, before it is imported.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

_CHOICE = "NPY_DISABLE_CPU_FEATURES"
_AVX512 = "AVX512F X86_V4 AVX512_ICL AVX512_SPR"
"""By the names of numpy before 2.4, and since then."""
_ZEN_4 = {"vendor_id": "AuthenticAMD", "cpu family": "25"}
"""The family of Zen 3 too, which has no AVX-512; Zen 5 is another one, and fast."""
_PROCESSORS = Path("/proc/cpuinfo")


def spare_slow_sorts(processors: Path = _PROCESSORS) -> None:
    """Let numpy, which is imported later, and that of processes begun here, sort with AVX2 where that is faster."""
    if _CHOICE not in os.environ and "numpy" not in sys.modules and _is_zen_4(processors):
        os.environ[_CHOICE] = _AVX512


def _is_zen_4(processors: Path) -> bool:
    try:
        first = processors.read_text().partition("\n\n")[0]
    except OSError:  # not Linux
        return False
    told = dict(re.findall(r"^(\w[\w ]*\w)\s*: (.*)$", first, re.MULTILINE))
    return told.items() >= _ZEN_4.items() and "avx512f" in told.get("flags", "").split()
