"""Keys of presented cuts: the same cut the same id and ETag, any other cut others."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lakestore_server.snapshots.cut_key import ID_MAX, CutKey, is_same

KEYS = st.builds(
    CutKey,
    timeline=st.sampled_from(["a", "b"]),
    table_uuid=st.sampled_from(["t", "u"]),
    schema_id=st.integers(0, 2),
    base_snapshot_id=st.integers(0, 2),
    heads=st.lists(st.integers(0, 3), min_size=1, max_size=2).map(tuple),
    format_version=st.sampled_from([2, 3]),
)
KEY = CutKey("a", "t", 0, 0, (1, 2), 2)


@given(KEYS, KEYS)
def test_ids_and_etags_tell_cuts_apart(one: CutKey, other: CutKey) -> None:
    assert 1 <= one.snapshot_id <= ID_MAX
    assert (one.snapshot_id == other.snapshot_id) == (one == other)
    assert (one.etag("m") == other.etag("m")) == (one == other)


def test_an_etag_is_of_the_files_too() -> None:
    assert KEY.etag("m") != KEY.etag("n")
    assert KEY.snapshot_id == replace(KEY).snapshot_id


def test_if_none_match_is_a_list_of_etags() -> None:
    etag = KEY.etag("m")
    assert is_same(etag, etag)
    assert is_same(f'"x", W/{etag}', etag)
    assert is_same("*", etag)
    assert not is_same('"x"', etag)
    assert not is_same("", etag)
