"""Files that are not what they should be.

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
from pathlib import Path

import pytest

from cortext._native import NGram, write_binary
from cortext.errors import LanguageModelError

REPOSITORY = Path(__file__).parents[3]
MADE_BY_LMPLZ = REPOSITORY / "tests" / "core" / "decoding" / "ngram" / "lmplz"
COUNTS_AT = 108  # in the header of a binary file, after 88 bytes of magic and a record of 20

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


def refusal(path):
    with pytest.raises(LanguageModelError) as caught:
        NGram.open(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "FILE")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\\data\\", "data", "line 1: found 'data' where \\data\\ is expected"),
        (
            "ngram 1=5",
            "ngram 1=five",
            "line 2: found 'ngram 1=five' where 'ngram ORDER=COUNT' or an empty line",
        ),
        ("ngram 2=3", "ngram 3=3", "line 3: found the count of order 3 where order 2 is expected"),
        ("ngram 1=5\nngram 2=3\nngram 3=1\n", "", "line 2: no 'ngram 1=COUNT' line after"),
        ("ngram 1=5", "ngram 1=6", 'line 13: Could not parse "\\2-grams:" into a float'),
        (
            "ngram 1=5",
            "ngram 1=4",
            "line 11: Was expecting n-gram header \\2-grams: but got -0.6 b 0 instead",
        ),
        (
            "ngram 1=5",
            "ngram 1=99999999999",
            "the header counts 99999999999 1-grams, more than the file has room for",
        ),
        (
            "\\2-grams:",
            "\\4-grams:",
            "line 13: Was expecting n-gram header \\2-grams: but got \\4-grams: instead",
        ),
        ("-0.6\tb", "much\tb", 'line 11: Could not parse "much" into a float'),
        ("-0.6\tb", "0.6\tb", "line 11: Positive log probability 0.6"),
        ("-0.6\tb", "nan\tb", 'line 11: Could not parse "nan" into a float'),
        ("-0.6\tb", "-0.6 b", "line 11: Expected tab after probability"),
        ("-0.3\n-0.6", "nan\n-0.6", 'line 10: Could not parse "nan" into a float'),
        ("a b\n-0.1\tb", "a c\n-0.1\tb", "line 15: Word c was not seen in the unigrams"),
        (
            "-0.3\ta b\n",
            "-0.3\ta b c\n",
            "line 15: Expected tab or newline for backoff in the 2-gram",
        ),
        (
            "-0.1\t<s> a b",
            "-0.1\tb a b",
            "line 19: The context of every 3-gram should appear as a 2-gram",
        ),
        ("-0.1\t<s> a b", "-0.1\t<s> a b\t-0.5", "line 19: Non-zero backoff -0.5 provided"),
        ("-99\t<s>", "-99\tstart", "missing <s>"),
        ("\\end\\\n", "", "End of file"),
        ("-0.1\tb </s>", "-0.1\tb\0</s>", "line 16: a zero byte, which is no text"),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_a_defect_of_an_arpa_file_is_named_with_its_line(tmp_path, old, new, message, compressed):
    assert GOOD.count(old) == 1
    text = GOOD.replace(old, new).encode()
    path = tmp_path / "lm.arpa"
    path.write_bytes(gzip.compress(text) if compressed else text)
    assert message in refusal(path)
    with pytest.raises(LanguageModelError):
        write_binary(path, tmp_path / "lm.bin")
    assert [path.name for path in tmp_path.iterdir()] == ["lm.arpa"]


def test_the_example_itself_is_sound(tmp_path):
    (tmp_path / "lm.arpa").write_text(GOOD)
    assert NGram.open(tmp_path / "lm.arpa").counts == (5, 3, 1)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [("-0.4\ta", "0.4\ta", 8), ("-0.4\ta", "b\ta", 8), ("1=5", "1=6", 11), ("\\1-gr", "\\2-gr", 4)],
)
def test_a_defect_of_a_file_of_single_words_is_named_with_its_line(tmp_path, old, new, line):
    text = GOOD[: GOOD.index("\\2-grams")].replace("ngram 2=3\nngram 3=1\n", "") + "\\end\\\n"
    path = tmp_path / "lm.arpa"
    path.write_text(text)
    assert NGram.open(path).order == 1
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    assert f"FILE, line {line}: " in refusal(path)
    with pytest.raises(LanguageModelError, match=rf"lm\.arpa, line {line}: "):
        write_binary(path, tmp_path / "lm.bin")


def test_an_order_above_the_highest_is_refused(tmp_path):
    path = tmp_path / "lm.arpa"
    path.write_text("\\data\\\n" + "".join(f"ngram {order}=1\n" for order in range(1, 8)))
    assert "line 8: order 7 is above the highest supported, 6; build a lower order" in refusal(path)


def test_a_very_long_line_is_refused(tmp_path):
    path = tmp_path / "lm.arpa"
    path.write_text("x" * 5_000_000)
    assert len(refusal(path)) < 400


def test_a_very_long_word_is_a_word(tmp_path):
    path, word = tmp_path / "lm.arpa", "x" * 100_000
    path.write_text(re.sub(r"(?<=[\t ])b\b", word, GOOD))
    assert word in NGram.open(path)


@pytest.mark.parametrize("size", [0, 1, 10])
def test_a_file_of_almost_nothing_is_refused(tmp_path, size):
    path = tmp_path / "lm.bin"
    path.write_bytes(b"m" * size)
    assert "a KenLM binary or an ARPA file is needed" in refusal(path)


def test_other_files_are_refused(tmp_path):
    assert "No such file" in refusal(tmp_path / "absent.bin")
    assert "Is a directory" in refusal(tmp_path)
    noise = tmp_path / "noise.bin"
    noise.write_bytes(bytes(range(256)) * 100)
    assert "neither text nor a KenLM binary" in refusal(noise)


@pytest.mark.parametrize("damage", ["truncated", "overwritten"])
def test_damaged_compression_is_named(tmp_path, damage):
    whole = (MADE_BY_LMPLZ / "text.arpa.gz").read_bytes()
    half = len(whole) // 2
    path = tmp_path / "lm.arpa.gz"
    path.write_bytes(
        whole[:half] if damage == "truncated" else whole[:half] + b"\xff" * 50 + whole[half + 50 :]
    )
    assert (
        refusal(path) == "FILE: the compressed file is truncated or damaged; copy or make it again"
    )


def test_compression_that_is_not_read_is_named(tmp_path):
    path = tmp_path / "lm.arpa.bz2"
    path.write_bytes(bz2.compress(GOOD.encode()))
    assert refusal(path) == "FILE: a kind of compression that is not read here; decompress it"


@pytest.fixture(scope="module", params=["trie", "probing"])
def binary(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("lm") / "lm.bin"
    write_binary(MADE_BY_LMPLZ / "text.arpa.gz", str(path), type=request.param)
    return path.read_bytes()


def put(data, at, value):
    return data[:at] + value + data[at + len(value) :]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:60], "damaged KenLM file: it is truncated"),
        (lambda data: data[:-30], "damaged KenLM file: not all of its words are at its end"),
        (lambda data: data[: len(data) // 2], "damaged KenLM file"),
        (lambda data: put(data, 49, b"4"), "unfinished or of another version"),
        (
            lambda data: put(data, 88, b"\x07"),
            "order 7 is above the highest supported, 6; build a lower order",
        ),
        (lambda data: put(data, 88, b"\x00"), "damaged KenLM file: order 0"),
        (lambda data: put(data, 92, struct.pack("<f", float("nan"))), "damaged KenLM file"),
        (lambda data: put(data, 96, b"\x09"), "damaged KenLM file: unknown type 9"),
        (lambda data: put(data, 100, b"\x77"), "damaged KenLM file: its header makes no sense"),
        (
            lambda data: put(data, COUNTS_AT, struct.pack("<Q", 1 << 60)),
            "shorter than its header says",
        ),
        (
            lambda data: put(data, COUNTS_AT, struct.pack("<Q", 0)),
            "damaged KenLM file: no vocabulary",
        ),
        (
            lambda data: put(data, COUNTS_AT + 24, struct.pack("<Q", 1 << 19)),
            "should be at least|shorter than its header",
        ),
    ],
)
def test_a_damaged_header_is_named(tmp_path, binary, change, message):
    path = tmp_path / "lm.bin"
    path.write_bytes(change(binary))
    assert re.search(message, refusal(path))


def test_a_file_without_its_words_scores_but_cannot_list_them(tmp_path, binary):
    path = tmp_path / "lm.bin"
    path.write_bytes(put(binary, 100, b"\x00")[: binary.rindex(b"<unk>\x00")])
    ngram = NGram.open(path)
    assert "the" in ngram
    with pytest.raises(LanguageModelError, match="vocabulary strings"):
        ngram.words()


@pytest.mark.parametrize("filled", ["zeros", "ones", "noise"])
@pytest.mark.parametrize(
    "options",
    [dict(type="probing"), dict(prob_bits=0, backoff_bits=0), dict(), dict(pointer_bits=0)],
)
def test_whatever_the_tables_hold_scores_are_numbers(tmp_path, options, filled):
    path = tmp_path / "lm.bin"
    write_binary(MADE_BY_LMPLZ / "text.arpa.gz", path, **options)
    data, rng = path.read_bytes(), random.Random(0)
    # The vocabulary and the unigrams come before.
    tables = slice(len(data) * 2 // 3, data.rindex(b"<unk>\x00"))
    size = tables.stop - tables.start
    noise = {"zeros": bytes(size), "ones": b"\xff" * size, "noise": rng.randbytes(size)}[filled]
    path.write_bytes(put(data, tables.start, noise))
    if options.get("type") == "probing" and filled != "zeros":
        assert "a hash table without an empty slot" in refusal(path)
        return
    ngram = NGram.open(path)
    words = ngram.words()
    assert all(
        math.isfinite(ngram.sentence(" ".join(rng.choices(words, k=10)))) for _ in range(1000)
    )


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
