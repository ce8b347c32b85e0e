import bz2
import gzip
import lzma
import re

import pytest
from attack_process import check_all
from refusals import refused

from cortext.decoding.ngram.corpus import text_lines
from cortext.errors import LanguageModelError, TextError
from cortext.text import EN, RELEASE, Lexicon
from cortext.text.lexicon import inventory_of

SILENCES = "!SIL SIL\n<UNK> SPN\n<SPOKEN_NOISE> SPN\n[laughter] LAU\n<eps> SIL\n#0 SIL\n"


def write(tmp_path, text):
    path = tmp_path / "lexicon.txt"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "tokens", "weights", "said"),
    [
        ("the\t0.9\t0.1\t1.0\t1.2\tð ə\nthe\t0.4\t0.1\t1\t1\tð i\n", "i ð ə", (0.9, 0.4), "MFA"),
        ("the\t0.9\tDH AH\nthe\t0.5\tDH IY\n", "AH DH IY", (0.9, 0.5), "MFA"),
        ("the 1.0 DH AH\nthe 0.5 DH IY\n", "AH DH IY", (1.0, 0.5), "lexiconp.txt"),
        ("the 1 DH AH\nthe 1 DH IY\n", "AH DH IY", (1.0, 1.0), "lexiconp.txt"),
        ("the DH AH\nthe\t0.25 DH IY SIL\n", "AH DH IY", (1.0, 0.25), "weights"),
        (";;; x\nTHE  DH AH0\nTHE(1)  DH IY1 # weak\n", "AH DH IY", (1.0, 1.0), "CMU"),
        (f"{SILENCES}the DH AH\nthe DH IY\n", "AH DH IY", (1.0, 1.0), "6 special entries left out"),
        ("the\tt h e |\nthe\tt e |\n", "e h t", (1.0, 1.0), "flashlight"),
        ("the\t_ t h e\nthe\t_ t e\n", "e h t", (1.0, 1.0), "flashlight"),
        ("the DH_B AH_E\nthe DH_B IY_E\n", "AH DH IY", (1.0, 1.0), "positions"),
        ("the dh ah #1\nthe dh iy\n", "AH DH IY", (1.0, 1.0), "capitals"),
        ("the\t1 2 3\nthe\t2 1\n", "1 2 3", (1.0, 1.0), "lines of WORD"),
        ("the 0.5 1 2 3\nthe 0.9 2 1\n", "1 2 3", (0.5, 0.9), "lexiconp.txt"),
        ("the t a 1\nthe t a 4\n", "1 4 a t", (1.0, 1.0), "lines of WORD"),
        ("the nan inf\nthe nan\n", "inf nan", (1.0, 1.0), "lines of WORD"),
        ("the [the] dh ah sp\nthe [the] dh iy sp\n", "AH DH IY", (1.0, 1.0), "HTK"),
        ("the [the] 0.5 dh ah\nthe [the] 1 dh iy\n", "AH DH IY", (0.5, 1.0), "HTK"),
        ("the DH . AH0\nthe DH . IY1\n", "AH DH IY", (1.0, 1.0), ". between phones left out"),
        ("the = DH AH\nthe = DH IY\n", "AH DH IY", (1.0, 1.0), "= between phones left out"),
        ("word\tphones\nthe\tDH AH\nthe\tDH IY\n", "AH DH IY", (1.0, 1.0), "heading left out"),
        ("the DH AH ; weak\nthe DH IY // strong\n", "AH DH IY", (1.0, 1.0), "comments left out"),
        ("the 2.0 DH AH\nthe 40.0 DH IY\n", "AH DH IY", (2.0, 40.0), "of up to 40, where 1"),
    ],
)
def test_each_format_gives_its_phones_and_weights(tmp_path, text, tokens, weights, said):
    path = write(tmp_path, text)
    inventory = inventory_of(path)
    assert inventory.spoken == tuple(tokens.split())
    lexicon = Lexicon.read(path, inventory, closed=False, language=EN)
    assert (list(lexicon), lexicon.weights("the")) == (["the"], weights)
    assert said in lexicon.format


