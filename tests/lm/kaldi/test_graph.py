"""The words of compiled graphs: made by Kaldi's code from a known lexicon and a known model."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import pytest
from attack_process import check_all
from refusals import complaint, refused

from cortext.cli import run
from cortext.decoding import Decoder
from cortext.decoding.fake import fake_log_probs
from cortext.decoding.ngram import LanguageModel
from cortext.text.inventory import LM, RELEASE
from cortext_bench.decoder.kaldi import _topology_arcs as corrected_topology
from cortext_lm.kaldi.folder import converted, import_kaldi, read_words
from cortext_lm.kaldi.grammar import Words
from cortext_lm.kaldi.graph import GraphWords, read_graph
from cortext_lm.kaldi.openfst import Fst, read_fst

pytest.importorskip("kaldifst", reason="makes the graphs")
pytest.importorskip("kaldilm", reason="makes the graphs")
import kaldifst
from kaldi_graph import unigram_arpa, write_folder

# Homophones, variants, words that begin others, a repeated phoneme, a word of one phoneme.
SPELT = {
    "read": ["R EH D", "R IY D"],
    "red": ["R EH D"],
    "a": ["AH", "EY"],
    "about": ["AH B AW T"],
    "he": ["HH IY"],
    "heed": ["HH IY D"],
    "see": ["S IY"],
    "sea": ["S IY"],
    "seas": ["S IY Z"],
    "oo": ["UW UW"],
}
KINDS = {
    "no silence": {},
    "a closing silence in the lexicon": {"closed": True},
    "an optional silence": {"silence": 0.5},
    "a silence that is seldom": {"silence": 0.1},
}


def unigrams(seed: int = 0) -> tuple[dict[str, float], float]:
    """log10 probabilities of the words, and of the end of a sentence."""
    probs = np.random.default_rng(seed).dirichlet(np.ones(len(SPELT) + 1))
    return dict(zip(SPELT, np.log10(probs[1:]).tolist(), strict=True)), float(np.log10(probs[0]))


def graph_of(folder: Path) -> GraphWords:
    path = folder / "TLG.fst"
    return read_graph(read_fst(path), read_words(folder / "words.txt"), path)


def log10_probs(graph: GraphWords) -> dict[str, float]:
    return dict(zip(graph.names, graph.unigrams.log10_prob.tolist(), strict=True))


def variants(graph: GraphWords) -> dict[str, list[str]]:
    found = {word: graph.lexicon.pronunciations(word) for word in graph.lexicon}
    return {word: sorted(" ".join(one) for one in each) for word, each in found.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_words_pronunciations_and_scores_are_those_that_the_graph_was_made_of(
    tmp_path: Path, kind: str
) -> None:
    words, end = unigrams()
    arpa = unigram_arpa(words, end)
    graph = graph_of(write_folder(tmp_path, SPELT, arpa, rounding=1e-6, **KINDS[kind]))
    assert variants(graph) == {word: sorted(each) for word, each in SPELT.items()}
    assert not graph.lexicon.weighted
    found = log10_probs(graph)
    assert found.pop("<s>") == -99
    expected = {**words, "</s>": end}
    assert {word: value * math.log(10) for word, value in found.items()} == pytest.approx(
        {word: value * math.log(10) for word, value in expected.items()}, abs=1e-4
    )


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_kaldis_own_where_it_has_rounded_them(tmp_path: Path, kind: str) -> None:
    """By default Kaldi rounds the weight of each arc to 1/1024 before it minimises."""
    words, end = unigrams(1)
    folder = write_folder(tmp_path, SPELT, unigram_arpa(words, end), **KINDS[kind])
    found = log10_probs(graph_of(folder))
    graph = kaldifst.StdVectorFst.read(str(folder / "TLG.fst"))
    number = {word: n for n, word in enumerate(read_words(folder / "words.txt").names)}

    def cost(sentence: list[str]) -> float:
        """Cost of the best path that writes the sentence, found by Kaldi."""
        labels = [number[word] for word in sentence]
        arcs = [f"{n} {n + 1} {label} {label}\n" for n, label in enumerate(labels)]
        sentences = kaldifst.compile("".join([*arcs, f"{len(labels)}\n"]))
        kaldifst.arcsort(graph, "olabel")
        best = kaldifst.shortest_path(kaldifst.compose(graph, sentences))
        _, _, _, weight = kaldifst.get_linear_symbol_sequence(best)
        return float(weight.value)

    # What a second word adds: itself, and an optional silence, which costs each word the same.
    once = {word: cost(["oo", word]) - cost(["oo"]) for word in SPELT}
    ours = {word: -found[word] * math.log(10) for word in SPELT}
    skipped = once["oo"] - ours["oo"]
    # Kaldi's best path leaves the silence out; the arcs that follow one are rounded on their own.
    tolerance = 1.1 / 1024 if "silence" in KINDS[kind] else 1e-4
    expected = {word: each + skipped for word, each in ours.items()}
    assert once == pytest.approx(expected, abs=tolerance)
    for word, value in words.items():
        assert found[word] == pytest.approx(value, abs=2e-3)


def test_the_rules_of_ctc_may_be_the_exact_ones(tmp_path: Path) -> None:
    """Our benchmark compiles a graph in which a phoneme leads to the next without a blank."""
    words, end = unigrams()
    folder = write_folder(
        tmp_path,
        SPELT,
        unigram_arpa(words, end),
        silence=0.5,
        rounding=1e-6,
        topology=corrected_topology,
    )
    graph = graph_of(folder)
    assert variants(graph) == {word: sorted(each) for word, each in SPELT.items()}
    assert log10_probs(graph) == pytest.approx({**words, "</s>": end, "<s>": -99.0}, abs=1e-4)


def test_pronunciations_of_other_costs_get_weights(tmp_path: Path) -> None:
    # Two words of one name would be one word with two pronunciations.
    words, end = unigrams()
    folder = write_folder(tmp_path, SPELT, unigram_arpa(words, end), rounding=1e-6)
    table = (folder / "words.txt").read_text().replace("SEA 8\n", "")
    graph = read_fst(folder / "TLG.fst")
    sea = list(SPELT).index("sea") + 1
    heed = list(SPELT).index("heed") + 1
    outputs = np.where(graph.outputs == sea, heed, graph.outputs).astype(np.int32)
    joined = Fst(
        graph.start, graph.final, graph.first, graph.inputs, outputs, graph.weights, graph.targets
    )
    (folder / "words.txt").write_text(table)
    found = read_graph(joined, read_words(folder / "words.txt"), folder / "TLG.fst")
    better, worse = sorted(("heed", "sea"), key=lambda word: -words[word])
    code = {"heed": ("HH", "IY", "D"), "sea": ("S", "IY")}
    weights = dict(
        zip(found.lexicon.pronunciations("heed"), found.lexicon.weights("heed"), strict=True)
    )
    assert log10_probs(found)["heed"] == pytest.approx(words[better], abs=1e-4)
    assert weights == {
        code[better]: 1.0,
        code[worse]: pytest.approx(10 ** (words[worse] - words[better]), rel=1e-3),
    }


def test_a_folder_becomes_a_language_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, end = unigrams()
    folder = write_folder(tmp_path / "kaldi", SPELT, unigram_arpa(words, end), rounding=1e-6)
    assert run(["lm", "import", str(folder), "--out", str(tmp_path / "lm")]) == 0
    assert "pronunciations from graph" in capsys.readouterr().out
    model = LanguageModel.open(tmp_path / "lm")
    assert model.info()["imported"]["grammar"] == "TLG.fst"
    expected = (words["he"] + words["read"] + end) * math.log(10)
    assert model.sentence("he read") == pytest.approx(expected, abs=1e-4)
    with converted(folder) as directory:
        decoder = Decoder.from_dir(directory)
        log_probs_PV = fake_log_probs("he heed about", lexicon=model.lexicon)
        assert decoder.decode(log_probs_PV, RELEASE)[0].text == "he heed about"
    assert not directory.exists()
    with converted(tmp_path / "lm") as directory:
        assert directory == tmp_path / "lm"


def test_a_graph_of_a_higher_order_is_refused_with_the_way_out(tmp_path: Path) -> None:
    arpa = "\\data\\\nngram 1=12\nngram 2=2\n\n\\1-grams:\n-99\t<s>\t-0.3\n-1\t</s>\n"
    arpa += "".join(f"-1\t{word.upper()}\t-0.2\n" for word in SPELT)
    arpa += "\n\\2-grams:\n-0.1\t<s> HE\n-0.3\tSEE RED\n\n\\end\\\n"
    folder = write_folder(tmp_path / "kaldi", SPELT, arpa)
    with refused(r"no graph of a 1-gram model: .*two words.*; get .*cortext fetch lm-5gram OUT"):
        import_kaldi(folder, tmp_path / "lm")
    assert not (tmp_path / "lm").exists()


def test_another_kaldi_folder_is_to_be_imported_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("words.txt", "TLG.fst", "G.fst"):
        (tmp_path / name).write_text("")
    line = complaint(capsys, "lm-server", "--lm", tmp_path)
    assert f"is a Kaldi folder with G.fst; convert it first: cortext lm import {tmp_path}" in line


def made(
    arcs: object, n_states: int = 4, final: int = 0, weight: float = 0.0, end: float = 0.0
) -> Fst:
    """A graph of arcs (source, target, input, output), all of one weight."""
    table = np.array(arcs, dtype=np.int32).reshape(-1, 4)
    table = table[np.argsort(table[:, 0], kind="stable")]
    first = np.searchsorted(table[:, 0], np.arange(n_states + 1)).astype(np.int64)
    ends = np.full(n_states, np.inf, dtype=np.float32)
    ends[final] = end
    weights = np.full(len(table), weight, dtype=np.float32)
    return Fst(0, ends, first, table[:, 2], table[:, 3], weights, table[:, 1])


NAMES = Words(["<eps>", "a", "b", "#0", "<s>", "</s>"], 4, 5, 3)
AA = 1 + LM.index["AA"]
SIL = 1 + LM.sil
WORD = [(0, 1, AA, 1), (1, 0, 0, 0)]
HOSTILE = {
    "no arcs": (made([]), "has no arcs"),
    "a label beyond the tokens": (made([(0, 1, 99, 1)]), "input labels up to 99; the 41 tokens"),
    "a word beyond words.txt": (made([(0, 1, AA, 9)]), "labels beyond the words"),
    "no way back": (made([(0, 1, AA, 1), (1, 2, AA, 0)]), "spells no word"),
    "no end": (made([(0, 1, AA, 1), (1, 0, 0, 0)], final=3), "sentences end"),
    "phonemes without a word": (made([(0, 1, AA, 0), (1, 0, 0, 0)]), "phonemes without a word"),
    "two words at once": (made([(0, 1, AA, 1), (1, 0, AA, 2)]), "two words on a path"),
    "a silence within a word": (
        made([(0, 1, AA, 1), (1, 2, SIL, 0), (2, 0, AA, 0)]), "a silence within"
    ),
    "a circle of phonemes": (
        made([(0, 1, AA, 1), (1, 2, AA, 0), (2, 1, AA + 1, 0)]), "paths without an end"
    ),
    "a circle of nothing": (
        made([(0, 1, AA, 1), (1, 2, 0, 0), (2, 1, 0, 0)]), "paths without an end"
    ),
    "2 ** 100 paths": (
        made(
            [(0, 1, AA, 1), *((n, n + 1, AA + k, 0) for n in range(1, 100) for k in (0, 1))],
            n_states=101,
        ),
        "paths without an end",
    ),
    "a weight of infinity": (made(WORD, weight=np.inf), "infinite weight"),
    "a weight of minus infinity": (made(WORD, weight=-np.inf), "infinite weight"),
    "a probability above 1": (made(WORD, weight=-1), "a probability above 1"),
    "an end above 1": (made(WORD, end=-1), "a probability above 1"),
    "the start as a word": (made([(0, 1, AA, 4), (1, 0, 0, 0)]), "phonemes without a word"),
    "nothing but silence": (made([(0, 1, SIL, 0), (1, 0, 0, 0)]), "no state in which words begin"),
}  # fmt: skip


def test_what_is_no_graph_of_words_is_refused() -> None:
    def check(name: str) -> None:
        graph, says = HOSTILE[name]
        with refused(says, most_mb=50, most_s=20):
            read_graph(graph, NAMES, Path("TLG.fst"))

    check_all(list(HOSTILE), check)


def test_a_million_arcs_take_bounded_time_and_memory() -> None:
    def all_to_all(n: int, token: int, word: int) -> np.ndarray:
        source, target = (one.ravel() for one in np.indices((n, n)))
        arcs = np.column_stack([source, target, np.full(n * n, token), np.full(n * n, word)])
        return arcs[source != target]

    words = made(all_to_all(1000, AA, 1), n_states=1000)
    with refused("two words on a path", most_mb=400, most_s=20):
        read_graph(words, NAMES, Path("TLG.fst"))
    silent = all_to_all(300, 0, 0)
    arcs = np.concatenate([[[0, 1, AA, 1]], silent[silent[:, 0] > 0]])
    with refused("paths without an end", most_mb=400, most_s=60):
        read_graph(made(arcs, n_states=300), NAMES, Path("TLG.fst"))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    words, end = unigrams()
    folder = write_folder(tmp_path / "kaldi", SPELT, unigram_arpa(words, end))
    path = folder / "TLG.fst"
    whole = path.read_bytes()
    for damaged, says in (
        (b"", "is empty"),
        (whole[: len(whole) // 2], "truncated"),
        (whole[:-4], "truncated"),
        (whole + b"0000", "bytes follow"),
        (whole.replace(b"vector", b"consts", 1), "of type 'consts'"),
    ):
        path.write_bytes(damaged)
        with refused(says):
            import_kaldi(folder, tmp_path / "lm")
    path.write_bytes(b"")
    with path.open("r+b") as file:  # a sparse file takes no space
        file.truncate(3 << 30)
    with refused("too large for the graph of a 1-gram model .3.2 GB.; get the n-gram model itself"):
        import_kaldi(folder, tmp_path / "lm")
    path.write_bytes(whole[:18] + struct.pack("<i", 3) + whole[22:])
    with refused("TLG.fst: "):
        import_kaldi(folder, tmp_path / "lm")
    assert not (tmp_path / "lm").exists()
