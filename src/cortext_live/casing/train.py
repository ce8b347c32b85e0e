"""Training of a casing model on text, on one core in minutes.

One part in twenty of the sentences is held out and measured, beside the rules; another one decides
which weights are kept. Some batches hold sentences that follow each other without a pause, as
people say them, so that marks in the middle are learnt, too.

Shapes: see `cortext_live.casing.model`.
"""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from cortext.config import check_fields
from cortext.errors import ConfigError
from cortext.files import check_writable
from cortext.processes import Progress, threads
from cortext.provenance import provenance
from cortext.settings import FROM_0_TO_1, SEED, THREADS, Setting
from cortext.text.language import EN, Language
from cortext_live.casing.model import (
    KINDS,
    MOST_KNOWN,
    CasingCard,
    CasingNetwork,
    Encoder,
    ModelCaser,
    kind_of,
    write_caser,
)
from cortext_live.casing.rules import case_english
from cortext_live.casing.scores import CasingScores
from cortext_live.casing.texts import WrittenSentence, part_of, read_sentences
from cortext_live.casing.writing import MARKS

Stage = Callable[[str], Progress | None]
HELD_OUT, DECIDES = 0, 1
"""Parts of the sentences that are not learnt from."""
LEAST_BATCHES = 1000
_IGNORED = -100
_TRUSTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
_UNKNOWN = 0.15
"""Share of the known words that are read as unknown ones, so that their letters are learnt."""


@dataclass(frozen=True)
class CasingSettings:
    """Settings of a training. Raises ConfigError for values out of bounds."""

    epochs: Annotated[int | None, Setting(minimum=1, maximum=1000)] = None
    """Readings of the text; None: six, and of a short text as many as make 1,000 batches."""
    batch: Annotated[int, Setting(minimum=1, maximum=4096)] = 64
    """Sentences of a batch."""
    lr: Annotated[float, Setting(minimum=1e-6, maximum=1)] = 3e-3
    """Highest learning rate; warmed up, then half a cosine down."""
    joined: Annotated[float, FROM_0_TO_1] = 0.1
    """Share of the sentences that are read together with the next one of the batch."""
    least_known: Annotated[int, Setting(minimum=1, maximum=1_000_000)] = 3
    """Occurrences from which on a word has an embedding of its own, which the file names."""
    threads: Annotated[int, THREADS] = 1
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        check_fields(self)


def train_case(
    texts: Sequence[Path],
    out: Path,
    language: Language = EN,
    options: CasingSettings | None = None,
    stage: Stage = lambda name: None,
) -> dict[str, Any]:
    """Train a casing model on texts, write it, and return its scores on held-out sentences.

    Args:
        texts: Text as people write it, plain or .gz, a sentence a line.
        out: File to write, `.safetensors`; another one is replaced as a whole.
        language: Language of the texts.
        options: Settings.
        stage: Called with the name of each stage; returns its progress callback or None.

    Raises:
        ConfigError: `out` has another ending.
        LanguageModelError: A text cannot be read.
        TextError: The texts have too few sentences, or no capitals or marks.
    """
    options = options or CasingSettings()
    if out.suffix != ".safetensors":
        raise ConfigError(f"--out is {out.name!r}; a name that ends in .safetensors is needed")
    check_writable(out)
    bar = stage("reading")
    sentences = read_sentences(texts, language, bar or (lambda done, total: None))
    held_out = [each for each in sentences if part_of(each) == HELD_OUT]
    decides = [each for each in sentences if part_of(each) == DECIDES]
    learnt = [each for each in sentences if part_of(each) not in (HELD_OUT, DECIDES)]
    caser, facts = fit_caser(learnt, decides, language, options, stage("training"))
    facts |= {
        "sources": [path.name for path in texts],
        "held_out": measure(caser, held_out),
        "provenance": provenance(),
    }
    write_caser(out, ModelCaser(replace(caser.card, facts=facts), caser.network))
    return {"model": str(out), "bytes": out.stat().st_size, **facts}


def measure(caser: ModelCaser, sentences: Sequence[WrittenSentence]) -> dict[str, Any]:
    """Return the figures of a model, and of the rules where the language is English."""
    scores = {"model": scored(caser, sentences).to_json()}
    if caser.card.language.is_benchmark:
        rules = CasingScores()
        for sentence in sentences:
            rules.add(sentence, case_english(sentence.words))
        scores["rules"] = rules.to_json()
    return scores


def scored(caser: ModelCaser, sentences: Sequence[WrittenSentence]) -> CasingScores:
    """Count what a model makes of sentences."""
    scores = CasingScores()
    for at in range(0, len(sentences), 256):
        some = sentences[at : at + 256]
        for sentence, shown in zip(some, caser.shown([each.words for each in some]), strict=True):
            scores.add(sentence, shown)
    return scores


