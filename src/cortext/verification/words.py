"""Checks of the words: the search over the validation split, and the published analyses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cortext.data import open_packed
from cortext.decoding import Decoder
from cortext.decoding.log_probs import log_softmax
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.options import DecoderOptions
from cortext.evaluation.recognise import number_trials
from cortext.files import atomic_write
from cortext.processes import Progress
from cortext.tables import json_text
from cortext.text.metrics import ErrorRate, error_rate
from cortext.text.normalize import normalize
from cortext.text.phonemes import RELEASE
from cortext.verification.baseline import read_logits
from cortext.verification.checks import Check, Outcome, judged, not_checked
from cortext.verification.published import Published

WITHOUT_LLM = 0.03
"""Points of WER that the baseline's large language model gains, at most.

The published WER is that of sentences ranked by OPT 6.7B; the search here has the n-gram alone. For
a GRU on T15's validation split 2 points were published for a large model in the search.
"""


@dataclass(frozen=True)
class Trials:
    """Validation trials: the packed data, and the file of the logits."""

    packed: Path
    logits: Path


def check_words(
    trials: Trials,
    lm: Path,
    options: DecoderOptions,
    published: Published,
    sentences: Path,
    threads: int,
    progress: Progress | None,
) -> Outcome:
    """Search for the sentences of the validation split and measure WER by session.

    Args:
        trials: The validation trials and their logits.
        lm: Language-model directory.
        options: Options of the search.
        published: The published WER and its language model.
        sentences: File to write with prompts and decoded sentences, a JSON object a line.
        threads: Threads of the search.
        progress: Called with trials done and in all.
    """
    facts = LanguageModel.open(lm).info()
    decoder = Decoder.from_dir(lm, options)
    logits = list(read_logits(trials.logits))
    log_probs = [log_softmax(logits_PV.astype("float32")) for _, _, logits_PV in logits]
    found = decoder.search_batch(log_probs, RELEASE, threads, progress)
    prompts = _prompts(trials.packed)
    lines = [
        {"session": session, "reference": prompts[number], "decoded": normalize(nbest[0].text)}
        for (number, session, _), nbest in zip(logits, found, strict=True)
    ]
    atomic_write(sentences, "".join(json_text(line) + "\n" for line in lines).encode())
    wer = _wer(lines)
    name = f"{facts['order']}-gram of {facts['lexicon_words']:,} words"
    sessions = {
        session: _facts(_wer([line for line in lines if line["session"] == session]))
        for session in dict.fromkeys(line["session"] for line in lines)
    }
    check = _judge(wer.rate or 0.0, name, facts, published)
    words = _facts(wer) | {"lm": name, "n_words": wer.counts.reference_length}
    words["options"] = asdict(options)
    return Outcome([check], {"words": words, "sessions": sessions})


def _prompts(packed: Path) -> dict[int, str]:
    """Return the normalised prompts of the validation split by number of the trial."""
    data = open_packed(packed)
    split = data.split("val")
    ids, _ = number_trials(split, data.bad_trials)
    return {number: normalize(split.sentence(i) or "") for i, number in enumerate(ids)}


def _wer(lines: Sequence[dict[str, Any]]) -> ErrorRate:
    return error_rate([x["reference"] for x in lines], [x["decoded"] for x in lines], "word")


def _facts(wer: ErrorRate) -> dict[str, Any]:
    return {"wer": wer.rate, "wer_ci95": [wer.low, wer.high]}


def _judge(wer: float, name: str, facts: dict[str, Any], published: Published) -> Check:
    said = f"{100 * wer:.1f} % with the {name}"
    theirs = f"{100 * published.wer:.1f} %"
    if facts["order"] < published.lm_order or facts["lexicon_words"] < published.lm_words:
        because = f"{theirs} was published with another language model; here {said}"
        return not_checked("WER", because)
    right = wer <= published.wer + WITHOUT_LLM
    return judged(
        "WER",
        right,
        f"{said}; published {theirs} with a large model's ranking,"
        f" without which {100 * WITHOUT_LLM:.0f} points more are allowed",
    )
