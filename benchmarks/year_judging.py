"""Errors and confidences of a model on the sentences of a simulated day that judge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from cortext.data import PackedDataset
from cortext.decoding import Decoder
from cortext.decoding.log_probs import greedy, log_softmax
from cortext.evaluation.calibration import words_right
from cortext.models import AcousticModel
from cortext.text import normalize
from cortext.text.metrics import edit_counts


def judge(
    model: AcousticModel, data: PackedDataset, session: str, layer_of: str, decoder: Decoder
) -> dict[str, Any]:
    """Return phoneme and word errors on the sentences of a day that judge.

    Args:
        model: The model.
        data: Packed data.
        session: The day.
        layer_of: Session whose day layer the model uses.
        decoder: The search, with the run's options.

    Returns:
        `phoneme_errors`, `phonemes`, `word_errors`, `words`; `by_sentence`, word errors and words
        of each sentence; `confidences`, of each decoded word its confidence, the posterior of the
        search, and 1 if it is right; `sentences`, the same of each sentence, with the product of
        its words' posteriors.
    """
    split = data.split("val").select(sessions=[session])
    errors = dict.fromkeys(("phoneme_errors", "phonemes", "word_errors", "words"), 0)
    by_sentence: list[tuple[int, int]] = []
    confidences: list[tuple[float, float, int]] = []
    sentences: list[tuple[float, float, int]] = []
    for start in range(0, len(split), 16):
        rows = np.arange(start, min(start + 16, len(split)))
        batch = split.batch(rows)
        logits_BPV, n_patches_B = model.logits_batch(
            batch.features_BTC, [layer_of] * len(rows), batch.n_bins_B
        )
        found = [
            log_softmax(logits_PV[:n]) for logits_PV, n in zip(logits_BPV, n_patches_B, strict=True)
        ]
        lists = decoder.decode_batch(found, model.inventory)
        raw = decoder.with_calibrator(None).decode_batch(found, model.inventory)
        for row, log_probs_PV, nbest, own in zip(rows, found, lists, raw, strict=True):
            trial = split.trial(row)
            assert trial.phoneme_ids is not None
            assert trial.sentence is not None
            of_phonemes = edit_counts(
                trial.phoneme_ids.tolist(), greedy(log_probs_PV, model.inventory)
            )
            said = normalize(trial.sentence).split()
            word_errors = edit_counts(said, nbest[0].text.split()).errors
            by_sentence.append((word_errors, len(said)))
            errors["phoneme_errors"] += of_phonemes.errors
            errors["phonemes"] += of_phonemes.reference_length
            errors["word_errors"] += word_errors
            errors["words"] += len(said)
            product = math.prod(word.confidence or 0.0 for word in own[0].words)
            of_sentence = round(nbest.confidence or 0.0, 4), round(product, 4)
            sentences.append((*of_sentence, int(word_errors == 0)))
            right = words_right(normalize(trial.sentence), nbest[0].words, decoder.language)
            confidences += [
                (
                    round(word.confidence or 0.0, 4),
                    round(raw_word.confidence or 0.0, 4),
                    int(is_right),
                )
                for word, raw_word, is_right in zip(
                    nbest[0].words, own[0].words, right, strict=True
                )
            ]
    lists_of = {"by_sentence": by_sentence, "confidences": confidences, "sentences": sentences}
    return errors | lists_of


def retained(
    model: AcousticModel, data: PackedDataset, known: Sequence[str], decoder: Decoder
) -> dict[str, int]:
    """Return the errors that a model makes at last on the days that it learnt first.

    Args:
        model: The model at the end of its course.
        data: Packed data.
        known: The first days; each is decoded with its own layer.
        decoder: The search, with the run's options.

    Returns:
        `phoneme_errors`, `phonemes`, `word_errors`, `words`.
    """
    days = [judge(model, data, session, session, decoder) for session in known]
    names = ("phoneme_errors", "phonemes", "word_errors", "words")
    return {name: sum(day[name] for day in days) for name in names}
