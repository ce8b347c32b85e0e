"""Files of n-gram models that are not what they should be.

One line says what is wrong and where, and nothing ever ends the process.
"""

import bz2
import gzip
import math
import os
import random
import re
import struct
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from attack_process import check_all
from commands import GIB
from refusals import refused

from cortext._native import NGram, write_binary
from cortext.errors import LanguageModelError

REPOSITORY = Path(__file__).parents[3]
MADE_BY_LMPLZ = REPOSITORY / "tests" / "core" / "decoding" / "ngram" / "lmplz"
COUNTS_AT = 108  # in the header of a binary file, after 88 bytes of magic and a record of 20
ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e"

GOOD = """\\data\\
ngram 1=5
ngram 2=3
ngram 3=1

\\1-grams:
-1.0\t<unk>
-99\t<s>\t-0.5
-0.7\t</s>
-0.4\ta\t-0.3
-0.6\tb\t0

\\2-grams:
-0.2\t<s> a\t-0.1
-0.3\ta b
-0.1\tb </s>

\\3-grams:
-0.1\t<s> a b

\\end\\
"""
ARPA_DEFECTS = [
    ("\\data\\", "data", "line 1: found 'data' where \\data\\ is expected"),
    ("ngram 1=5", "ngram 1=five", "line 2: found 'ngram 1=five' where 'ngram ORDER=COUNT' or an empty line"),
    ("ngram 2=3", "ngram 3=3", "line 3: found the count of order 3 where order 2 is expected"),
    ("ngram 1=5\nngram 2=3\nngram 3=1\n", "", "line 2: no 'ngram 1=COUNT' line after"),
    ("ngram 1=5", "ngram 1=6", 'line 13: Could not parse "\\2-grams:" into a float'),
    ("ngram 1=5", "ngram 1=4", "line 11: Was expecting n-gram header \\2-grams: but got -0.6 b 0 instead"),
    ("ngram 1=5", "ngram 1=99999999999", "the header counts 99999999999 1-grams, more than the file has room for"),
    ("\\2-grams:", "\\4-grams:", "line 13: Was expecting n-gram header \\2-grams: but got \\4-grams: instead"),
    ("-0.6\tb", "much\tb", 'line 11: Could not parse "much" into a float'),
    ("-0.6\tb", "0.6\tb", "line 11: Positive log probability 0.6"),
    ("-0.6\tb", "nan\tb", 'line 11: Could not parse "nan" into a float'),
    ("-0.6\tb", "-0.6 b", "line 11: Expected tab after probability"),
    ("-0.3\n-0.6", "nan\n-0.6", 'line 10: Could not parse "nan" into a float'),
    ("a b\n-0.1\tb", "a c\n-0.1\tb", "line 15: Word c was not seen in the unigrams"),
    ("-0.3\ta b\n", "-0.3\ta b c\n", "line 15: Expected tab or newline for backoff in the 2-gram"),
    ("-0.1\t<s> a b", "-0.1\tb a b", "line 19: The context of every 3-gram should appear as a 2-gram"),
    ("-0.1\t<s> a b", "-0.1\t<s> a b\t-0.5", "line 19: Non-zero backoff -0.5 provided"),
    ("-99\t<s>", "-99\tstart", "missing <s>"),
    ("\\end\\\n", "", "End of file"),
    ("-0.1\tb </s>", "-0.1\tb\0</s>", "line 16: a zero byte, which is no text"),
    ("ngram 2=3", f"ngram 2={2**64}", "more than the file has room for"),
    ("ngram 2=3", "ngram 2=-1", "more than the file has room for"),
    ("ngram 2=3", f"ngram 2=3{'0' * 400}", "where 'ngram ORDER=COUNT'"),
    ("ngram 2=3", "ngram 99999=3", "order 99999"),
    ("-0.3\ta b", "1e999\ta b", "line 15: "),
    ("-0.3\ta b", f"-0.3\ta {ESCAPE}", "line 15: "),
]  # fmt: skip


def refuse(path, says, most_mb=300):
    """Check that a file is refused with one line, which names it."""
    with refused(f"^{re.escape(str(path))}.*{says}", most_mb, 20, LanguageModelError):
        NGram.open(path)


