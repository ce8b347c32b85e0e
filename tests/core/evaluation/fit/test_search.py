"""Options fitted to log-probabilities of known sentences."""

import jiwer
import numpy as np
import pytest

from cortext.decoding import Decoder, DecoderOptions
from cortext.decoding.fake import fake_log_probs
from cortext.decoding.nbest import Hypothesis, NBest
from cortext.errors import DataError, DecodingError
from cortext.evaluation.fit import search
from cortext.evaluation.fit.search import fit_options, halves
from cortext.text.inventory import LM
from cortext.text.language import EN

SAID = ("i see you", "you see me", "we see you", "see me", "we see", "you see", "i see", "me i see")
SURE_OF_BLANKS = DecoderOptions(blank_penalty=1.0, sil_required=False, beam=14.0)


@pytest.fixture(scope="module")
def said() -> tuple[list[np.ndarray], list[str], list[int]]:
    """Noisy trials of a model that is far too sure of the blank, in the order of `lm`."""
    sentences = [SAID[number % len(SAID)] for number in range(24)]
    log_probs = []
    for number, sentence in enumerate(sentences):
        logits_PV = fake_log_probs(sentence, 3.0, number, "lm").astype(np.float64)
        logits_PV[:, LM.blank] += 10.0
        logits_PV -= np.log(np.exp(logits_PV).sum(axis=1, keepdims=True))
        log_probs.append(np.ascontiguousarray(logits_PV, dtype=np.float32))
    return log_probs, sentences, [number // 4 for number in range(24)]


@pytest.fixture(scope="module")
def fit(said, tiny):
    return fit_options(*said, tiny.lm, SURE_OF_BLANKS)


def wer(said, lm, options_of_trial) -> float:
    """Word errors by jiwer, each trial decoded alone."""
    log_probs, sentences, _ = said
    found = [
        Decoder.from_dir(lm, options_of_trial(number)).decode(log_probs_PV, "lm")[0].text
        for number, log_probs_PV in enumerate(log_probs)
    ]
    return jiwer.wer(sentences, found)


def test_the_rates_are_what_decoding_with_the_options_gives(said, tiny, fit):
    assert fit.start.rate == pytest.approx(wer(said, tiny.lm, lambda number: SURE_OF_BLANKS))
    assert fit.fitted.rate == pytest.approx(wer(said, tiny.lm, lambda number: fit.options))
    assert fit.cross_fitted.rate == pytest.approx(wer(said, tiny.lm, fit.options_for))


def test_fewer_errors_are_made_and_options_that_are_not_fitted_stay(fit):
    assert fit.fitted.rate < fit.start.rate / 2
    assert fit.cross_fitted.rate < fit.start.rate / 2
    assert fit.options.blank_penalty > 1
    assert (fit.options.beam, fit.options.max_active) == (14.0, SURE_OF_BLANKS.max_active)
    assert fit.n_trials == 24
    assert 4 < fit.tried <= 3 * 40
    assert fit.seconds > 0


def test_the_same_arguments_give_the_same_options_with_any_number_of_threads(said, tiny, fit):
    steps = []
    again = fit_options(
        *said,
        Decoder.from_dir(tiny.lm),
        SURE_OF_BLANKS,
        threads=3,
        progress=lambda done, total: steps.append((done, total)),
    )
    assert (again.options, again.halves) == (fit.options, fit.halves)
    assert again.cross_fitted == fit.cross_fitted
    assert steps == sorted(steps)
    assert all(0 < done <= total == 120 for done, total in steps)
    assert steps[-1] == (120, 120)


class Knowing(Decoder):
    """A decoder that gets a trial right by a rule of its options; the first number names it."""

    language = EN

    def __init__(self, sentences, is_right, options=DecoderOptions()):
        self.options, self.sentences, self.is_right = options, sentences, is_right

    def with_llm(self, llm):
        return self

    def with_options(self, **changes):
        return Knowing(self.sentences, self.is_right, self.options.changed(changes))

    def decode_batch(self, log_probs, inventory, threads=1, progress=None, context=""):
        found = []
        for log_probs_PV in log_probs:
            trial = len(log_probs_PV) - 1
            text = self.sentences[trial] if self.is_right(self.options, trial) else "wrong"
            found.append(NBest([Hypothesis(text, 0.0, 0.0, 0.0)]))
        return found


def numbered(n: int) -> list[np.ndarray]:
    """Trials whose number of frames says which they are."""
    return [np.full((trial + 1, 41), -np.log(41), np.float32) for trial in range(n)]


def test_no_half_is_judged_with_options_that_its_own_sentences_chose():
    """Options that are right on one half are wrong on the other: a leak would make no errors."""
    sentences = [f"s{'x' * trial}" for trial in range(40)]
    blocks = [trial // 5 for trial in range(40)]
    half_B = halves(sentences, blocks)
    wanted = ("max", "logadd")

    decoder = Knowing(sentences, lambda options, trial: options.recombine == wanted[half_B[trial]])
    fit = fit_options(numbered(40), sentences, blocks, decoder, DecoderOptions(recombine="logadd"))
    assert tuple(options.recombine for options in fit.halves) == wanted
    assert fit.cross_fitted.rate == 1.0
    assert fit.fitted.rate == 0.5
    assert [fit.options_for(trial).recombine for trial in (0, 39)] == [
        wanted[1 - half_B[trial]] for trial in (0, 39)
    ]


def test_without_a_difference_the_options_stay():
    decoder = Knowing([f"s{'x' * trial}" for trial in range(12)], lambda options, trial: trial % 3)
    start = DecoderOptions(
        blank_penalty=7.0, word_score=0.3, label_priors={"SIL": 0.5}, prior_weight=0.1
    )
    fit = fit_options(numbered(12), decoder.sentences, range(12), decoder, start)
    assert (fit.options, *fit.halves) == (start, start, start)
    assert fit.cross_fitted == fit.start


def fitted_where(is_right, n=40, **start):
    """Fit from `start` with a decoder that is right by a rule, each trial a block of its own."""
    decoder = Knowing([f"s{'x' * trial}" for trial in range(n)], is_right)
    return fit_options(numbered(n), decoder.sentences, range(n), decoder, start)


def test_a_difference_that_chance_makes_changes_no_options():
    """One error less where 19 trials differ: half a standard error is sqrt(19) / 2 = 2.2 errors."""

    def is_right(options: DecoderOptions, trial: int) -> bool:
        wrong = range(0, 38, 4) if options.recombine == "logadd" else range(2, 38, 4)
        return trial not in wrong

    fit = fitted_where(is_right, recombine="logadd")
    assert fit.options.recombine == "logadd"
    assert fit.start.rate == fit.fitted.rate == 10 / 40


def test_options_that_are_far_worse_are_tried_on_an_eighth_of_the_trials():
    tried: dict[DecoderOptions, set[int]] = {}

    def is_right(options: DecoderOptions, trial: int) -> bool:
        tried.setdefault(options, set()).add(trial)
        return options.recombine == "logadd"

    fitted_where(is_right, recombine="logadd")
    others = [trials for options, trials in tried.items() if options.recombine == "max"]
    assert others
    # An eighth of all 40 trials, and of each half: 5 + 3 + 3.
    assert max(map(len, others)) <= 11


def test_a_step_goes_to_the_neighbouring_value():
    fit = fitted_where(lambda options, trial: options.acoustic_scale == 0.5, acoustic_scale=0.4)
    assert fit.options.acoustic_scale == 0.5


@pytest.mark.parametrize("weigh", [True, False])
def test_label_priors_are_kept_only_where_they_have_a_weight(weigh):
    fit = fitted_where(lambda options, trial: bool(options.prior_weight) == weigh, prior_weight=0.3)
    for options in (fit.options, *fit.halves):
        assert bool(options.label_priors) == weigh
    assert weigh or fit.options.prior_weight == 0.3


def test_what_is_reported_is_decoded_with_the_beam_of_the_options():
    """While options are compared, the beam is narrower."""
    fit = fitted_where(lambda options, trial: options.beam == 14.0, beam=14.0)
    assert fit.start.rate == fit.fitted.rate == fit.cross_fitted.rate == 0.0


def test_a_search_ends_after_the_steps_that_it_may_take(monkeypatch):
    monkeypatch.setattr(search, "MOST_STEPS", 5)
    assert fitted_where(lambda options, trial: False).tried == 5  # the same in all searches


def test_a_large_model_has_no_part_in_a_fit():
    class Ranking(Knowing):
        def with_llm(self, llm):
            assert llm is None
            return Knowing(self.sentences, self.is_right)

        def with_options(self, **changes):
            raise AssertionError("the large model would rank")

    decoder = Ranking(["a", "b"], lambda options, trial: True)
    assert fit_options(numbered(2), ["a", "b"], [0, 1], decoder).fitted.rate == 0.0


def test_a_sample_keeps_trials_of_both_halves_and_leaves_out_those_without_words():
    sentences = ["" if trial == 3 else f"s{'x' * trial}" for trial in range(12)]
    decoded = set()

    def is_right(options: DecoderOptions, trial: int) -> bool:
        decoded.add(trial)
        return True

    def sample(frames: int, seed: int) -> set[int]:
        decoded.clear()
        fit = fit_options(
            numbered(12),
            sentences,
            range(12),
            Knowing(sentences, is_right),
            seed=seed,
            frames=frames,
        )
        assert fit.n_trials == len(decoded)
        assert {fit.half[trial] for trial in decoded} == {0, 1}
        return set(decoded)

    assert sample(10**6, 0) == set(range(12)) - {3}
    assert sum(trial + 1 for trial in sample(40, 0)) <= 40
    assert sample(40, 0) != sample(40, 1)
    assert len(sample(1, 0)) >= 2


def test_halves_are_of_whole_blocks_with_about_as_many_words():
    sentences = [f"word {'x' * (1 + trial)}" for trial in range(40)]
    half_B = halves(sentences, [trial // 5 for trial in range(40)])
    assert [set(half_B[at : at + 5]) for at in range(0, 40, 5)] == [{0}, {1}] * 4


def test_equal_sentences_are_in_one_half_whatever_their_blocks():
    generator = np.random.default_rng(0)
    for n_sentences in (2, 30, 300):
        sentences = [f"s{'x' * number}" for number in generator.integers(0, n_sentences, 200)]
        half_B = halves(sentences, [trial // 20 for trial in range(200)])
        for sentence in set(sentences):
            assert len({half_B[n] for n in range(200) if sentences[n] == sentence}) == 1
        assert 80 <= (half_B == 0).sum() <= 120


def test_one_block_is_split_by_sentence():
    assert sorted(halves(["a", "b", "c", "d"], [0, 0, 0, 0])) == [0, 0, 1, 1]


def test_what_are_no_log_probabilities_is_one_line_that_names_the_trial(tiny):
    trials = numbered(2)
    with pytest.raises(DecodingError, match=r"utterance 1: .*sum to .*; apply log-softmax"):
        fit_options([trials[0], trials[1] + 3], ["a", "b"], [0, 1], tiny.lm)


def test_trials_without_frames_are_fitted_to_nothing():
    empty = [np.empty((0, 41), np.float32)] * 2

    never = Knowing(["a", "b"], lambda options, trial: False)
    fit = fit_options(empty, ["a", "b"], [0, 1], never, DecoderOptions())
    assert fit.options == DecoderOptions()
    assert fit.cross_fitted.rate == 1.0


@pytest.mark.parametrize(
    ("references", "message"),
    [
        (["I see.", "i see"], "different sentences: 1; at least two are needed"),
        (["...", ""], "different sentences: 0; at least two are needed"),
        (["a", "b", "c"], "2 trials, 3 references, 2 blocks; one of each per trial is needed"),
    ],
)
def test_too_little_to_fit_is_one_line(references, message, tiny):
    with pytest.raises(DataError, match=message) as error:
        fit_options(numbered(2), references, [0, 1], tiny.lm)
    assert "\n" not in str(error.value)
