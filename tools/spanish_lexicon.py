"""Write the pronunciations of the simulator's Spanish sentences, from rules of spelling.

    python tools/spanish_lexicon.py [--check]

Spanish spelling says how a word is pronounced. The rules are those of Castilian (Real Academia
Española, *Ortografía de la lengua española*, 2010; Martínez-Celdrán, Fernández-Planas &
Carrera-Sabaté 2003, "Castilian Spanish", J. Int. Phonetic Assoc. 33:255): /θ/ and /s/ differ, `ll`
and `y` are both /ʝ/, and `i` and `u` beside another vowel are /j/ and /w/. Symbols are phonemes, not
allophones: `n` is /n/ also in *tengo*, `b` is /b/ also between vowels.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cortext.text.language import LANGUAGES

FOLDER = Path(__file__).parents[1] / "src/cortext_data/simulate/spanish"

_VOWELS = dict(zip("aáeéiíoóuúü", "aaeeiioouuu", strict=True))
_WEAK = {"i": "j", "u": "w", "ü": "w", "y": "j"}
"""Letters that are glides beside another vowel; with an accent they are vowels."""
_LETTERS = {
    "b": "b", "v": "b", "d": "d", "f": "f", "j": "x", "k": "k", "l": "l", "m": "m", "n": "n",
    "ñ": "ɲ", "p": "p", "s": "s", "t": "t", "z": "θ",
}  # fmt: skip
_STRONG = ("a", "á", "e", "é", "o", "ó")
_FRONT = ("e", "é", "i", "í")


def phonemes(word: str) -> list[str]:
    """Return the phonemes of a Spanish word in small letters.

    Raises ValueError for a letter that Spanish words do not have.
    """
    found: list[str] = []
    at = 0
    while at < len(word):
        sounds, length = _at(word, at)
        found += sounds
        at += length
    return found


def _at(word: str, at: int) -> tuple[list[str], int]:
    """Return the phonemes of the letters that begin at a place, and how many letters they are."""
    letter = word[at]
    after = word[at + 1 : at + 2]
    pair = letter + after
    if pair in ("ch", "ll", "rr"):
        return [{"ch": "tʃ", "ll": "ʝ", "rr": "r"}[pair]], 2
    # The u of que, qui, gue, gui is silent; that of güe, güi is not.
    if pair in ("qu", "gu") and word[at + 2 : at + 3] in _FRONT:
        return ["k" if letter == "q" else "g"], 2
    if letter in "cg" and after in _FRONT:
        return ["θ" if letter == "c" else "x"], 1
    if letter in "cg":
        return ["k" if letter == "c" else "g"], 1
    if letter == "r":
        trilled = at == 0 or word[at - 1] in "lns"
        return ["r" if trilled else "ɾ"], 1
    if letter == "x":
        return ["k", "s"], 1
    if letter == "h":
        return [], 1
    if letter == "y" and after in tuple(_VOWELS):
        return ["ʝ"], 1
    if letter in _VOWELS or letter == "y":
        return [_vowel(word, at)], 1
    if letter in _LETTERS:
        return [_LETTERS[letter]], 1
    raise ValueError(f"{letter!r} of {word!r} is no letter of Spanish words")


def _vowel(word: str, at: int) -> str:
    """Return the vowel or glide of a letter: of two weak vowels, the first is the glide."""
    letter = word[at]
    if letter not in _WEAK:
        return _VOWELS[letter]
    before, after = word[at - 1 : at] if at else "", word[at + 1 : at + 2]
    beside_strong = after in _STRONG or before in (*_STRONG, "í", "ú")
    first_of_two = letter != "y" and after != letter and after in ("i", "u", "í", "ú", "ü")
    final_y = letter == "y" and before in tuple(_VOWELS)
    if beside_strong or first_of_two or final_y:
        return _WEAK[letter]
    return "i" if letter == "y" else _VOWELS[letter]


def lexicon(text: str) -> str:
    """Return a `lexicon.txt` of all words of a text, in the order of the alphabet."""
    words = sorted({word for line in text.splitlines() for word in LANGUAGES["es"].words(line)})
    return "".join(f"{word} {' '.join(phonemes(word))}\n" for word in words)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare with the file")
    check = parser.parse_args().check
    path = FOLDER / "lexicon.txt"
    made = lexicon((FOLDER / "text.txt").read_text(encoding="utf-8"))
    if not check:
        path.write_text(made, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != made:
        sys.exit(f"{path} is not what the rules say; run python tools/spanish_lexicon.py")


if __name__ == "__main__":
    main()
