"""Published Kaldi folders as language-model directories.

Such a folder, as those published with the Brain-to-Text benchmarks (Willett et al., Nature 2023;
Card et al., NEJM 2024), holds the grammar `G.fst`, an unpruned one for rescoring
(`G_no_prune.fst`), `words.txt`, the lexicon as numbers (`lexicon_numbers.txt` with `units.txt`),
and the decoding graph `TLG.fst` that was compiled from all of them. The release's 1-gram model
comes as this graph and `words.txt` alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from cortext.decoding.ngram.build_settings import BINARIES, Stage
from cortext.decoding.ngram.corpus import silent
from cortext.decoding.ngram.language_model import MODELS, LanguageModel
from cortext.decoding.ngram.vocabulary import BOS, EOS
from cortext.errors import LanguageModelError, TextError, nearest
from cortext.files import check_file
from cortext.processes import Progress
from cortext.text.inventory import SIL
from cortext.text.lexicon import Lexicon
from cortext.text.pronunciation import pronounce
from cortext_lm.kaldi.grammar import NGrams, Words, read_ngrams
from cortext_lm.kaldi.graph import ANOTHER, read_graph
from cortext_lm.kaldi.openfst import read_fst
from cortext_lm.ngram.build import (
    FORMAT_VERSION,
    in_place_of,
    refuse_foreign,
    write_binary,
    write_rest,
)

GRAMMARS = ("G_no_prune.fst", "G.fst")
GRAPH = "TLG.fst"
MOST_GRAPH_BYTES = 1 << 30
"""Largest graph that is read: that of a 1-gram of 126,000 words has 17 MB."""
_DISAMBIGUATION = "#0"
_MOST_BYTES = 1 << 30
_NUMBER = re.compile(r"[0-9]{1,9}")
_ROWS = 1 << 16
_WORD = re.compile(r"['-]*[a-z][a-z'-]*")
_VARIANT = re.compile(r"\(\d+\)$")
_STRESS = re.compile(r"\d$")


def import_kaldi(
    folder: str | Path,
    out: str | Path,
    grammar: str | None = None,
    binary: str = "trie",
    stage: Stage = lambda name: None,
) -> LanguageModel:
    """Convert a Kaldi folder into the language-model directory `out`, and open it.

    Words are put in lower case. Pronunciations come from the folder's `lexicon.txt`,
    `lexiconp.txt`, or `lexicon_numbers.txt` with `units.txt`, and for other words from the shipped
    dictionary and its model. An entry that is no word (`A42128`) has none and is never decoded.
    A compiled graph of a 1-gram model has words, probabilities and pronunciations of its own.

    Args:
        folder: Kaldi folder with a grammar, or with the compiled graph of a 1-gram model.
        out: Directory to write.
        grammar: Name of the grammar in the folder; by default the unpruned `G_no_prune.fst`, else
            `G.fst`, else the graph `TLG.fst`.
        binary: Type of `lm.bin`: `trie` and `probing` are exact, `quantised` is smaller.
        stage: Called with the name of each stage as it begins; returns the stage's progress
            callback or None.

    Raises:
        LanguageModelError: For a folder without a grammar, a damaged file, and a grammar that is no
            n-gram model.
    """
    folder = Path(folder)
    out = Path(out)
    if not folder.is_dir():
        raise LanguageModelError("no such directory", where=folder)
    if binary not in BINARIES:
        raise LanguageModelError(f"binary is {binary!r}; {nearest(binary, BINARIES)}")
    path = _grammar(folder, grammar)
    refuse_foreign(out)
    stage(f"reading {path.name}")
    words = read_words(folder / "words.txt")
    if path.name == GRAPH and path.stat().st_size > MOST_GRAPH_BYTES:
        raise LanguageModelError(
            f"too large for the graph of a 1-gram model ({path.stat().st_size / 1e9:.1f} GB)",
            where=path,
            fix=ANOTHER,
        )
    fst = read_fst(path)
    if path.name == GRAPH:
        graph = read_graph(fst, words, path)
        names, levels, lexicon = graph.names, [graph.unigrams], graph.lexicon
    else:
        names, levels = read_ngrams(fst, words, path)
    known = [name for name in names if name[0] not in "<["]
    if path.name == GRAPH:
        without = sum(word not in lexicon for word in known)
        pronunciations = {"from_graph": len(lexicon), "without": without}
    else:
        lexicon, pronunciations = _lexicon(folder, known, stage("pronouncing") or silent)
    facts = {
        "format_version": FORMAT_VERSION,
        "order": len(levels),
        "vocabulary": len(known),
        "imported": {
            "folder": str(folder),
            "grammar": path.name,
            "states": len(fst.final),
            "arcs": len(fst.weights),
        },
        "pronunciations": pronunciations,
    }
    with in_place_of(out) as partial:
        stage("writing lm.bin")
        write_arpa(partial / "lm.arpa", names, levels)
        write_binary(partial, binary)
        write_rest(partial, lexicon, facts)
    return LanguageModel.open(out)


def _grammar(folder: Path, name: str | None) -> Path:
    for candidate in (*GRAMMARS, GRAPH) if name is None else (name,):
        if (folder / candidate).is_file():
            return folder / candidate
    if name is None and any((folder / graph).is_file() for graph in ("LG.fst", "HCLG.fst")):
        raise LanguageModelError(
            "has a compiled decoding graph but no grammar (G.fst or G_no_prune.fst) to read"
            " n-grams from",
            where=folder,
            fix=ANOTHER,
        )
    raise LanguageModelError(
        f"no {name or 'G.fst or G_no_prune.fst'} in it", where=folder, fix="give a Kaldi folder"
    )


@contextmanager
def converted(directory: Path, stage: Stage = lambda name: None) -> Iterator[Path]:
    """Yield a language-model directory; a folder with a 1-gram's graph is converted for a while.

    Args:
        directory: Language-model directory, or a folder with `TLG.fst` and `words.txt`.
        stage: See `import_kaldi`.

    Raises:
        LanguageModelError: For another Kaldi folder, and as `import_kaldi`.
    """
    grammar = next((name for name in GRAMMARS if (directory / name).is_file()), None)
    is_kaldi = (directory / "words.txt").is_file() and not any(
        (directory / name).is_file() for name in MODELS
    )
    if is_kaldi and grammar is not None:
        fix = f"convert it first: cortext lm import {directory} --out OUT"
        raise LanguageModelError(f"is a Kaldi folder with {grammar}", where=directory, fix=fix)
    if not (is_kaldi and (directory / GRAPH).is_file()):
        yield directory
        return
    with TemporaryDirectory(prefix="cortext-lm-") as folder:
        yield import_kaldi(directory, Path(folder) / "lm", stage=stage).directory


def read_words(path: Path) -> Words:
    """Read `words.txt`: lines `WORD NUMBER`. Raises LanguageModelError naming the file and line."""
    numbers: dict[int, str] = {}
    seen: set[str] = set()
    for number, fields in _lines(path):
        if len(fields) != 2 or not _NUMBER.fullmatch(fields[1]):
            raise LanguageModelError(
                f"{' '.join(fields)[:40]!r} is not 'WORD NUMBER'", where=f"{path}, line {number}"
            )
        if fields[0] in seen or int(fields[1]) in numbers:
            raise LanguageModelError(
                f"{fields[0]!r} or its number occurs twice", where=f"{path}, line {number}"
            )
        numbers[int(fields[1])] = fields[0]
        seen.add(fields[0])
    if not numbers:
        raise LanguageModelError("no words in it", where=path)
    if max(numbers) > 10 * len(numbers) + 1000:  # each number up to the last takes memory
        raise LanguageModelError(
            f"has {len(numbers):,} words, and one of number {max(numbers):,}", where=path
        )
    names = _names([numbers.get(number, f"<{number}>") for number in range(max(numbers) + 1)])
    names += [name for name in (BOS, EOS) if name not in names]
    backoff = names.index(_DISAMBIGUATION) if _DISAMBIGUATION in names else -1
    return Words(names, names.index(BOS), names.index(EOS), backoff)


def _names(words: list[str]) -> list[str]:
    """Return words in lower case.

    A word that would then equal another (`US` and `us`) stays as it is written.
    """
    as_written = set(words)
    names: dict[str, None] = {}
    for word in words:
        lower = word.lower()
        names[
            lower if lower not in names and (lower == word or lower not in as_written) else word
        ] = None
    return list(names)


def _lexicon(folder: Path, words: list[str], progress: Progress) -> tuple[Lexicon, dict[str, int]]:
    """Return pronunciations of `words`, and counts of those from the folder, others, and none."""
    own = _folder_lexicon(folder)
    lexicon = Lexicon()
    for done, word in enumerate(words, start=1):
        if done % 1000 == 0:
            progress(done, len(words))
        for pronunciation in own.pronunciations(word) or (
            pronounce(word) if _WORD.fullmatch(word) else ()
        ):
            lexicon.add(word, pronunciation)
    from_folder = sum(word in own for word in words)
    counts = {
        "from_folder": from_folder,
        "added": len(lexicon) - from_folder,
        "without": len(words) - len(lexicon),
    }
    return lexicon, counts


def _folder_lexicon(folder: Path) -> Lexicon:
    """Return the lexicon that lies in the folder; an empty one if none does."""
    units: dict[str, str] = {}
    for name in ("lexicon.txt", "lexiconp.txt", "lexicon_numbers.txt"):
        path = folder / name
        if name == "lexicon_numbers.txt" and path.is_file():
            if not (folder / "units.txt").is_file():
                continue
            units = {
                fields[1]: fields[0]
                for _, fields in _lines(folder / "units.txt")
                if len(fields) == 2
            }
        if path.is_file():
            return _read_lexicon(path, units)
    return Lexicon()


def _read_lexicon(path: Path, units: dict[str, str]) -> Lexicon:
    """Read lines `WORD P1 P2 ...`.

    In `lexiconp.txt` a probability follows the word; in `lexicon_numbers.txt` phonemes are numbers
    of units.
    """
    lexicon = Lexicon()
    for number, (word, *symbols) in _lines(path):
        if path.name == "lexiconp.txt":
            symbols = symbols[1:]
        phonemes = [_STRESS.sub("", units.get(symbol, symbol)).upper() for symbol in symbols]
        if phonemes[-1:] == [SIL]:
            phonemes.pop()
        if word[0] in "<[!" or not phonemes:
            continue
        try:
            lexicon.add(_VARIANT.sub("", word).lower(), phonemes)
        except TextError as error:
            raise LanguageModelError(
                error.what, where=f"{path}, line {number}", fix=error.fix
            ) from None
    return lexicon


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield number and fields of the lines of a file that are not empty."""
    try:
        check_file(path, _MOST_BYTES)
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if fields := line.split():
                    yield number, fields
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LanguageModelError(
            f"cannot read it: {reason}", where=path, fix="copy the whole folder again"
        ) from None


