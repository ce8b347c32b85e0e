"""The pauses of Python that live decoding avoids."""

import gc

from cortext_live.core.decoder import no_long_pauses


def test_what_was_there_is_passed_over_inside_and_no_longer_afterwards():
    class Node:
        """Refers to itself, so that only a collection frees it."""

        def __init__(self):
            self.me = self

    gone = []
    before = Node()
    before.end = type("End", (), {"__del__": lambda self: gone.append("before")})()
    with no_long_pauses():
        del before
        inside = Node()
        inside.end = type("End", (), {"__del__": lambda self: gone.append("inside")})()
        del inside
        gc.collect()
        assert gone == ["inside"]
    gc.collect()
    assert gone == ["inside", "before"]
