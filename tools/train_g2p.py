"""Train the grapheme-to-phoneme model on the shipped CMU Pronouncing Dictionary.

It is written to `src/cortext/text/data/g2p.npz`.

    python tools/train_g2p.py            (NumPy only, one core, deterministic)

1. A thousand words are held out *by lemma*: drawn with a fixed seed, and nothing that shares a
`stem` with one of them
   (its inflections, derivations, possessives, hyphenated compounds) is trained on.
2. EM aligns letters to zero, one or two phonemes each (all alignments weighted by forward-backward,
then the best one).
3. An n-gram model over the aligned pairs, modified Kneser-Ney (Chen & Goodman 1998), is pruned by
the likelihood that
   each n-gram gains over backing off (after Stolcke 1998), quantised to a byte a score, and
   written.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from rapidfuzz.distance import Levenshtein

from cortext.text import g2p
from cortext.text.inventory import ARPABET
from cortext.text.lexicon import Lexicon

SEED = 20150801
N_HELD_OUT = 1000
ORDER = 8
N_NODES = 600_000
EM_ITERATIONS = 12
MIN_GRAPHONE_COUNT = 3
N_PHONEMES = len(ARPABET)
N_LETTERS = len(g2p.LETTERS)
N_CHUNKS = 1 + N_PHONEMES + N_PHONEMES**2

INFLECTIONS = ("s", "es", "ed", "ing", "er", "ers", "est", "ies", "ied", "ier", "iest", "ying")
DERIVATIONS = tuple(
    """ly ily iness ness less ful able ible abl ibl ably ibly ability or ors in y ment ion ations ation ize ise iz is
    izer ization ism ist ity ive iv al ally ial ic ical ically ian an ance ence anc enc ancy ency ant ent ous ously ship
    hood dom like ish en ee eer age ag ary ery ory ess ette ett let ling man men""".split()
)
PREFIXES = (
    "un",
    "re",
    "non",
    "pre",
    "mis",
    "dis",
    "over",
    "under",
    "out",
    "anti",
    "inter",
    "super",
    "counter",
)


def stem(word: str) -> str:
    """Return a stem that inflections, derivations and possessives of a word share.

    It is rough, and cuts rather too much.

    What follows an apostrophe goes; then, until nothing changes, the longest ending of the lists
    above while two letters remain (three for derivations), else half of a doubled last letter, else
    vowels at the end but for the first two letters. Irregular forms (decide, decision) stay apart.
    """
    rest = word.partition("'")[0] or word.strip("'")
    before = ""
    while rest != before:
        before = rest
        shorter = [
            rest[: -len(e)] for e in INFLECTIONS if rest.endswith(e) and len(rest) >= len(e) + 2
        ]
        shorter = [] if rest.endswith("ss") else shorter
        shorter += [
            rest[: -len(e)] for e in DERIVATIONS if rest.endswith(e) and len(rest) >= len(e) + 3
        ]
        if shorter:
            rest = min(shorter, key=len)
        elif len(rest) > 3 and rest[-1] == rest[-2]:
            rest = rest[:-1]
        else:
            rest = rest[:2].replace("y", "i") + rest[2:].rstrip("aeiouy")
    return rest


def stems(word: str) -> set[str]:
    """The stems of the parts between hyphens, with and without a prefix.

    Related words have one in common.
    """
    parts = [part for part in word.split("-") if part]
    parts += [
        part.removeprefix(p)
        for part in parts
        for p in PREFIXES
        if part.startswith(p) and len(part) > len(p) + 2
    ]
    return {stem(part) for part in parts}


def held_out(
    lexicon: Lexicon, seed: int = SEED, n_words: int = N_HELD_OUT
) -> tuple[list[str], set[str]]:
    """Draw words of which no two share a stem, and all words that share a stem with them."""
    words = list(lexicon)
    tested: list[str] = []
    taken: set[str] = set()
    for number in np.random.default_rng(seed).permutation(len(words)):
        found = stems(words[number])
        if taken.isdisjoint(found):
            tested.append(words[number])
            taken |= found
        if len(tested) == n_words:
            break
    return tested, {word for word in words if not taken.isdisjoint(stems(word))}


def phoneme_error_rate(model: g2p.GraphoneModel, words: list[str], lexicon: Lexicon) -> float:
    """Edits to the nearest pronunciation over its length, pooled over words."""
    errors = length = 0
    for word in words:
        found = model.predict(word)
        distance, nearest = min(
            (Levenshtein.distance(found, reference), -len(reference))
            for reference in lexicon.pronunciations(word)
        )
        errors, length = errors + distance, length - nearest
    return errors / length


# --- Alignment
# ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpellingBatch:
    """Word-pronunciation pairs with equal numbers of letters (L) and phonemes (P)."""

    letters_BL: np.ndarray
    phonemes_BP: np.ndarray

    def emissions(self, table: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Indices into the table, and their values.

        For chunks of 0 [B,L,1], 1 [B,L,P] and 2 [B,L,P-1] phonemes.
        """
        one = 1 + self.phonemes_BP
        two = 1 + N_PHONEMES + self.phonemes_BP[:, :-1] * N_PHONEMES + self.phonemes_BP[:, 1:]
        row = self.letters_BL[:, :, None] * N_CHUNKS
        indices = [row, row + one[:, None, :], row + two[:, None, :]]
        return indices, [table[index] for index in indices]