def write_arpa(path: Path, names: list[str], levels: list[NGrams]) -> None:
    """Write n-grams as ARPA text, some at a time.

    Args:
        path: File to write.
        names: Words by number.
        levels: N-grams of each order, shortest first.
    """
    with path.open("w", encoding="utf-8") as file:
        file.write("\\data\\\n")
        file.writelines(
            f"ngram {order}={len(level.words)}\n" for order, level in enumerate(levels, start=1)
        )
        for order, level in enumerate(levels, start=1):
            file.write(f"\n\\{order}-grams:\n")
            for first in range(0, len(level.words), _ROWS):
                rows = slice(first, first + _ROWS)
                texts = [
                    " ".join([names[number] for number in ngram])
                    for ngram in level.words[rows].tolist()
                ]
                probs = level.log10_prob[rows].tolist()
                backoffs = level.log10_backoff[rows].tolist()
                if order == len(levels):
                    file.writelines(
                        f"{prob:.7g}\t{text}\n" for prob, text in zip(probs, texts, strict=True)
                    )
                else:
                    lines = zip(probs, texts, backoffs, strict=True)
                    file.writelines(
                        f"{prob:.7g}\t{text}\t{backoff:.7g}\n" for prob, text, backoff in lines
                    )
        file.write("\n\\end\\\n")
