"""Entries in the order of their numbers.

A stream is written as its numbers; "5b" is another content of number 5, and "|" a pause.
"""

import re

import pytest

from cortext_live.brand.sequence import Sequencer
from cortext_live.core.redis_streams import StreamEntry


def sequence(text, bins_per_entry=1, last=None, release=True):
    """The entries in the order in which they are given back, each with what is said of it."""
    sequencer, said = Sequencer(bins_per_entry, last), []
    for n, item in enumerate(text.split()):
        if item == "|":
            said += sequencer.release()
            continue
        number, content = re.fullmatch(r"(\d*)(.*)", item).groups()
        entry = StreamEntry("s", (n, 0), {b"item": item.encode()})
        said += sequencer.take(entry, int(number), content.encode()) if number else sequencer.take_unnumbered(
            entry, "damaged" if content == "x" else ""
        )  # fmt: skip
    return [*map(describe, said), *map(describe, sequencer.release() if release else ())]


def describe(place):
    words = [place.entry.fields[b"item"].decode()]
    words += [] if place.kind == "next" else [place.kind]
    words += [f"lost {place.missing[0]}-{place.missing[-1]}"] if place.missing else []
    words += ["anew"] if place.anew else []
    return " ".join(words)


@pytest.mark.parametrize(
    ("stream", "given"),
    {
        "in order": ("4 5 6", "4, 5, 6"),
        "a loss": ("4 5 8 9 10", "4, 5, 8 lost 6-7, 9, 10"),
        "a loss at the end": ("4 5 8", "4, 5, 8 lost 6-7"),
        "a large loss": ("4 5 900 901", "4, 5, 900 lost 6-899, 901"),
        "two losses close together": ("4 900 950 951", "4, 900 lost 5-899, 950 lost 901-949, 951"),
        "a duplicate": ("4 5 5 6", "4, 5, 5 duplicate, 6"),
        "a batch that comes twice": ("4 5 6 4 5 6 7", "4, 5, 6, 4 duplicate, 5 duplicate, 6 duplicate, 7"),
        "a duplicate of an early one": ("4 6 6 5", "4, 6 duplicate, 5, 6"),
        "one number twice, and no duplicate": ("4 5 5b 6", "4, 5, 5b, 6"),
        "swapped": ("4 6 5 7", "4, 5, 6, 7"),
        "two too early": ("4 6 7 5 8", "4, 5, 6, 7, 8"),
        "two bins late": ("4 7 5 6 8", "4, 5, 6, 7, 8"),
        "three bins late": ("4 6 7 8 5 9", "4, 6 lost 5-5, 7, 8, 5 late, 9"),
        "waits for two bins and no longer": ("4 8 5 6 7 9", "4, 5, 6, 8 lost 7-7, 7 late, 9"),
        "two losses with an entry between": ("4 6 7 9 10 11", "4, 6 lost 5-5, 7, 9 lost 8-8, 10, 11"),
        "an entry without a number": ("4 5 - 7 8", "4, 5, -, 7, 8"),
        "a number that cannot be read": ("4 5 x 7 8", "4, 5, x unusable, 7, 8"),
        "and nothing in its place": ("4 5 x 6 8 9 10", "4, 5, x unusable, 6, 8 lost 7-7, 9, 10"),
        "it fills a gap that was waited for": ("4 6 x 7", "4, x unusable, 6, 7"),
        "a number far beyond": ("4 5 9000 7 8", "4, 5, 9000 unusable, 7, 8"),
        "a number a little beyond": ("4 5 16 7 8", "4, 5, 16 unusable, 7, 8"),
        "a number far before": ("400 401 8 403", "400, 401, 8 unusable, 403"),
        "a number far before, and a pause": ("98 99 5 | 101 102", "98, 99, 5 unusable, 101, 102"),
        "and its place comes, too": ("98 99 5 | 100 101", "98, 99, 5 unusable, 100, 101"),
        "a number far before at the end": ("400 401 8", "400, 401, 8 unusable"),
        "one that begins anew before a pause": ("400 401 0 | 1 2", "400, 401, 0 anew, 1, 2"),
        "nothing but nonsense": ("400 401 7 900 80 3000 402", "400, 401, 7 unusable, 900 unusable, 80 unusable, "
                                 "3000 unusable, 402"),
        "a source that begins anew": ("400 401 0 1 2", "400, 401, 0 anew, 1, 2"),
        "one that begins anew after a few": ("0 1 2 3 0b 1b 2b 3b 4", "0, 1, 2, 3, 0b anew, 1b, 2b, 3b, 4"),
        "one that begins anew, swapped": ("400 401 1 0 2", "400, 401, 0 anew, 1, 2"),
        "one that begins anew, each twice": ("400 401 0 0 1 1", "400, 401, 0 duplicate, 0 anew, 1, 1 duplicate"),
        "one that begins anew and stops": ("400 401 0", "400, 401, 0 anew"),
        "a counter of two bytes": ("65534 65535 0 1", "65534, 65535, 0 anew, 1"),
        "no numbers": ("- - -", "-, -, -"),
        "a repeated recording": (" ".join(map(str, [*range(100), *range(100)])), None),
    }.values(),
)  # fmt: skip
def test_each_entry_is_given_back_in_its_place_or_named(stream, given):
    if given is None:  # all of it is heard twice
        assert sequence(stream) == [*stream.split()[:100], "0 anew", *stream.split()[101:]]
    else:
        assert sequence(stream) == given.split(", ")


@pytest.mark.parametrize(
    ("stream", "held"), [("4 5 6", 0), ("4 6", 1), ("4 6 7", 2), ("4 6 7 8", 0), ("400 7", 1)]
)
def test_only_what_is_early_or_doubtful_waits_and_for_two_bins_at_most(stream, held):
    assert len(sequence(stream, release=False)) == len(stream.split()) - held


def test_with_more_bins_in_an_entry_fewer_are_waited_for():
    assert sequence("4 6 5 7", bins_per_entry=2) == ["4", "5", "6", "7"]
    assert sequence("4 6 7", bins_per_entry=2, release=False) == ["4", "6 lost 5-5", "7"]


def test_what_a_node_before_had_read_is_not_lost():
    assert sequence("8 9", last=7) == ["8", "9"]
    assert sequence("10 11 12", last=7) == ["10 lost 8-9", "11", "12"]


def test_memory_does_not_grow_with_the_stream():
    sequencer = Sequencer()
    for n in range(5000):
        sequencer.take(StreamEntry("s", (n, 0), {}), 3 * n if n % 7 == 0 else n * n, b"")
    assert len(sequencer._recent) < 200
    assert len(sequencer._early) < 4