def make_batches(pairs: list[tuple[str, tuple[str, ...]]]) -> list[SpellingBatch]:
    number = {phoneme: index for index, phoneme in enumerate(ARPABET)}
    shapes = defaultdict(list)
    for word, phonemes in pairs:
        if len(phonemes) <= 2 * len(word):
            shapes[len(word), len(phonemes)].append(
                ([g2p.LETTERS.index(letter) for letter in word], [number[p] for p in phonemes])
            )
    return [
        SpellingBatch(
            np.array([letters for letters, _ in same]), np.array([phonemes for _, phonemes in same])
        )
        for _, same in sorted(shapes.items())
    ]


def sweep(values: list[np.ndarray], maximum: bool = False) -> np.ndarray:
    """Forward scores [B, L+1, P+1].

    The sum (or maximum) over alignments of the first i letters with j phonemes.
    """
    zero, one, two = values
    n_batch, n_letters, n_phonemes = one.shape
    join = np.maximum if maximum else np.add
    alpha = np.zeros((n_batch, n_letters + 1, n_phonemes + 1))
    alpha[:, 0, 0] = 1.0
    for i in range(n_letters):
        alpha[:, i + 1] = alpha[:, i] * zero[:, i]
        alpha[:, i + 1, 1:] = join(alpha[:, i + 1, 1:], alpha[:, i, :-1] * one[:, i])
        alpha[:, i + 1, 2:] = join(alpha[:, i + 1, 2:], alpha[:, i, :-2] * two[:, i])
    return alpha


def expected_counts(batch: SpellingBatch, table: np.ndarray, counts: np.ndarray) -> None:
    """Add each graphone's expected count under `table` to `counts`."""
    indices, values = batch.emissions(table)
    alpha = sweep(values)
    beta = sweep([value[:, ::-1, ::-1] for value in values])[:, ::-1, ::-1]
    total = alpha[:, -1, -1][:, None, None]
    for size, (index, value) in enumerate(zip(indices, values, strict=True)):
        last = alpha.shape[2] - size
        posterior = alpha[:, :-1, :last] * value * beta[:, 1:, size:] / total
        index, posterior = np.broadcast_arrays(index, posterior)
        counts += np.bincount(index.ravel(), posterior.ravel(), minlength=len(counts))


def best_alignments(batch: SpellingBatch, table: np.ndarray) -> np.ndarray:
    """The graphone index of every letter [B, L] along the best alignment."""
    indices, values = batch.emissions(table)
    alpha = sweep(values, maximum=True)
    n_batch, n_letters, n_phonemes = values[1].shape
    rows = np.arange(n_batch)
    j = np.full(n_batch, n_phonemes)
    path = np.zeros((n_batch, n_letters), dtype=np.int64)
    for i in reversed(range(n_letters)):
        scores = np.full((3, n_batch), -1.0)
        graphones = np.zeros((3, n_batch), dtype=np.int64)
        for size in range(3):
            possible = rows[j >= size]
            before = j[possible] - size
            column = before if size else np.zeros_like(before)
            scores[size, possible] = alpha[possible, i, before] * values[size][possible, i, column]
            graphones[size, possible] = indices[size][possible, i, column]
        choice = scores.argmax(axis=0)
        path[:, i] = graphones[choice, rows]
        j = j - choice
    return path


def align(pairs: list[tuple[str, tuple[str, ...]]]) -> list[np.ndarray]:
    """Best alignments [B, L] of all pairs, one array a batch.

    As graphone numbers `letter * N_CHUNKS + chunk`.
    """
    batches = make_batches(pairs)
    table = np.full(N_LETTERS * N_CHUNKS, 1.0 / (N_LETTERS * N_CHUNKS))
    for _ in range(EM_ITERATIONS):
        counts = np.zeros_like(table)
        for batch in batches:
            expected_counts(batch, table, counts)
        table = np.maximum(counts / counts.sum(), 1e-12)
    return [best_alignments(batch, table) for batch in batches]


# --- The n-gram model
# -----------------------------------------------------------------------------------------------


