"""kaldi-decoder on a static graph (TLG).

CTC topology, lexicon and n-gram are composed beforehand, as in Kaldi's recipes.

The graph takes about a quarter of a kilobyte per n-gram, so it is compiled from the smaller model
of `Paths.static`. Silence between words is optional; its cost is compiled in. The package has
neither a lattice decoder that caps the active tokens nor rescoring: `FasterDecoder` gives one
sentence, `LatticeSimpleDecoder` a raw lattice with n-best paths.

Mohri, Pereira, Riley: Weighted finite-state transducers in speech recognition, 2002; Miao,
Gowayyed, Metze: EESEN, arXiv 1507.08240.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cortext.text.inventory import SIL
from cortext.text.lexicon import Lexicon
from cortext_bench.decoder.searcher import (
    INVENTORY,
    NBEST,
    Paths,
    Settings,
    distinct,
    with_blank_penalty,
)
from cortext_bench.workers import Missing

SILENCE_PROBABILITY = 0.95
"""Probability of a silence between two words, estimated on the tuning half."""

FIRST_DISAMBIGUATION = len(INVENTORY) + 1
"""Input labels: 0 epsilon, then token number + 1, then #0 (back-off), #1, #2 ... (homophones and
prefixes).
"""

PATHS = 10 * NBEST
"""Paths taken out of a lattice for an n-best list."""


class KaldiBest:
    """kaldi-decoder's FasterDecoder: one best sentence."""

    package = "kaldi-decoder"
    note = "static graph of the 3-gram; one sentence, no n-best list"
    one_of = 1
    steps: ClassVar = {
        "acoustic_scale": (0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.2),
        "blank_penalty": (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0),
        "beam": (6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 14.0, 16.0, 18.0),
        "max_active": (200, 500, 1000, 2000, 3500, 7000, 14000),
    }
    start: ClassVar[Settings] = {
        "acoustic_scale": 0.5,
        "blank_penalty": 2.0,
        "beam": 14.0,
        "max_active": 7000,
    }
    speed: ClassVar = {"beam": -1, "max_active": -1}
    sizes: ClassVar = tuple(
        {"beam": beam, "max_active": max_active}
        for beam, max_active in ((7.0, 500), (8.0, 1000), (10.0, 2000), (12.0, 3500), (14.0, 7000))
    )

    def __init__(self, paths: Paths) -> None:
        try:
            import kaldi_decoder
            import kaldifst
            import kaldilm  # noqa: F401  (needed to compile the graph)
        except ImportError as error:
            raise Missing(f"{error}", fix="pip install kaldi-decoder kaldifst kaldilm") from None
        self._kaldi = kaldi_decoder
        self._kaldifst = kaldifst
        if not (paths.static / "lm.arpa").is_file():
            raise Missing(
                "the graph is compiled of lm.arpa, which is not there", where=paths.static
            )
        graph, words = compiled(paths)
        self._words = words.read_text(encoding="utf-8").split()[0::2]
        self._graph = kaldifst.StdConstFst.read(str(graph))
        self.configure(self.start)

    def configure(self, settings: Settings) -> None:
        """Use other settings from now on."""
        self._scale = settings["acoustic_scale"]
        self._penalty = settings["blank_penalty"]
        self._decoder = self._make(settings)

    def _make(self, settings: Settings) -> Any:
        options = self._kaldi.FasterDecoderOptions(
            beam=settings["beam"], max_active=settings["max_active"]
        )
        return self._kaldi.FasterDecoder(self._graph, options)

    def decode(self, log_probs_PV: np.ndarray) -> Any:
        """Search one utterance."""
        scores_PV = with_blank_penalty(log_probs_PV, self._penalty, self._scale)
        self._decoder.decode(self._kaldi.DecodableCtc(scores_PV))
        return self._paths()

    def _paths(self) -> Any:
        found, path = self._decoder.get_best_path()
        return [path] if found else []

    def texts(self, found: Any) -> list[str]:
        """Return the different sentences, best first."""
        return distinct([self._text(path) for path in found])

    def _text(self, path: Any) -> str:
        _, _, words, _ = self._kaldifst.get_linear_symbol_sequence(path)
        return " ".join(self._words[word] for word in words)


class KaldiLattice(KaldiBest):
    """kaldi-decoder's LatticeSimpleDecoder: a lattice and the best paths through it."""

    note = (
        "static graph of the 3-gram; no cap on active tokens; the n-best list is taken out of the"
        " lattice untimed"
    )
    steps: ClassVar = {
        "acoustic_scale": KaldiBest.steps["acoustic_scale"],
        "blank_penalty": KaldiBest.steps["blank_penalty"],
        "beam": KaldiBest.steps["beam"],
        "lattice_beam": (2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0),
    }
    start: ClassVar[Settings] = {
        "acoustic_scale": 0.5,
        "blank_penalty": 2.0,
        "beam": 14.0,
        "lattice_beam": 5.0,
    }
    speed: ClassVar = {"beam": -1, "lattice_beam": -1}
    sizes: ClassVar = tuple({"beam": beam} for beam in (7.0, 8.0, 10.0, 12.0))

    def _make(self, settings: Settings) -> Any:
        options = self._kaldi.LatticeSimpleDecoderConfig(
            beam=settings["beam"], lattice_beam=settings["lattice_beam"], determinize_lattice=False
        )
        return self._kaldi.LatticeSimpleDecoder(self._graph, options)

    def _paths(self) -> Any:
        return self._decoder.get_raw_lattice()

    def texts(self, found: Any) -> list[str]:
        """Return the different sentences of the lattice's best paths; many paths read the same."""
        complete, lattice = found
        return super().texts(self._kaldifst.lattice_to_nbest(lattice, n=PATHS) if complete else [])


