"""A service that keeps a decoder calibrated: it follows the usage log of a live decoder.

It learns from the sentences there, and adds models to a chain. A model may speak once it was judged
on labelled sentences that no model of the chain has learnt from (`promotion`). All that it knows is
in its directory, so that it continues after being killed at any moment:

    CHAIN/chain.jsonl, models/   see `chain`
    CHAIN/learner/               the model that learns, and how far it has come in the log

Each part has a module: the log (`recorded`), the chain (`followed_chain`), the model that learns
and its position in the log (`resumable`), learning (`log_trainer`), new models (`candidates`), and
decisions about them (`decisions`). This one says whose turn it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path

from cortext.config import to_mapping
from cortext.data.packed import PackedDataset
from cortext.decoding.ngram.language_model import language_model_checksum
from cortext.evaluation.settings import Options
from cortext.models import load_model
from cortext_live.recalibration.bad_days import DayChecks
from cortext_live.recalibration.candidates import CandidateMaker, Making
from cortext_live.recalibration.chain import model_folder
from cortext_live.recalibration.chain_entries import ChainContents
from cortext_live.recalibration.comparing import ChainDecoder, ModelComparer
from cortext_live.recalibration.deciding import Decider
from cortext_live.recalibration.decisions import ChainDecisions
from cortext_live.recalibration.followed_chain import FollowedChain
from cortext_live.recalibration.held_out import HeldOut
from cortext_live.recalibration.labeller import Labeller
from cortext_live.recalibration.labels import labelling_search
from cortext_live.recalibration.log_trainer import LogTrainer
from cortext_live.recalibration.promotion import PromotionOptions
from cortext_live.recalibration.recorded import LoggedSentences, SentenceFault
from cortext_live.recalibration.resumable import ResumableLearner, lock_learner
from cortext_live.recalibration.settings import SERVICE_METHODS, ServiceOptions, method_settings
from cortext_live.usage.writer import now


class Recalibration:
    """The service, a piece of work at a time; a context manager.

    Args:
        run: Run directory that a new chain begins with.
        log: Directory of the usage log, with the features of all utterances.
        lm: Language-model directory.
        out: Directory of the chain.
        method: A key of `SERVICE_METHODS`.
        overrides: `key=value` changes of the method's settings.
        settings: Settings of the service.
        rule: Bounds of promotion.
        options: Decoder options; those fitted to the run by default.
        operator: Name of the person or program that runs it, for the chain.
        seed: Seed of noise, dropout and replay.
        pause: Is called before each piece of computation, of half a second at most; it may wait.
        old_data: Labelled recordings of days that the run knows, to replay; None for none.
        clock: Returns the time.

    Raises:
        CortextError: The run, the language model or the chain cannot be used, the chain began with
            another run, or another service works on it.
    """

    def __init__(
        self,
        run: str | Path,
        log: str | Path,
        lm: str | Path,
        out: str | Path,
        *,
        method: str = "together",
        overrides: Iterable[str] = (),
        settings: ServiceOptions = ServiceOptions(),
        rule: PromotionOptions = PromotionOptions(),
        options: Options = None,
        operator: str = "",
        seed: int = 0,
        pause: Callable[[], None] = lambda: None,
        old_data: str | Path | PackedDataset | None = None,
        clock: Callable[[], datetime] = now,
    ) -> None:
        self._settings = settings
        self._forgotten = set[int]()
        learning = method_settings(method, overrides, SERVICE_METHODS)
        base = load_model(run)
        self._chain = FollowedChain(Path(out), run, operator, clock)
        out, contents = self._chain.folder, self._chain.contents
        with ExitStack() as stack:
            stack.enter_context(lock_learner(out))
            decoder, _ = labelling_search(model_folder(out, 0), lm, options)
            decoder.lm.require(base.inventory, base.language, theirs="the run")
            self._sentences = LoggedSentences(
                Path(log), base.conventions, base.n_features, base.n_patches
            )
            labeller = Labeller(decoder, self._sentences, contents.id, pause)
            self._decoder = ChainDecoder(decoder, pause)
            self._decisions = _decisions(
                self._chain, self._sentences, self._decoder, labeller, settings, rule
            )
            self._trainer = LogTrainer(self._sentences, labeller, pause)
            self._learning = ResumableLearner(out, contents, learning, seed, old_data)
            made_with = {
                "decoder": to_mapping(decoder.options),
                "language_model": language_model_checksum(lm),
                "service": to_mapping(settings),
                "promotion": to_mapping(rule),
                **self._learning.origin,
            }
            making = Making(method, made_with, operator)
            self._candidates = CandidateMaker(
                self._chain, self._trainer, self._decisions, making, settings.kept
            )
            self._locks = stack.pop_all()

    def __enter__(self) -> Recalibration:
        return self

    def __exit__(self, *_: object) -> None:
        self._locks.close()

    @property
    def out(self) -> Path:
        """Directory of the chain."""
        return self._chain.folder

    @property
    def chain(self) -> ChainContents:
        """The chain as it was read last."""
        return self._chain.contents

    @property
    def set_aside(self) -> dict[int, str]:
        """Reasons why utterances of the log are not used, by their numbers."""
        return self._sentences.set_aside

    def work(self) -> bool:
        """Do a piece of work: learn from a sentence, or make and judge a model.

        A sentence that no model can be run on is set aside (`set_aside`). Learning then continues
        from where it was saved last, as after a kill.

        Returns:
            Whether there was any.

        Raises:
            CortextError: The log or the chain cannot be read, or the disk is full. Nothing is lost;
                the next call tries again.
        """
        try:
            self._sentences.refresh()
            self._follow_chain()
            self._follow_log()
            self._forget_deleted()
            # Decide first: a provisional model whose time is over may speak on, and until that is
            # known its parent must not be checked.
            return self._decide() or self._learn()
        except SentenceFault as fault:
            self._sentences.give_up(fault)
            return True

    def _follow_chain(self) -> None:
        """Begin again where a decision about the chain has left the learner's model behind.

        A person rolled back, or this process was killed after it wrote a decision.
        """
        self._chain.follow()
        latest = self._learning.position.latest
        if not self.chain.may_learn_from(latest):
            self._start_again(self.chain.learns_from(latest))

    def _start_again(self, model: int) -> None:
        self._learning.start_again(self.chain, model)
        self._learning.save(self.chain)

    def _follow_log(self) -> None:
        """Begin at the first new utterance of a log that is another than before."""
        position, log = self._learning.position, self._sentences.log
        if position.began == log.began:
            return
        if position.decoded or position.corrected or position.today:
            self._learning.start_again(self.chain, position.latest)
        # Each log counts its utterances from 0: decoded sentences have the numbers of others now.
        position.begin_log(log, self.chain.entries)
        self._forgotten = set()
        self._decoder.forget_all_but([])

    def _forget_deleted(self) -> None:
        """Drop utterances that were deleted from the log, in memory and on the disk."""
        deleted, began = self._sentences.log.deleted, self._sentences.began
        if began is None or deleted <= self._forgotten:
            return
        self._decoder.forget_sentences(deleted)
        self._learning.forget(self.chain, began, deleted)
        self._forgotten = deleted

    def _decide(self) -> bool:
        """Decide about a model of the chain; tell whether there was anything to decide."""
        if self._stop_worse():
            return True
        learner, position = self._learning.learner, self._learning.position
        before = position.before if learner.settings.together else None
        if self._decisions.judge(position.latest, before, learner):
            self._follow_chain()
            # These two are compared with the next candidate; of others the memory would fill.
            speaking = self.chain.speaking(self._chain.clock())
            self._decoder.forget_all_but([self.chain.parent, speaking])
            return True
        if self._decisions.check():
            self._stop_worse()
            return True
        return False

    def _stop_worse(self) -> bool:
        """Learn on from the parent, if the model that speaks proved worse; tell whether it did."""
        stopped = self._decisions.stop_worse()
        if stopped:
            self._start_again(self.chain.parent)
        return stopped

    def _learn(self) -> bool:
        """Learn from an utterance, or make a model; tell whether there was anything to learn."""
        position, log, time_now = self._learning.position, self._sentences.log, self._chain.clock()
        settings = self._settings
        # A person may have deleted some of those that wait.
        position.today = [number for number in position.today if number in log.utterances]
        enough = len(position.fresh) >= settings.every
        # All corrections of a day make one model. Learnt each by itself, they must not delay it.
        full = enough and not self._learning.learner.settings.together
        number = None if position.pending or full else position.next_correction(log)
        if number is None:
            quiet = timedelta(seconds=settings.quiet_s)
            day_ends = self._trainer.day_ends(position, quiet, time_now)
            if position.pending or enough or day_ends:
                self._candidates.make(self._learning, day_ends)
                return True
            settled = time_now - timedelta(seconds=settings.settle_s)
            number = position.next_utterance(log, settled)
        if number is None:
            return False
        with self._learning.undone_on_failure(self.chain):
            self._trainer.train_on(number, self._learning.learner, position)
        return True


def _decisions(
    chain: FollowedChain,
    sentences: LoggedSentences,
    decoder: ChainDecoder,
    labeller: Labeller,
    settings: ServiceOptions,
    rule: PromotionOptions,
) -> ChainDecisions:
    comparer = ModelComparer(chain.folder, decoder, sentences, settings, rule)
    held_out = HeldOut(chain.folder, sentences, labeller)
    days = DayChecks(chain.folder, comparer, sentences, labeller, settings.lost_confidence)
    decider = Decider(
        chain.folder, sentences, comparer, held_out, days, rule, settings, chain.clock
    )
    return ChainDecisions(chain, decider, days)
