"""Short calls in process visit few modules: an upsert, look-ups of one key and of two, a batch of changes."""

from __future__ import annotations

from tests.support.row_path import BARS, Walk, too_long, walks


def test_short_calls_keep_their_bars() -> None:
    measured = walks()
    assert set(measured) == set(BARS)
    assert all(walk.calls for walk in measured.values())
    assert too_long(measured) == []


def test_a_call_beyond_its_bar_is_named() -> None:
    modules, crossings = BARS["lookup"]
    walk = Walk()
    walk.modules.update(dict.fromkeys(f"module_{number}.py" for number in range(modules)))
    walk.crossings["a.py", "b.py"] = crossings
    assert too_long({"lookup": walk}) == []
    walk.modules["planted.py"] = None
    walk.crossings["b.py", "planted.py"] += 1
    assert too_long({"lookup": walk}) == [
        f"lookup: {modules + 1} modules are more than {modules}",
        f"lookup: {crossings + 1} crossings are more than {crossings}",
    ]
