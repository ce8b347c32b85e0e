"""Entries that were deleted before they were read, found by XINFO STREAM of each Redis version."""

from collections import deque

import pytest

from cortext_live.core.redis_streams import read_info
from cortext_live.lm_server.position import StreamPosition, n_lost, was_trimmed


def reply(first, last, **newer):
    """A reply of XINFO STREAM.

    Redis 5 and 6 have neither `entries-added` nor `max-deleted-entry-id`.
    """
    entry = None if first is None else (first, {b"logits": b""})
    return {"length": 1, "last-generated-id": last, "groups": 0, "first-entry": entry} | newer


OLD, NEW = {}, {"entries-added": 30, "max-deleted-entry-id": b"0-0"}


@pytest.mark.parametrize(
    ("newer", "first", "n_read", "n_waiting", "n_held", "expected"),
    [
        (NEW, b"1-0", 20, 10, 5, 0),  # ten wait
        (NEW, b"25-0", 20, 10, 5, 0),  # others have deleted what was read: nothing is lost
        (NEW, b"25-0", 20, 7, 5, 3),
        (NEW, None, 20, 0, 5, 10),
        (NEW, b"25-0", 500, 5, 0, 0),  # deleted between utterances, and begun anew
        # 26 were read of this utterance, and the stream has had 25 of them.
        (
            NEW,
            b"25-0",
            500,
            5,
            26,
            -1,
        ),
        (OLD, b"20-0", 20, 10, 5, 0),  # the last that was read is there
        (OLD, b"3-0", 20, 10, 5, 0),
        (OLD, b"21-0", 20, 10, 5, -1),  # it is gone, and later ones came: some may be gone, too
        (OLD, None, 20, 0, 5, -1),
    ],
)
def test_entries_that_were_deleted_unread_are_counted_where_redis_counts(
    newer, first, n_read, n_waiting, n_held, expected
):
    place = StreamPosition(
        after=(20, 0), n_read=n_read, known=(20, 0), held=deque([((20, 0), 1)] * n_held)
    )
    assert n_lost(read_info(reply(first, b"30-0", **newer)), place, n_waiting) == expected


@pytest.mark.parametrize(
    ("known", "first", "last", "newer", "expected"),
    [
        (None, b"25-0", b"30-0", {}, False),  # nothing was read that could be gone
        ((20, 0), None, b"20-0", {}, False),  # nothing came after it
        # Ours, before the position.
        (
            (20, 0),
            b"20-0",
            b"30-0",
            {"max-deleted-entry-id": b"19-0"},
            False,
        ),
        ((20, 0), b"20-0", b"30-0", {"max-deleted-entry-id": b"22-0"}, True),
        ((20, 0), b"25-0", b"30-0", {"max-deleted-entry-id": b"0-0"}, True),
    ],
)
def test_without_counts_the_ids_tell_whether_entries_may_be_gone(
    known, first, last, newer, expected
):
    assert was_trimmed(read_info(reply(first, last, **newer)), known) is expected
