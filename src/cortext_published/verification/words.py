"""Checks of the words: the search over the validation split, and the published analyses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cortext.data import open_packed
from cortext.decoding.decoder import part_of
from cortext.decoding.log_probs import log_softmax
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.options import DecoderOptions
from cortext.evaluation.decoder_options import options_for
from cortext.evaluation.fit.options import TrialName
from cortext.evaluation.recognise import number_trials
from cortext.evaluation.settings import SearchSettings
from cortext.evaluation.word_search import WordSearch
from cortext.files import atomic_write
from cortext.processes import Progress
from cortext.tables import json_text
from cortext.text.inventory import RELEASE
from cortext.text.metrics import ErrorRate, error_rate
from cortext.text.normalize import normalize
from cortext_published.verification.baseline import read_logits
from cortext_published.verification.checks import Check, StageOutcome, judged, not_checked
from cortext_published.verification.published import Published
from cortext_published.verification.stages import fingerprint

WITHOUT_LLM = 0.03
"""Points of WER that the baseline's large language model gains, at most.

The published WER is that of sentences ranked by OPT 6.7B; the search here has the n-gram alone. For
a GRU on T15's validation split 2 points were published for a large model in the search.
"""


@dataclass(frozen=True)
class Trials:
    """Validation trials: the run, its packed data, and the file of the logits."""

    run: Path
    packed: Path
    logits: Path


@dataclass(frozen=True)
class Searching:
    """A language model and how to search with it.

    Attributes:
        lm: Language-model directory.
        options: Options of the search; None fits them to the validation trials.
        threads: Threads of the search; None for one a core.
    """

    lm: Path
    options: DecoderOptions | None
    threads: int | None = None

    @property
    def made_from(self) -> dict[str, Any]:
        """Options and checksums of files that the sentences depend on, as JSON types."""
        files = [path for path in self.lm.iterdir() if path.is_file()] if self.lm.is_dir() else []
        options = None if self.options is None else asdict(self.options)
        return {"options": options, "lm": fingerprint(files, self.lm)}

    def fitted(self, run: Path) -> Searching:
        """Return the search with the options that were fitted to a run, where it has any."""
        if self.options is not None or not run.is_dir():
            return self
        return replace(self, options=options_for(run, self.lm)[0])


def check_words(
    trials: Trials,
    search: Searching,
    published: Published,
    sentences: Path,
    progress: Progress | None,
) -> StageOutcome:
    """Search for the sentences of the validation split and measure WER by session.

    Options that are fitted to the split decode each trial with those of the other half.

    Args:
        trials: The validation trials and their logits.
        search: The search.
        published: The published WER and its language model.
        sentences: File to write with prompts and decoded sentences, a JSON object a line.
        progress: Called with steps done and in all.
    """
    facts = LanguageModel.open(search.lm).info()
    logits = list(read_logits(trials.logits))
    log_probs = [log_softmax(logits_PV.astype("float32")) for _, _, logits_PV in logits]
    names = _names(trials.packed, [number for number, _, _ in logits])
    fits = search.options is None
    settings = SearchSettings(lm=search.lm, options=search.options, threads=search.threads)
    words = WordSearch(trials.run, search.lm, settings, fits)
    if fits:
        data = str(trials.packed), "val"
        words.fit(log_probs, names, RELEASE, data, part_of(progress, 0, 2))
    bars = [part_of(progress, int(fits), 1 + fits), None]
    lists = words.sentences(log_probs, names, RELEASE, {}, bars)
    lines = [
        {"session": name.session, "reference": name.reference, "decoded": normalize(nbest[0].text)}
        for name, nbest in zip(names, lists, strict=True)
    ]
    atomic_write(sentences, "".join(json_text(line) + "\n" for line in lines).encode())
    wer = _wer(lines)
    model = f"the {facts['order']}-gram of {facts['lexicon_words']:,} words"
    finding = f"{100 * (wer.rate or 0):.1f} % with {model}"
    if (fitted := words.options.fitted) is not None:
        before = 100 * (fitted.word_errors.rate("start") or 0)
        finding += f" and options fitted on the other half ({before:.1f} % with the defaults)"
    check = _judge(wer.rate or 0.0, finding, facts, published, len(lines))
    sessions = {
        session: _facts(_wer([line for line in lines if line["session"] == session]))
        for session in dict.fromkeys(name.session for name in names)
    }
    about = _facts(wer) | {"lm": model, "n_words": wer.counts.reference_length}
    about |= {"options": asdict(words.options.options), "fitted": fits}
    return StageOutcome([check], {"words": about, "sessions": sessions})


def _names(packed: Path, numbers: Sequence[int]) -> list[TrialName]:
    """Return the names of validation trials, with their normalised prompts, by their numbers."""
    data = open_packed(packed)
    split = data.split("val")
    ids, _ = number_trials(split, data.bad_trials)
    position = {number: i for i, number in enumerate(ids)}
    return [TrialName.of(split, position[number]) for number in numbers]


def _wer(lines: Sequence[dict[str, Any]]) -> ErrorRate:
    return error_rate([x["reference"] for x in lines], [x["decoded"] for x in lines], "word")


def _facts(wer: ErrorRate) -> dict[str, Any]:
    return {"wer": wer.rate, "wer_ci95": [wer.low, wer.high]}


def _judge(
    wer: float, finding: str, facts: dict[str, Any], published: Published, n_trials: int
) -> Check:
    theirs = f"{100 * published.wer:.1f} %"
    if other_trials := published.other_trials(n_trials):
        return not_checked("WER", f"{other_trials}; {finding}; published {theirs}")
    if facts["order"] < published.lm_order or facts["lexicon_words"] < published.lm_words:
        because = f"{theirs} was published with another language model; here {finding}"
        return not_checked("WER", because)
    right = wer <= published.wer + WITHOUT_LLM
    return judged(
        "WER",
        right,
        f"{finding}; published {theirs} with a large model. Without one,"
        f" {100 * WITHOUT_LLM:.0f} points more are allowed",
    )