@dataclass
class Level:
    """All n-grams of one order; `context` and `suffix` index the level below."""

    context: np.ndarray
    token: np.ndarray
    suffix: np.ndarray
    count: np.ndarray
    starts_word: np.ndarray
    p: np.ndarray | None = None
    backoff: np.ndarray | None = None


def count_ngrams(paths: list[np.ndarray], n_tokens: int, order: int) -> list[Level]:
    """Levels 1 to `order` of the sequences [B, L] of tokens, each between BEGIN and END."""
    padded = [
        np.pad(path, ((0, 0), (1, 1)), constant_values=((0, 0), (g2p.BEGIN, g2p.END)))
        for path in paths
    ]
    flat = np.concatenate([path.ravel() for path in padded])
    place = np.concatenate([np.tile(np.arange(path.shape[1]), len(path)) for path in padded])
    every = np.arange(n_tokens)
    none = np.zeros(n_tokens, dtype=np.int64)
    count = np.bincount(flat, minlength=n_tokens)
    levels = [Level(none, every, none, count, every == g2p.BEGIN)]
    node = flat.copy()
    for n in range(2, order + 1):
        ends = np.flatnonzero(place >= n - 1)
        keys, inverse, count = np.unique(
            node[ends - 1] * n_tokens + flat[ends], return_inverse=True, return_counts=True
        )
        suffix = np.zeros(len(keys), dtype=np.int64)
        suffix[inverse] = node[ends]
        context = keys // n_tokens
        levels.append(
            Level(context, keys % n_tokens, suffix, count, levels[-1].starts_word[context])
        )
        node = np.full_like(node, -1)
        node[ends] = inverse
    return levels


