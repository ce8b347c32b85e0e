"""ARPA files: what is written is read, and every defect is named with its line."""

import gzip
import math

import pytest

from cortext.decoding.ngram.arpa import MISSING_UNK, read_arpa
from cortext.errors import LanguageModelError

GOOD = r"""made by hand
\data\
ngram 1=5
ngram 2=3

\1-grams:
-1.0	<unk>
-99	<s>	-0.5
-0.7	</s>
-0.4	a	-0.3
-0.6	b	0

\2-grams:
-0.2	<s> a
-0.3	a b
-0.1	b </s>

\end\
"""


@pytest.fixture
def arpa(tmp_path):
    def write(text):
        path = tmp_path / "lm.arpa"
        path.write_text(text)
        return path

    return write


def test_probabilities_and_backoffs_are_natural_logs(arpa):
    read = read_arpa(arpa(GOOD))
    a, b, bos = (read.words[word] for word in ("a", "b", "<s>"))
    assert read.counts == (5, 3)
    assert read.probs[a, b] == pytest.approx(math.log(10**-0.3))
    assert read.backoffs[a,] == pytest.approx(math.log(10**-0.3))
    assert read.backoffs[b,] == 0.0  # a context, although its back-off is 0
    assert set(read.backoffs) == {(a,), (b,), (bos,)}


def test_a_gzipped_file_reads_the_same(arpa, tmp_path):
    path = tmp_path / "lm.arpa.gz"
    path.write_bytes(gzip.compress(GOOD.encode()))
    assert read_arpa(path) == read_arpa(arpa(GOOD))


def test_a_model_without_unk_gives_unknown_words_what_kenlm_gives(arpa):
    text = GOOD.replace("-1.0\t<unk>\n", "").replace("ngram 1=5", "ngram 1=4")
    read = read_arpa(arpa(text))
    assert read.probs[read.words["<unk>"],] == MISSING_UNK == pytest.approx(-100 * math.log(10))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\\data\\", "data", r"no \data\ section"),
        ("ngram 1=5", "ngram 1=five", "line 3: bad count 'ngram 1=five'"),
        ("ngram 2=3", "ngram 3=3", "line 4: found the count of order 3 where order 2 is expected"),
        ("ngram 1=5\nngram 2=3\n", "", r"no 'ngram 1=COUNT' line after \data"),
        ("ngram 1=5", "ngram 1=6", "line 13: 5 1-grams where the header says 6"),
        ("ngram 2=3", "ngram 2=2", "line 18: 3 2-grams where the header says 2"),
        ("\\2-grams:", "\\3-grams:", r"found '\\3-grams:' where \2-grams: is expected"),
        ("-0.6\tb", "much\tb", "line 11: 'much' is not a number"),
        ("-0.6\tb", "0.6\tb", "line 11: '0.6' is not a log10 probability"),
        ("-0.3\n-0.6", "nan\n-0.6", "line 10: 'nan' is not a log10 back-off"),
        ("-0.3\n-0.6", "\n-0.6", "line 15: context 'a' has no back-off in the 1-grams"),
        ("a b\n", "a c\n", "line 15: word 'c' is not among the 1-grams"),
        ("a b\n", "a b c d\n", "line 15: 5 fields in a 2-gram; 3 are expected"),
        ("a b\n", "<s> a\n", "line 15: 2-gram '<s> a' occurs twice"),
        ("-99\t<s>", "-99\tstart", "no <s> among the 1-grams"),
        ("\n\\end\\\n", "\n", r"truncated: it ends before \end"),
        ("\n\\2-grams:\n-0.2\t<s> a\n-0.3\ta b\n-0.1\tb </s>\n\n\\end\\\n", "", "truncated"),
        ("\n\\1-grams:" + GOOD.split("\\1-grams:")[1], "", "ends in its header"),
    ],
)
def test_a_defect_is_named_with_its_file_and_line(arpa, old, new, message):
    assert GOOD.count(old) == 1
    path = arpa(GOOD.replace(old, new))
    with pytest.raises(LanguageModelError) as caught:
        read_arpa(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_an_order_above_the_highest_is_refused(arpa):
    header = "\\data\\\n" + "".join(f"ngram {order}=1\n" for order in range(1, 8))
    with pytest.raises(LanguageModelError, match="line 8: order 7 is above the highest supported, 6"):
        read_arpa(arpa(header))


def test_a_context_that_is_not_listed_is_named(arpa):
    text = GOOD.replace("ngram 2=3", "ngram 2=3\nngram 3=1").replace("<s> a\n", "<s> a\t0\n")
    text = text.replace("a b\n", "a b\t0\n").replace("b </s>\n\n", "b </s>\t0\n\n\\3-grams:\n-0.1\tb a b\n\n")
    with pytest.raises(LanguageModelError, match="line 20: context 'b a' is not among the 2-grams"):
        read_arpa(arpa(text))


def test_files_that_are_no_text_are_refused(tmp_path):
    binary = tmp_path / "lm.bin"
    binary.write_bytes(b"mmap lm \xff\xfe\x00")
    with pytest.raises(LanguageModelError, match="not UTF-8"):
        read_arpa(binary)
    truncated = tmp_path / "lm.arpa.gz"
    truncated.write_bytes(gzip.compress(GOOD.encode())[:60])
    with pytest.raises(LanguageModelError, match="truncated"):
        read_arpa(truncated)
    with pytest.raises(LanguageModelError, match="No such file"):
        read_arpa(tmp_path / "absent.arpa")
