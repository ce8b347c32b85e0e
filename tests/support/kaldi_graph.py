"""Decoding graphs compiled by Kaldi's code, as the release's scripts compile them.

The release's `make_tlg.sh`: T o det(min(L o G)), with WeNet's rules of CTC.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import kaldifst
import kaldilm

from cortext.text.inventory import LM

FIRST_MARK = len(LM) + 1
Pronunciations = Mapping[str, Sequence[str]]


def write_folder(
    folder: Path,
    spelt: Pronunciations,
    arpa: str,
    *,
    silence: float | None = None,
    closed: bool = False,
    rounding: float = 1 / 1024,
    topology: Callable[[int], Iterator[str]] | None = None,
) -> Path:
    """Write `TLG.fst` and `words.txt` of a lexicon and an n-gram model; return the folder.

    Args:
        folder: Folder to write.
        spelt: Pronunciations by word, as `HH IY`.
        arpa: The n-gram model.
        silence: Probability of the optional silence after a word; None for none.
        closed: Whether each pronunciation in the lexicon ends with SIL.
        rounding: What Kaldi rounds weights to before it minimises, and compares them by.
        topology: The rules of CTC; WeNet's by default.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = ["<eps>", *(word.upper() for word in spelt), "#0", "<s>", "</s>"]
    number = {name: n for n, name in enumerate(names)}
    (folder / "words.txt").write_text("".join(f"{name} {n}\n" for name, n in number.items()))
    (folder / "lm.arpa").write_text(arpa)
    kaldilm.arpa2fst(
        input_arpa=str(folder / "lm.arpa"),
        output_fst=str(folder / "G.fst"),
        disambig_symbol="#0",
        read_symbol_table=str(folder / "words.txt"),
        max_order=-1,
    )
    entries, n_marks = marked(spelt, closed)
    lexicon = kaldifst.compile("".join(lexicon_arcs(entries, number, n_marks, silence)))
    kaldifst.add_self_loops(lexicon, [FIRST_MARK], [number["#0"]])
    kaldifst.arcsort(lexicon, "olabel")
    graph = kaldifst.compose(lexicon, kaldifst.StdVectorFst.read(str(folder / "G.fst")))
    kaldifst.determinize_star(graph, delta=rounding, use_log=True)
    kaldifst.minimize_encoded(graph, rounding)
    kaldifst.arcsort(graph, "ilabel")
    tokens = kaldifst.compile("".join((topology or wenet_topology)(n_marks)))
    kaldifst.arcsort(tokens, "olabel")
    kaldifst.compose(tokens, graph).write(str(folder / "TLG.fst"))
    for name in ("G.fst", "lm.arpa"):
        (folder / name).unlink()
    return folder


def marked(spelt: Pronunciations, closed: bool) -> tuple[list[tuple[str, list[int]]], int]:
    """Return words with input labels, and the number of disambiguation labels, #0 included.

    `add_lex_disambig.pl` closes with one whatever sounds as another word or begins one.
    """
    labels = [
        (word.upper(), [1 + LM.index[symbol] for symbol in one.split() + ["SIL"] * closed])
        for word, variants in spelt.items()
        for one in variants
    ]
    same = Counter(tuple(one) for _, one in labels)
    prefixes = {tuple(one[:n]) for _, one in labels for n in range(1, len(one))}
    used: Counter[tuple[int, ...]] = Counter()
    entries = []
    for word, one in labels:
        key = tuple(one)
        if same[key] > 1 or key in prefixes:
            used[key] += 1
            one = [*one, FIRST_MARK + used[key]]
        entries.append((word, one))
    return entries, 2 + max(used.values(), default=0)


def lexicon_arcs(
    entries: Sequence[tuple[str, list[int]]],
    number: Mapping[str, int],
    n_marks: int,
    silence: float | None,
) -> Iterator[str]:
    """Yield the lexicon as `make_lexicon_fst.pl` prints it.

    State 0 is the start, 1 the place between words, 2 before a silence, 3 after it.
    """
    if silence is None:
        start = between = 0
        ends = [(0, 0.0)]
        yield "0\n"
    else:
        start, between = 0, 1
        ends = [(1, -math.log(1 - silence)), (2, -math.log(silence))]
        yield f"{start} 1 0 0 {ends[0][1]}\n{start} 2 0 0 {ends[1][1]}\n"
        yield f"2 3 {1 + LM.sil} 0\n3 1 {FIRST_MARK + n_marks - 1} 0\n1\n"
    state = 4
    for word, labels in entries:
        source, output = between, number[word]
        for label in labels[:-1]:
            yield f"{source} {state} {label} {output}\n"
            source, output, state = state, 0, state + 1
        for end, cost in ends:
            yield f"{source} {end} {labels[-1]} {output} {cost}\n"


def wenet_topology(n_marks: int) -> Iterator[str]:
    """Yield the rules of CTC as WeNet's `ctc_token_fst.py` prints them."""
    blank = 1 + LM.blank
    yield f"0 1 0 0\n1 1 {blank} 0\n2 2 {blank} 0\n2 0 0 0\n"
    for node, label in enumerate((n for n in range(1, len(LM) + 1) if n != blank), start=3):
        yield f"1 {node} {label} {label}\n{node} {node} {label} 0\n{node} 2 0 0\n"
    for mark in range(FIRST_MARK, FIRST_MARK + n_marks):
        yield f"0 0 0 {mark}\n"
    yield "0\n"


def unigram_arpa(log10_probs: Mapping[str, float], end: float) -> str:
    """Return an ARPA file of a 1-gram model, with the log10 probability of `</s>`."""
    rows = [f"{value}\t{word.upper()}" for word, value in log10_probs.items()]
    return "\n".join(
        [
            "\\data\\",
            f"ngram 1={len(rows) + 2}",
            "",
            "\\1-grams:",
            "-99\t<s>",
            f"{end}\t</s>",
            *rows,
            "",
            "\\end\\",
            "",
        ]
    )