def smooth(levels: list[Level]) -> None:
    """Interpolated modified Kneser-Ney: fills `p` of every n-gram."""
    for n, level in enumerate(levels):
        count = level.count.copy()
        # How many different tokens precede it; nothing precedes the beginning of a word.
        if n + 1 < len(levels):
            seen = np.bincount(levels[n + 1].suffix, minlength=len(count))
            count = np.where(level.starts_word, count, seen)
        if n == 0:
            count[g2p.BEGIN] = 0
        n1, n2, n3, n4 = (int((count == k).sum()) for k in (1, 2, 3, 4))
        y = n1 / (n1 + 2 * n2)
        discounts = np.array([0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
        discount = discounts[np.minimum(count, 3)]
        n_contexts = 1 if n == 0 else len(levels[n - 1].count)
        total = np.maximum(np.bincount(level.context, count, n_contexts), 1)
        left_over = np.bincount(level.context, discount, n_contexts) / total
        lower = np.full(len(count), 1 / len(count)) if n == 0 else levels[n - 1].p[level.suffix]
        level.p = (count - discount) / total[level.context] + left_over[level.context] * lower


def set_backoffs(levels: list[Level]) -> None:
    """Back-off weights of every n-gram as a history: the probabilities after it sum to one."""
    levels[-1].backoff = np.ones(len(levels[-1].count))
    for lower, level in pairwise(levels):
        given = np.bincount(level.context, level.p, len(lower.count))
        replaced = np.bincount(level.context, lower.p[level.suffix], len(lower.count))
        lower.backoff = np.maximum(1 - given, 1e-6) / np.maximum(1 - replaced, 1e-6)


def prune(levels: list[Level], n_nodes: int) -> list[Level]:
    """The levels without the n-grams that gain least.

    With the contexts and suffixes of all that are kept.
    """
    gains = [np.full(len(levels[0].count), np.inf)]
    for lower, level in pairwise(levels):
        gains.append(
            level.count * np.log(level.p / (lower.backoff[level.context] * lower.p[level.suffix]))
        )
    ranked = np.sort(np.concatenate(gains))
    low = 0
    high = len(ranked)
    # The closure adds to what a threshold keeps: search for the threshold.
    while high - low > len(ranked) // 1000:
        middle = (low + high) // 2
        kept = _keep(levels, gains, ranked[-middle])
        low, high = (middle, high) if sum(map(np.count_nonzero, kept)) <= n_nodes else (low, middle)
    return _select(levels, _keep(levels, gains, ranked[-max(low, 1)]))


def _keep(levels: list[Level], gains: list[np.ndarray], threshold: float) -> list[np.ndarray]:
    kept = [gain >= threshold for gain in gains]
    for n in reversed(range(1, len(levels))):
        kept[n - 1][levels[n].context[kept[n]]] = True
        kept[n - 1][levels[n].suffix[kept[n]]] = True
    return kept


def _select(levels: list[Level], kept: list[np.ndarray]) -> list[Level]:
    selected = []
    renumber = np.zeros(1, dtype=np.int64)
    for level, keep in zip(levels, kept, strict=True):
        if keep.any():
            selected.append(
                Level(
                    renumber[level.context[keep]] if selected else level.context[keep],
                    level.token[keep],
                    renumber[level.suffix[keep]] if selected else level.suffix[keep],
                    level.count[keep],
                    level.starts_word[keep],
                    level.p[keep],
                )
            )
        renumber = np.cumsum(keep) - 1
    set_backoffs(selected)
    return selected


def quantise(log_values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A byte a value and the 256 levels (float32), the means of equally filled bins."""
    edges = np.unique(np.quantile(log_values, np.linspace(0, 1, 257)[1:-1]))
    code = np.searchsorted(edges, log_values, side="right").astype(np.uint8)
    size = np.bincount(code, minlength=len(edges) + 1)
    levels = np.bincount(code, log_values, len(edges) + 1) / np.maximum(size, 1)
    return code, levels.astype(np.float32)


def write(path: Path, levels: list[Level], graphones: np.ndarray) -> None:
    """The trie in breadth-first order; node 0 is the empty history."""
    n_children = [np.array([len(levels[0].count)])]
    n_children += [
        np.bincount(up.context, minlength=len(low.count)) for low, up in pairwise(levels)
    ]
    n_children.append(np.zeros(len(levels[-1].count), dtype=np.int64))
    log_p, log_p_levels = quantise(np.log(np.concatenate([[1.0], *[level.p for level in levels]])))
    log_backoff, log_backoff_levels = quantise(
        np.log(np.concatenate([[1.0], *[level.backoff for level in levels]]))
    )
    chunk = graphones % N_CHUNKS
    first = np.where(
        chunk == 0,
        N_PHONEMES,
        np.where(chunk <= N_PHONEMES, chunk - 1, (chunk - 1 - N_PHONEMES) // N_PHONEMES),
    )
    second = np.where(chunk <= N_PHONEMES, N_PHONEMES, (chunk - 1 - N_PHONEMES) % N_PHONEMES)
    none = np.full(2, 255)
    np.savez_compressed(
        path,
        token_letter_V=np.concatenate([none, graphones // N_CHUNKS]).astype(np.uint8),
        token_phonemes_V2=np.concatenate(
            [np.full((2, 2), N_PHONEMES), np.stack([first, second], 1)]
        ).astype(np.uint8),
        token_N=np.concatenate([[0], *[level.token for level in levels]]).astype(np.uint16),
        n_children_N=np.concatenate(n_children).astype(np.uint16),
        log_p_N=log_p,
        log_p_levels=log_p_levels,
        log_backoff_N=log_backoff,
        log_backoff_levels=log_backoff_levels,
    )


def train(words: list[str], lexicon: Lexicon, order: int, n_nodes: int, path: Path) -> None:
    paths = align([(word, variant) for word in words for variant in lexicon.pronunciations(word)])
    counts = np.bincount(np.concatenate([path.ravel() for path in paths]))
    graphones = np.flatnonzero(counts >= MIN_GRAPHONE_COUNT)
    token_of = np.full(len(counts), -1)
    token_of[graphones] = 2 + np.arange(len(graphones))
    tokens = [token_of[path] for path in paths]
    levels = count_ngrams(
        [path[(path >= 0).all(axis=1)] for path in tokens], 2 + len(graphones), order
    )
    smooth(levels)
    set_backoffs(levels)
    print(f"{len(graphones)} graphones; n-grams by order: {[len(level.count) for level in levels]}")
    levels = prune(levels, n_nodes)
    print(f"kept: {[len(level.count) for level in levels]}")
    write(path, levels, graphones)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=g2p.MODEL)
    parser.add_argument("--order", type=int, default=ORDER)
    parser.add_argument("--nodes", type=int, default=N_NODES, help="n-grams to keep")
    arguments = parser.parse_args()
    lexicon = Lexicon.cmu()
    started = time.perf_counter()
    tested, excluded = held_out(lexicon)
    words = [word for word in lexicon if word not in excluded]
    print(
        f"{len(words)} words to train on; {len(tested)} tested, {len(excluded)} left out with them"
    )
    train(words, lexicon, arguments.order, arguments.nodes, arguments.out)
    trained = time.perf_counter()
    rate = phoneme_error_rate(g2p.GraphoneModel.load(arguments.out), tested, lexicon)
    seconds = time.perf_counter() - trained
    print(
        f"{arguments.out}: {arguments.out.stat().st_size} bytes, trained in {trained - started:.0f}"
        f" s; phoneme error {rate:.2%} at {seconds / len(tested) * 1000:.1f} ms a word"
    )


if __name__ == "__main__":
    main()