def test_a_defect_of_an_arpa_file_is_named_with_its_line(tmp_path):
    def check(row):
        (old, new, message), pack = row
        assert GOOD.count(old) == 1
        path = tmp_path / "lm.arpa"
        path.write_bytes(pack(GOOD.replace(old, new).encode()))
        refuse(path, re.escape(message))
        with pytest.raises(LanguageModelError):
            write_binary(path, tmp_path / "lm.bin")
        assert [path.name for path in tmp_path.iterdir()] == ["lm.arpa"]

    check_all(list(product(ARPA_DEFECTS, (bytes, gzip.compress))), check)


def test_the_example_itself_is_sound(tmp_path):
    (tmp_path / "lm.arpa").write_text(GOOD)
    assert NGram.open(tmp_path / "lm.arpa").counts == (5, 3, 1)


@pytest.mark.parametrize(
    ("old", "new"), [("-0.3\ta b", "-inf\ta b"), ("-0.4\ta\t-0.3", "-0.4\ta\t1e38")]
)
def test_numbers_at_the_end_of_the_possible_are_read(tmp_path, old, new):
    assert GOOD.count(old) == 1
    (tmp_path / "lm.arpa").write_text(GOOD.replace(old, new))
    assert not math.isnan(NGram.open(tmp_path / "lm.arpa").sentence("a b a"))


def test_a_defect_of_a_file_of_single_words_is_named_with_its_line(tmp_path):
    text = GOOD[: GOOD.index("\\2-grams")].replace("ngram 2=3\nngram 3=1\n", "") + "\\end\\\n"
    path = tmp_path / "lm.arpa"
    path.write_text(text)
    assert NGram.open(path).order == 1
    for old, new, line in (
        *(("-0.4\ta", "0.4\ta", 8), ("-0.4\ta", "b\ta", 8)),
        *(("1=5", "1=6", 11), ("\\1-gr", "\\2-gr", 4)),
    ):
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))
        refuse(path, f", line {line}: ")
        with pytest.raises(LanguageModelError, match=rf"lm\.arpa, line {line}: "):
            write_binary(path, tmp_path / "lm.bin")


def test_a_very_long_word_is_a_word(tmp_path):
    path, word = tmp_path / "lm.arpa", "x" * 100_000
    path.write_text(re.sub(r"(?<=[\t ])b\b", word, GOOD))
    assert word in NGram.open(path)


def bomb(start, n_megabytes, of):
    """Compressed text of many times its size."""
    return gzip.compress(start) + gzip.compress(of * 2**20) * n_megabytes


WHOLE = (MADE_BY_LMPLZ / "text.arpa.gz").read_bytes()
HALF = len(WHOLE) // 2
MUCH = GOOD[: GOOD.index("b\t0")].replace("1=5", "1=900000000").encode()
NO_MODEL = "a KenLM binary or an ARPA file is needed"
COMPRESSED = ": the compressed file is truncated or damaged; copy or make it again$"
OTHER_FILES = {
    "nothing": (b"", NO_MODEL),
    "a letter": (b"m", NO_MODEL),
    "ten letters": (b"m" * 10, NO_MODEL),
    "noise": (bytes(range(256)) * 100, "neither text nor a KenLM binary"),
    "an order above the highest": (b"\\data\\\n" + b"".join(b"ngram %d=1\n" % order for order in range(1, 8)),
                                   "line 8: order 7 is above the highest supported, 6; build a lower order"),
    "half of a gzip": (WHOLE[:HALF], COMPRESSED),
    "an overwritten gzip": (WHOLE[:HALF] + b"\xff" * 50 + WHOLE[HALF + 50 :], COMPRESSED),
    "another compression": (bz2.compress(GOOD.encode()), ": a kind of compression that is not read here; decompress it$"),
    "100 MB for the first line": (lambda: b"x" * 10**8, "line 1: "),
    "a line of 100 MB": (lambda: GOOD.replace("\ta b", "\ta " + "x" * 10**8).encode(), "line 15: "),
    "a bomb of a line": (lambda: bomb(b"", 300, b"x"), "line 1: "),
    "a bomb of zeros": (lambda: bomb(GOOD.encode(), 300, b"\0"), "zero byte|end"),
    "a bomb of a word": (lambda: bomb(MUCH, 300, b"x"), ""),
}  # fmt: skip


def test_other_files_are_refused(tmp_path):
    def check(name):
        content, says = OTHER_FILES[name]
        (tmp_path / "lm").write_bytes(content() if callable(content) else content)
        refuse(tmp_path / "lm", f"({says})", most_mb=1000)

    check_all(list(OTHER_FILES), check)
    refuse(tmp_path / "absent.bin", "No such file")
    refuse(tmp_path, "Is a directory")


