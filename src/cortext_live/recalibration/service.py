"""A service that keeps a decoder calibrated: it follows the usage log of a live decoder.

It learns from what was said there, and adds models to a chain. A model may speak once it was judged
on labelled sentences that no model of the chain has learnt from (`promotion`). All that it knows is
in its directory, so that it goes on after being killed at any moment:

    CHAIN/chain.jsonl, models/   see `chain`
    CHAIN/learner/               the model that learns, and how far it has come in the log
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from cortext.config import to_mapping
from cortext.data.packed import PackedDataset
from cortext.decoding.ngram.language_model import language_model_checksum
from cortext.errors import CortextError, RunError
from cortext.evaluation.fit.confidence import FittedConfidence
from cortext.evaluation.fit.fitted_file import weights_checksum
from cortext.evaluation.fit.options import FittedOptions
from cortext.evaluation.settings import Options
from cortext.files import atomic_write, disk_errors, exclusive
from cortext.models import load_model, save_model
from cortext.training.adapt import run_config
from cortext_live.recalibration.chain import (
    LOCK_S,
    Chain,
    chain_state,
    intact_ancestor,
    is_intact,
    model_folder,
    open_chain,
    read_chain,
    verify_model,
)
from cortext_live.recalibration.chain_entries import Entry
from cortext_live.recalibration.deciding import Decider
from cortext_live.recalibration.forgetting import LEARNER, forget_in_store, numbers_in
from cortext_live.recalibration.judging import Evidence, Judge
from cortext_live.recalibration.labeller import Labeller
from cortext_live.recalibration.labels import labelling_search
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.lessons import Lessons
from cortext_live.recalibration.old_sentences import old_sentences
from cortext_live.recalibration.promotion import PromotionRule
from cortext_live.recalibration.recorded import LoggedSentences, SentenceFault
from cortext_live.recalibration.settings import SERVICE_METHODS, ServiceSettings, method_settings
from cortext_live.recalibration.state import FIX, LearnerStore, Position
from cortext_live.usage.writer import now

AUTOMATIC = "automatic"
"""Operator of a rollback that no person asked for."""


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
        settings: ServiceSettings = ServiceSettings(),
        rule: PromotionRule = PromotionRule(),
        options: Options = None,
        operator: str = "",
        seed: int = 0,
        pause: Callable[[], None] = lambda: None,
        old_data: str | Path | PackedDataset | None = None,
        clock: Callable[[], datetime] = now,
    ) -> None:
        self._pause = pause
        self._clock = clock
        self._old_data = old_data
        self._seen: tuple[int, int, int] | None = None
        self._forgotten = set[int]()
        self.out = Path(out)
        self.settings = settings
        self.rule = rule
        self._learning = method_settings(method, overrides, SERVICE_METHODS)
        self._method = method
        self._operator = operator
        self._seed = seed
        base = load_model(run)
        with open_chain(self.out, run, operator=operator, now=clock, wait_s=LOCK_S) as chain:
            self.chain = chain.contents
        if weights_checksum(run) != weights_checksum(model_folder(self.out, 0)):
            fix = "give that run, or another --out"
            raise RunError(f"the chain began with another run than {run}", where=self.out, fix=fix)
        self._stack = ExitStack()
        try:
            self._stack.enter_context(self._alone())
            decoder, _ = labelling_search(model_folder(self.out, 0), lm, options)
            decoder.lm.require(base.inventory, base.language, theirs="the run")
            self._judge = Judge(decoder, pause)
            self._sentences = LoggedSentences(
                Path(log), base.conventions, base.n_features, base.n_patches
            )
            self._labeller = Labeller(
                decoder, self._sentences, self._learning, self.chain.id, pause
            )
            self._lessons = Lessons(self._sentences, self._labeller, self._learning, pause)
            evidence = Evidence(self.out, self._judge, self._sentences, settings, rule)
            self._decider = Decider(
                self.out, evidence, self._sentences, self._labeller, rule, settings, clock
            )
            self._store = LearnerStore(self.out / LEARNER)
            self._options = {
                "decoder": to_mapping(decoder.options),
                "language_model": language_model_checksum(lm),
                "service": to_mapping(settings),
                "promotion": to_mapping(rule),
                **self._from(),
            }
            self._begin()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Recalibration:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _alone(self) -> AbstractContextManager[None]:
        folder = self.out / LEARNER
        with disk_errors(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        fix = "end that process, or give another --out"
        return exclusive(
            folder, RunError("another service works on this chain", where=folder, fix=fix)
        )

    def _writing(self) -> AbstractContextManager[Chain]:
        return open_chain(self.out, now=self._clock, wait_s=LOCK_S)

    def _begin(self) -> None:
        """Go on with the saved learner.

        If none is saved, or its settings have changed, begin with the latest model, and learn again
        what came after it.

        Raises:
            RunError: The saved learner is damaged, or of another chain.
        """
        saved = self._store.load()
        self._position = Position()
        if saved is None:
            self._start_again(
                max(filter(self.chain.may_go_on, self.chain.models), default=self.chain.parent)
            )
            return
        self._learner, note = saved
        self._position = Position.of_note(note["position"])
        if not any(each.hash == note["latest"] for each in self.chain.entries):
            what = "the saved learner has learnt on from a model that the chain does not have"
            raise RunError(what, where=self._store.folder, fix=FIX)
        if self._learner.settings != self._learning or note["from"] != self._from():
            position = self._position
            today = () if position.rested else position.today
            learnt = self.chain.learnt(position.latest)
            considered = position.considered
            decoded = (n for n in position.decoded if n not in considered)
            anew = [n for n in decoded if (position.began, n) not in learnt]
            position.next = min([position.next, *anew, *today])
            position.considered = {
                number: revision
                for number, revision in considered.items()
                if number < position.next
                and number not in position.corrected
                and number not in position.decoded
            }
            self._start_again(self._goes_on_from())

    def _from(self) -> dict[str, Any]:
        """Return what else than settings a learner begins with, as plain values."""
        old = self._old_data
        path = old.path if isinstance(old, PackedDataset) else old
        return {"seed": self._seed, "old_data": None if path is None else str(path)}

    def _start_again(self, number: int) -> None:
        """Begin to learn from a model of the chain, without the sentences that led elsewhere.

        Those that the model has learnt from are still replayed. What people corrected meanwhile is
        learnt anew, unless a model that is left behind has learnt from it.
        """
        folder = verify_model(self.out, self.chain.model(number))
        model = load_model(folder)
        config = run_config(folder, model)
        earlier = getattr(self, "_learner", None)
        self._learner = Learner(model, config, self._learning, seed=self._seed)
        if earlier is not None:
            self._learner.take_over(earlier, self.chain.learnt(number))
        if self._old_data is not None:
            days = load_model(model_folder(self.out, 0)).sessions
            most = self._learning.remembered // 2
            self._learner.remember(old_sentences(model, config, self._old_data, days, most))
        self._position.consider_again()
        self._position.begin(number)

    @property
    def set_aside(self) -> dict[int, str]:
        """Reasons why utterances of the log are not used, by their numbers."""
        return self._sentences.set_aside

    def work(self) -> bool:
        """Do a piece of work: learn from a sentence, or make and judge a model.

        A sentence that no model can be run on is set aside (`set_aside`). Learning then goes on
        from where it was saved last, as after a kill.

        Returns:
            Whether there was any.

        Raises:
            CortextError: The log or the chain cannot be read, or the disk is full. Nothing is lost;
                the next call tries again.
        """
        try:
            return self._work()
        except SentenceFault as fault:
            self._sentences.give_up(fault)
            return True

    def _work(self) -> bool:
        self._sentences.refresh()
        self._follow_chain()
        self._follow_log()
        self._forget_deleted()
        # Judge first: a provisional model whose time is over may speak on, and until that is known
        # its parent must not be checked.
        if self._silence_worse() or self._judge_candidate() or self._check_speaker():
            return True
        position, log, time_now = self._position, self._sentences.log, self._clock()
        position.today = [number for number in position.today if number in log.utterances]
        # All corrections of a day make one model. Learnt each by itself, they must not delay it.
        full = len(position.fresh) >= self.settings.every and not self._learning.together
        number = None if position.pending or full else position.next_correction(log)
        if number is not None:
            self._teach(number)
            return True
        quiet = timedelta(seconds=self.settings.quiet_s)
        day_ends = self._lessons.day_ends(position, quiet, time_now)
        if position.pending or len(position.fresh) >= self.settings.every or day_ends:
            self._add_model(day_ends)
            return True
        settled = time_now - timedelta(seconds=self.settings.settle_s)
        number = position.next_utterance(log, settled)
        if number is not None:
            self._teach(number)
        return number is not None

    def _teach(self, number: int) -> None:
        with self._or_as_saved():
            self._lessons.teach(number, self._learner, self._position)

    @contextmanager
    def _or_as_saved(self) -> Iterator[None]:
        """Go back to the saved learner on a failure: the position is ahead of what was learnt."""
        try:
            yield
        except CortextError:
            self._begin()
            raise
        except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError without memory
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            self._begin()
            fix = "end other programs; it is tried again"
            raise RunError("too little memory to learn", where=self.out, fix=fix) from None

    def _follow_chain(self) -> None:
        """Begin again where a decision about the chain has left the learner's model behind.

        A person rolled back, or this process was killed after it wrote a decision.
        """
        seen = chain_state(self.out)
        if seen != self._seen:
            found = read_chain(self.out)
            if self.chain.head not in (each.hash for each in found.entries):
                what = "the chain is another than before"
                raise RunError(what, where=self.out, fix="start the service again")
            self.chain, self._seen = found, seen
        if not self.chain.may_go_on(self._position.latest):
            self._start_again(self._goes_on_from())
            self._save()

    def _goes_on_from(self) -> int:
        """Return the model that learning goes on from: the latest one, if it may.

        If not, it is the one from before a day that was left out (`on_from`); or the one that
        speaks provisionally or did so last; or the parent.
        """
        chain, latest = self.chain, self._position.latest
        named = [each.facts.get("on_from") for each in chain.of(latest, "rejected")]
        for number in (latest, *named, chain.provisional):
            if number is not None and chain.may_go_on(number):
                return number
        return chain.parent

    def _follow_log(self) -> None:
        """Begin at the first new utterance of a log that is another than before."""
        position, began = self._position, self._sentences.began
        if position.began == began:
            return
        if position.decoded or position.corrected or position.today:
            self._start_again(position.latest)
        entries, utterances = self.chain.entries, self._sentences.log.utterances
        decoded, corrected = (
            {number for model in entries for number in _learnt(model, began, part)}
            for part in ("decoded", "corrected")
        )
        position.began, position.next = began, 1 + max(decoded | corrected, default=-1)
        # Which of several corrections was learnt is not known: one that followed is learnt, too.
        # What was learnt as it was decoded, and whose label was withdrawn, is not learnt again.
        position.considered = {
            number: utterances[number].revision
            for number in decoded & utterances.keys()
            if utterances[number].label is None and utterances[number].revision
        } | dict.fromkeys(corrected, 1)
        self._forgotten = set()
        self._judge.forget_all_but([])

    def _forget_deleted(self) -> None:
        """Drop utterances that were deleted from the log, in memory and on the disk."""
        deleted, began = self._sentences.log.deleted, self._sentences.began
        if began is None or deleted <= self._forgotten:
            return
        self._judge.forget_sentences(deleted)
        self._save()
        if forget_in_store(self.out / LEARNER, began, deleted):
            self._begin()
        self._forgotten = deleted

    def _learn_day(self) -> bool:
        """Learn from the day so far; tell whether any step was taken."""
        if not self._position.today:
            return False
        with self._or_as_saved():
            self._leave_bad_day(*self._lessons.waiting_day(self._position))
            return self._lessons.teach_day(self._learner, self._position)

    def _leave_bad_day(self, session: str, numbers: Sequence[int]) -> None:
        """When a new day begins, leave the one before out if it did harm.

        Its models are rejected, and its sentences are not replayed.
        """
        position, contents = self._position, self.chain
        if session in self._learner.model.sessions:
            return
        before, latest = position.before, position.latest
        why = None
        # A day whose model was promoted is kept: labels have proven it.
        if before is not None and contents.may_go_on(before):
            went_back = latest in contents.descent(before)
            intact = all(is_intact(self.out, contents.model(each)) for each in (before, latest))
            if intact and not went_back:
                why = self._decider.reason_to_leave(session, latest, before, numbers, self._learner)
        if before is None or why is None:
            position.before = latest
            return
        with self._writing() as chain:
            if chain.contents.head != contents.head:  # a person has rolled back meanwhile
                position.before = latest
                return
            descent = contents.descent(latest)
            since = descent[: descent.index(before)] if before in descent else [latest]
            for number in since:
                if number in contents.models:
                    chain.add("rejected", model=number, why=why, on_from=before)
            self.chain = chain.contents
        today, fresh, ends = position.today, position.fresh, position.ends
        considered = {n: r for n, r in position.considered.items() if n in today}
        self._start_again(before)
        position.considered |= considered
        position.before = before
        position.today, position.fresh, position.ends = today, fresh, ends
        self._save()  # a kill must not compare with the rejected model again

    def _save(self) -> None:
        latest = self.chain.entries[self._position.latest].hash
        position = self._position.to_note()
        note = {"position": position, "latest": latest, "from": self._from()}
        self._store.save(self._learner, note)

    def _add_model(self, day_ends: bool = False) -> None:
        """Add the learner's model to the chain.

        The learner is saved before and after: what fails between is done again, to the bit, and
        nothing is learnt twice.
        """
        position = self._position
        if not position.pending:
            position.ends = day_ends
            if self._learning.together and not self._learn_day():
                self._lessons.rest(position)
                return
            position.pending = True
            self._save()
        facts = self._facts()
        with self._writing() as chain:
            self.chain = chain.contents
            if not self.chain.may_go_on(position.latest):  # a person has rolled back meanwhile
                return
            facts["parent"] = self.chain.parent
            entry = chain.contents.entries[chain.contents.models[-1]]
            made = ("parent", "after", "steps", "learnt")
            if any(
                entry.facts.get(name) != facts[name] for name in made
            ):  # not killed before saving
                entry = chain.add_model("candidate", self._write_model, **facts)
            self._clear(chain, entry)
            self.chain = chain.contents
        today, ends = position.today, position.ends
        position.begin(entry.number)
        position.today, position.ends = today, ends
        self._lessons.rest(position)
        self._save()

    def _facts(self) -> dict[str, Any]:
        """Return what the next model of the chain has learnt from, and how."""
        position = self._position
        began = position.began
        own = {(began, number) for number in (*position.decoded, *position.corrected)}
        known = own | self.chain.learnt(position.latest)
        replayed = numbers_in(self._learner, began)
        return {
            "after": position.latest,
            "steps": self._learner.n_steps,
            "learnt": {
                "log": began,
                "decoded": list(position.decoded),
                "corrected": list(position.corrected),
                "replayed": [number for number in replayed if (began, number) not in known],
                "method": self._method,
                "settings": asdict(self._learning),
            },
            "options": self._options,
            "operator": self._operator,
        }

    def _judge_candidate(self) -> bool:
        """Judge the latest model, or anew one whose provisional time is over; tell whether.

        The chain is not locked meanwhile: a person may roll back.
        """
        contents = self.chain
        latest, lapsed = self._position.latest, contents.lapsed(self._clock())
        silent = latest not in (contents.parent, contents.provisional)
        if silent and not contents.of(latest, "judged"):
            entry = contents.entries[latest]
        elif lapsed is not None and self._decider.has_news(contents, contents.entries[lapsed]):
            entry = contents.entries[lapsed]
        else:
            return False
        before = self._position.before if self._learning.together else None
        judgement = self._decider.judge(contents, entry, before, self._learner)
        with self._writing() as chain:
            if chain.contents.head == contents.head:
                judgement.write(chain)
        self._follow_chain()
        self._judge.forget_all_but([self.chain.parent, self.chain.speaking(self._clock())])
        return True

    def _write_model(self, folder: Path) -> None:
        """Write the learner's model as a run, with what was fitted to its parent."""
        parent = model_folder(self.out, self.chain.parent)
        model = self._learner.model
        text = yaml.safe_dump(to_mapping(run_config(parent, model)), sort_keys=False)
        atomic_write(folder / "config.yaml", text.encode())
        save_model(model, folder)
        FittedOptions.take_over(parent, folder)
        FittedConfidence.take_over(parent, folder)

    def _check_speaker(self) -> bool:
        """Check the model that speaks; tell whether there was anything to check."""
        entry = self.chain.entries[self.chain.speaking(self._clock())]
        facts = self._decider.check(self.chain, entry)
        if facts is None:
            return False
        with self._writing() as chain:
            if chain.contents.head == self.chain.head:
                chain.add("checked", model=entry.number, **facts)
            self.chain = chain.contents
        self._silence_worse()
        return True

    def _silence_worse(self) -> bool:
        """Let an earlier model speak again where the last check found the speaker worse."""
        entry = self.chain.entries[self.chain.speaking(self._clock())]
        last = [each for each in self.chain.entries if each.model == entry.number][-1]
        if last.kind != "checked" or not last.facts["reason"]:
            return False
        reason = last.facts["reason"]
        with self._writing() as chain:
            if chain.contents.head != self.chain.head:  # a person has rolled back meanwhile
                return False
            if chain.contents.parent == entry.number:
                chain.roll_back(intact_ancestor(self.out, entry, self.chain), reason, AUTOMATIC)
            else:
                chain.add("rejected", model=entry.number, why=reason)
                intact = intact_ancestor(self.out, entry, chain.contents)
                if intact != chain.contents.parent:
                    chain.roll_back(intact, reason, AUTOMATIC)
            self.chain = chain.contents
        self._start_again(self.chain.parent)
        self._save()
        return True

    def _clear(self, chain: Chain, entry: Entry) -> None:
        """Remove the files of old models that no decision or rollback needs."""
        contents, position = chain.contents, self._position
        needed = {entry.number, contents.speaking(self._clock()), position.before or 0}
        for number in (contents.parent, entry.number, contents.provisional):
            needed.update(() if number is None else contents.lineage(number))
        others = [number for number in contents.models if number not in needed]
        for number in others[: -self.settings.kept]:
            chain.remove(number)


def _learnt(entry: Entry, began: int | None, part: str) -> list[int]:
    """Return the utterances of a log that a model has learnt from, by its entry alone.

    Args:
        entry: The model's.
        began: Second of the log's first entry.
        part: `decoded` or `corrected`.
    """
    learnt = entry.facts.get("learnt")
    return [] if learnt is None or learnt["log"] != began else learnt[part]