def compiled(paths: Paths) -> tuple[Path, Path]:
    """Return the graph and its words; compile those that are missing or older than the model."""
    arpa = paths.static / "lm.arpa"
    graph = paths.cache / "tlg.fst"
    words = paths.cache / "words.txt"
    if graph.is_file() and graph.stat().st_mtime >= arpa.stat().st_mtime:
        return graph, words
    paths.cache.mkdir(parents=True, exist_ok=True)
    lexicon = Lexicon.read(paths.static / "lexicon.txt")
    names = ["<eps>", *lexicon, "<unk>", "#0", "<s>", "</s>"]
    words.write_text(
        "".join(f"{name} {number}\n" for number, name in enumerate(names)), encoding="utf-8"
    )
    _compile(lexicon, {name: number for number, name in enumerate(names)}, arpa, words, graph)
    return graph, words


def _compile(lexicon: Lexicon, number: dict[str, int], arpa: Path, words: Path, out: Path) -> None:
    import kaldifst
    import kaldilm

    ngram = out.with_name("g.fst")
    kaldilm.arpa2fst(
        input_arpa=str(arpa),
        output_fst=str(ngram),
        disambig_symbol="#0",
        read_symbol_table=str(words),
        max_order=-1,
    )
    spelt, n_disambiguation = _disambiguated(lexicon)
    spellings = kaldifst.compile(
        "".join(_lexicon_arcs(spelt, number, FIRST_DISAMBIGUATION + n_disambiguation - 1))
    )
    kaldifst.add_self_loops(spellings, [FIRST_DISAMBIGUATION], [number["#0"]])
    kaldifst.arcsort(spellings, "olabel")
    graph = kaldifst.StdVectorFst.read(str(ngram))
    ngram.unlink()
    graph = kaldifst.compose(spellings, graph)
    # In the log semiring, as Kaldi's mkgraph.sh does it: the weights of a state's arcs still sum to
    # one afterwards, so that a beam prunes as it did on the n-gram.
    kaldifst.determinize_star(graph, use_log=True)
    kaldifst.minimize_encoded(graph)
    kaldifst.arcsort(graph, "ilabel")
    topology = kaldifst.compile("".join(_topology_arcs(n_disambiguation)))
    kaldifst.arcsort(topology, "olabel")
    graph = kaldifst.compose(topology, graph)
    kaldifst.arcsort(graph, "ilabel")
    partial = out.with_name(f"{out.name}.partial")
    kaldifst.StdConstFst(graph).write(str(partial))
    partial.replace(out)


def _disambiguated(lexicon: Lexicon) -> tuple[list[tuple[str, list[int]]], int]:
    """Return words with input labels, and the number of disambiguation labels, #0 included.

    Where a word sounds as another or begins one, such a label closes it. Without it the lexicon
    could not be determinised (Mohri et al. 2002): two paths would read the same and write different
    words.
    """
    spelt = [
        (word, tuple((INVENTORY.ids(pronunciation) + 1).tolist()))
        for word in lexicon
        for pronunciation in lexicon.pronunciations(word)
    ]
    counts: dict[tuple[int, ...], int] = {}
    prefixes = {labels[:length] for _, labels in spelt for length in range(1, len(labels))}
    for _, labels in spelt:
        counts[labels] = counts.get(labels, 0) + 1
    used: dict[tuple[int, ...], int] = {}
    closed = []
    for word, labels in spelt:
        mark = []
        if counts[labels] > 1 or labels in prefixes:
            used[labels] = used.get(labels, 0) + 1
            mark = [FIRST_DISAMBIGUATION + used[labels]]
        closed.append((word, [*labels, *mark]))
    return closed, 2 + max(used.values(), default=0)  # one more for what follows a silence


def _lexicon_arcs(
    spelt: list[tuple[str, list[int]]], number: dict[str, int], after_silence: int
) -> Iterator[str]:
    """Yield the lexicon as text, with an optional silence before every word and at the end.

    State 0 is the start, 1 the place between words (final), 2 is before a silence and 3 after it.
    """
    none = -math.log(1 - SILENCE_PROBABILITY)
    silence = -math.log(SILENCE_PROBABILITY)
    silent = INVENTORY.index[SIL] + 1
    yield (f"0 1 0 0 {none}\n0 2 0 0 {silence}\n2 3 {silent} 0\n3 1 {after_silence} 0\n1\n")
    state = 4
    for word, labels in spelt:
        source = 1
        output = number[word]
        for label in labels[:-1]:
            yield f"{source} {state} {label} {output}\n"
            source, output, state = state, 0, state + 1
        yield (
            f"{source} 1 {labels[-1]} {output} {none}\n{source} 2 {labels[-1]} {output} {silence}\n"
        )


def _topology_arcs(n_disambiguation: int) -> Iterator[str]:
    """Yield the rules of CTC as text: state 0 after a blank, one state after each other token.

    Repeats and blanks vanish.
    """
    blank = INVENTORY.blank + 1
    labels = [label for label in range(1, len(INVENTORY) + 1) if label != blank]
    state = {label: number for number, label in enumerate(labels, start=1)}
    yield f"0 0 {blank} 0\n"
    for label in labels:
        own = state[label]
        yield f"0 {own} {label} {label}\n{own} {own} {label} 0\n{own} 0 {blank} 0\n"
        for other in labels:
            if other != label:
                yield f"{own} {state[other]} {other} {other}\n"
    for each in range(len(labels) + 1):
        for label in range(FIRST_DISAMBIGUATION, FIRST_DISAMBIGUATION + n_disambiguation):
            yield f"{each} {each} 0 {label}\n"
        yield f"{each}\n"