def test_special_entries_are_named(tmp_path):
    path = write(tmp_path, f"{SILENCES}the DH AH SIL\n")
    found = Lexicon.read(path, closed=False)
    assert "(!SIL <UNK> <SPOKEN_NOISE> [laughter] <eps> #0)" in found.format


def test_symbols_of_the_inventory_stay_as_they_are(tmp_path):
    text = "a 1 AH0\nb 2 AH1 |\n"
    inventory = inventory_of(write(tmp_path, "x y z\n"))
    own = type(inventory)("own", ("BLANK", "1", "2", "AH0", "AH1", "|"), silence=None)
    lexicon = Lexicon.read(write(tmp_path, text), own, closed=False)
    assert lexicon.pronunciations("b") == (("2", "AH1", "|"),)


UNCLEAR = [
    ("a 2 AH\nb B IY\n", "2 of 'a' may be a weight or a phone; write a weight as 2.0"),
    ("a 0.5 1 2\nb 1 2 3\n", "1 of 'b' may be a weight or a phone"),
    ("a 0.5 0.6 AH\n", "2 numbers follow 'a'"),
    ("a AH 0.5\n", "the number 0.5 of 'a' stands among its phones"),
    ("a 0,5 AH\n", "weight 0,5 of 'a' is not a positive number"),
    ("a AH # B\nb B\n", "'#' may be a phone, or begin a comment"),
    ("a\tt |\nb\te\n", "no closing |, and others have"),
    ("the \u2581the\ncat \u2581ca t\n", "pieces of words"),
    ("the the@@ s\n", "pieces of words"),
    ("a,AH\nb,B IY\n", "commas stand between"),
    ("a\t/ah/\nb\t/bi/\n", "not parted into phones"),
    ("the DH-AH\ncat K-AE-T\n", "not parted into phones"),
    ("the {DH AH}\ncat {K AE T}\n", "brackets or slashes enclose"),
    ('("a" nil (ah))\n', "Festival"),
    ("<UNK> SPN\n", "no words"),
    (f"a {' '.join(f'p{n}' for n in range(300))}\n", "more than 250 symbols"),
]


def test_what_can_be_read_in_two_ways_is_one_line_with_what_to_do(tmp_path):
    def check(row):
        text, says = row
        with refused(f", line (?=.*{re.escape(says)}).*; ", error=TextError):
            inventory_of(write(tmp_path, text))

    check_all(UNCLEAR, check)


def test_hyphens_that_words_have_are_characters(tmp_path):
    path = write(tmp_path, "the t h e\nx-ray x - r a y\n")
    assert inventory_of(path).spoken == tuple("-aehrtxy")


def test_the_error_of_another_arpabet_names_the_phone_that_is_foreign(tmp_path):
    path = write(tmp_path, "hello hh ax l ow\nworld w er l d\n")
    with pytest.raises(TextError, match="line 1: unknown phoneme 'AX'"):
        Lexicon.read(path, closed=False)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_text_is_read_whatever_its_name_and_packing(tmp_path, pack, encoding):
    path = tmp_path / "text"
    path.write_bytes(pack("Où?\nIci.\n".encode(encoding)))
    assert list(text_lines(path, lambda done: None)) == ["Où?\n", "Ici.\n"]


def test_xz_files_in_a_row_are_read_and_damaged_or_greedy_ones_refused(tmp_path):
    path = tmp_path / "text.xz"
    one = lzma.compress(b"one\n")
    path.write_bytes(one + lzma.compress(b"two\n"))
    assert list(text_lines(path, lambda done: None)) == ["one\n", "two\n"]
    for content in (one[:-9], b"\x28\xb5\x2f\xfd....", b"PK\x03\x04...."):
        path.write_bytes(content)
        with pytest.raises(LanguageModelError, match="compressed"):
            list(text_lines(path, lambda done: None))


def test_a_lexicon_of_utf_16_is_read(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_bytes("no N OW SIL\r\n".encode("utf-16"))
    assert Lexicon.read(path, RELEASE).pronunciations("no") == (("N", "OW"),)


def test_a_compressed_lexicon_says_so(tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_bytes(gzip.compress(b"no N OW SIL\n"))
    with pytest.raises(TextError, match="it is compressed; unpack it"):
        Lexicon.read(path)