def fit_caser(
    learnt: Sequence[WrittenSentence],
    decides: Sequence[WrittenSentence],
    language: Language = EN,
    options: CasingSettings | None = None,
    bar: Progress | None = None,
) -> tuple[ModelCaser, dict[str, Any]]:
    """Return a model that was trained on sentences, and facts about its training.

    Args:
        learnt: Sentences to learn from.
        decides: Sentences whose loss decides which weights are kept.
        language: Their language.
        options: Settings.
        bar: Called with batches done and in all.
    """
    options = options or CasingSettings()
    card = _card(learnt, language, options)
    with threads(options.threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        training = _CasingTraining(card, learnt, decides, options)
        facts = training.run(bar)
    facts |= {
        "sentences": len(learnt),
        "words": sum(len(sentence.words) for sentence in learnt),
        "known_words": len(card.known),
        "parameters": sum(weight.numel() for weight in training.network.parameters()),
        "options": asdict(options),
    }
    return ModelCaser(card, training.network), facts


def _card(
    learnt: Sequence[WrittenSentence], language: Language, options: CasingSettings
) -> CasingCard:
    counts = Counter(word for sentence in learnt for word in sentence.words)
    spelt: dict[str, Counter[str]] = {}
    for sentence in learnt:
        for place, (word, shown) in enumerate(zip(sentence.words, sentence.shown, strict=True)):
            # A first word's capital says nothing about the word.
            if place or kind_of(word, shown.spelling) == "mixed":
                spelt.setdefault(word, Counter())[shown.spelling] += 1
    spellings = {
        word: best
        for word, of_word in spelt.items()
        if kind_of(word, best := of_word.most_common(1)[0][0]) == "mixed"
    }
    known = [word for word, n in counts.most_common(MOST_KNOWN) if n >= options.least_known]
    return CasingCard(
        language,
        tuple(known),
        dict(list(spellings.items())[:MOST_KNOWN]),
        rules=language.is_benchmark,
    )


class _CasingTraining:
    """One training of a network."""

    def __init__(
        self,
        card: CasingCard,
        learnt: Sequence[WrittenSentence],
        decides: Sequence[WrittenSentence],
        options: CasingSettings,
    ) -> None:
        self.network = CasingNetwork(card)
        self._card = card
        self._encoder = Encoder(card, keeps=True)
        self._options = options
        self._learnt = learnt
        self._decides = decides
        self._rng = np.random.default_rng(options.seed)
        self._optimizer = torch.optim.AdamW(self.network.parameters(), options.lr)
        self._best = math.inf
        self._weights = copy.deepcopy(self.network.state_dict())

    def run(self, bar: Progress | None) -> dict[str, Any]:
        """Train; keep the weights with the smallest loss on the sentences that decide."""
        started = time.monotonic()
        per_epoch = math.ceil(len(self._learnt) / self._options.batch)
        epochs = self._options.epochs or max(6, math.ceil(LEAST_BATCHES / max(per_epoch, 1)))
        total = per_epoch * epochs
        losses = []
        step = 0
        for _ in range(epochs):
            self.network.train()
            for sentences in self._batches():
                share = step / total
                for group in self._optimizer.param_groups:
                    group["lr"] = self._options.lr * _schedule(share)
                self._optimizer.zero_grad()
                self._loss(sentences, drop=True).backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
                self._optimizer.step()
                step += 1
                if bar:
                    bar(step, total)
            losses.append(self._decide())
        self.network.load_state_dict(self._weights)
        return {
            "losses": [round(loss, 5) for loss in losses],
            "trust": self._trust_rules(),
            "seconds": round(time.monotonic() - started, 1),
        }

    def _decide(self) -> float:
        self.network.eval()
        with torch.inference_mode():
            parts = [self._decides[at : at + 256] for at in range(0, len(self._decides), 256)]
            losses = [self._loss(part).item() * len(part) for part in parts if part]
        loss = sum(losses) / max(len(self._decides), 1)
        if loss < self._best:
            self._best = loss
            self._weights = copy.deepcopy(self.network.state_dict())
        return loss

    def _trust_rules(self) -> float:
        """Trust the rules more than training does, where more sentences are right so.

        Training minimises the loss of words, and a sentence is wrong for one of them. Returns the
        log-odds that are added.
        """
        prior = self.network.prior
        if prior is None:
            return 0.0
        caser = ModelCaser(self._card, self.network)
        learnt = prior.weight.clone()
        right = {}
        for added in _TRUSTS:
            prior.weight.copy_(learnt + added * torch.eye(len(learnt)))
            right[added] = scored(caser, self._decides).right
        best = max(right, key=lambda added: right[added])
        prior.weight.copy_(learnt + best * torch.eye(len(learnt)))
        return best

    def _batches(self) -> Iterator[list[WrittenSentence]]:
        order = self._rng.permutation(len(self._learnt))
        for at in range(0, len(order), self._options.batch):
            sentences = [self._learnt[number] for number in order[at : at + self._options.batch]]
            together: list[WrittenSentence] = []
            for sentence in sentences:
                before = together[-1] if together else None
                if before and before.ends and self._rng.random() < self._options.joined:
                    together[-1] = WrittenSentence(
                        before.words + sentence.words,
                        before.shown + sentence.shown,
                        sentence.ends,
                    )
                else:
                    together.append(sentence)
            yield together

    def _loss(self, sentences: Sequence[WrittenSentence], drop: bool = False) -> Tensor:
        """Return the mean loss of a word: that of its capitals and that of its mark."""
        batch = self._encoder.batch([sentence.words for sentence in sentences])
        if drop:
            batch.known_N[torch.rand(len(batch.known_N)) < _UNKNOWN] = 0
        kind_NK, mark_NM = self.network(batch)
        kinds, marks = [], []
        for sentence in sentences:
            for place, (word, shown) in enumerate(zip(sentence.words, sentence.shown, strict=True)):
                is_open = place == len(sentence.words) - 1 and not sentence.ends
                kinds.append(KINDS.index(kind_of(word, shown.spelling)))
                marks.append(_IGNORED if is_open else MARKS.index(shown.mark))
        return cross_entropy(kind_NK, torch.tensor(kinds)) + cross_entropy(
            mark_NM, torch.tensor(marks), ignore_index=_IGNORED
        )


def _schedule(share: float) -> float:
    """Return the learning rate at a share of the training, over the highest one."""
    warm = 0.05
    if share < warm:
        return share / warm
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (share - warm) / (1 - warm)))