def test_8_gb_of_zeros_are_read_in_bounded_time_and_memory(tmp_path):
    with (tmp_path / "lm.bin").open("wb") as file:
        file.truncate(8 * GIB)  # a sparse file takes no space
    refuse(tmp_path / "lm.bin", "")


@pytest.fixture(scope="module", params=["trie", "probing"])
def binary(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("lm") / "lm.bin"
    write_binary(MADE_BY_LMPLZ / "text.arpa.gz", str(path), type=request.param)
    return path.read_bytes()


def put(at, form, value):
    """Other bytes in a binary file."""

    def change(data):
        new = struct.pack(form, value)
        return data[:at] + new + data[at + len(new) :]

    return change


BINARY_DEFECTS = [
    (lambda data: data[:60], "damaged KenLM file: it is truncated"),
    (lambda data: data[:-30], "damaged KenLM file: not all of its words are at its end"),
    (lambda data: data[: len(data) // 2], "damaged KenLM file"),
    (put(49, "c", b"4"), "unfinished or of another version"),
    (put(88, "B", 7), "order 7 is above the highest supported, 6; build a lower order"),
    (put(88, "B", 255), "order 255 is above"),
    (put(88, "B", 0), "damaged KenLM file: order 0"),
    (put(92, "<f", math.nan), "damaged KenLM file"),
    (put(96, "B", 9), "damaged KenLM file: unknown type 9"),
    (put(100, "B", 0x77), "damaged KenLM file: its header makes no sense"),
    (put(COUNTS_AT, "<Q", 1 << 60), "shorter than its header says"),
    (put(COUNTS_AT, "<Q", 1 << 63), "shorter than its header says"),
    (put(COUNTS_AT, "<Q", 0), "damaged KenLM file: no vocabulary"),
    (put(COUNTS_AT + 8, "<Q", 1 << 62), "shorter than its header says"),
    (put(COUNTS_AT + 24, "<Q", 1 << 19), "should be at least|shorter than its header"),
    (lambda data: put(96, "<I", 0 if data[96] else 2)(data), "damaged KenLM file"),
]  # fmt: skip


def test_a_damaged_header_is_named(tmp_path, binary):
    def check(row):
        change, message = row
        (tmp_path / "lm.bin").write_bytes(change(binary))
        refuse(tmp_path / "lm.bin", f"({message})")

    check_all(BINARY_DEFECTS, check)


def test_a_file_without_its_words_scores_but_cannot_list_them(tmp_path, binary):
    path = tmp_path / "lm.bin"
    path.write_bytes(put(100, "B", 0)(binary)[: binary.rindex(b"<unk>\x00")])
    ngram = NGram.open(path)
    assert "the" in ngram
    with pytest.raises(LanguageModelError, match="vocabulary strings"):
        ngram.words()


TABLES = [dict(type="probing"), dict(prob_bits=0, backoff_bits=0), {}, dict(pointer_bits=0)]


def test_whatever_the_tables_hold_scores_are_numbers(tmp_path):
    def check(row):
        options, filled = row
        path = tmp_path / "lm.bin"
        write_binary(MADE_BY_LMPLZ / "text.arpa.gz", path, **options)
        data, rng = path.read_bytes(), random.Random(0)
        # The vocabulary and the unigrams come before.
        start, stop = len(data) * 2 // 3, data.rindex(b"<unk>\x00")
        size = stop - start
        noise = {"zeros": bytes(size), "ones": b"\xff" * size, "noise": rng.randbytes(size)}[filled]
        path.write_bytes(data[:start] + noise + data[stop:])
        if options.get("type") == "probing" and filled != "zeros":
            refuse(path, "a hash table without an empty slot")
            return
        ngram = NGram.open(path)
        words = ngram.words()
        for _ in range(1000):
            assert math.isfinite(ngram.sentence(" ".join(rng.choices(words, k=10))))

    check_all(list(product(TABLES, ("zeros", "ones", "noise"))), check)


def test_nothing_that_chance_does_to_a_file_ends_the_process(tmp_path):
    """The short form of `make fuzz`."""
    command = [
        sys.executable,
        REPOSITORY / "tools" / "fuzz_native.py",
        "--seconds",
        "2",
        "--out",
        tmp_path / "fuzz",
    ]
    run = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    counts = re.findall(r": (\d+) read, (\d+) refused", run.stdout)
    assert len(counts) == 9
    assert all(int(read) + int(refused) for read, refused in counts), run.stdout
