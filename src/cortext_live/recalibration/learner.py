"""A model that learns from one decoded or corrected sentence after another.

The new day of a recording begins with a copy of the day layer of the day before. Only the weights
that belong to the day learn, unless the whole model may.

Shapes: B sentences, T bins, C features, U labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from cortext.data.checks import frames_needed
from cortext.features import build_augmentations, prepare
from cortext.models import AcousticModel
from cortext.training.batches import AUGMENTATION, DROPOUT, TrainBatch, derived_seed
from cortext.training.config import TrainConfig
from cortext.training.loss import build_loss, loss_kind
from cortext.training.optim import Optimizer
from cortext_live.adapt import learning_parts, with_day
from cortext_live.recalibration.replay import LabelledSentence, ReplayMemory
from cortext_live.recalibration.settings import LearningOptions
from cortext_live.recalibration.wildcard import WildcardCTC


@dataclass(frozen=True)
class Learnt:
    """Steps and loss of one sentence.

    Attributes:
        steps: Steps of the optimiser.
        loss: Mean loss of the sentence's copies in the last step, before it.
        kept: Whether it is kept for replay, and so may be learnt from later.
    """

    steps: int
    loss: float
    kept: bool = True


@dataclass(frozen=True, eq=False)
class LearnerState:
    """All that a learner needs to continue.

    Attributes:
        model: The model as it is now.
        config: The training configuration that it learns with.
        settings: How it learns.
        seed: Seed of noise, dropout and replay.
        n_steps: Steps taken so far.
        session: The recording day that was begun last.
        steps_today: Steps taken on that day.
        known: Labelled sentences of earlier days that are kept for replay, the oldest first.
        decoded: Sentences that were learnt from as they were decoded, kept for replay likewise.
        corrected: Corrected ones, kept likewise.
        today: Sentences of the day that learnt together last.
        moments: The optimiser's tensors by name; see `Optimizer.state`.
    """

    model: AcousticModel
    config: TrainConfig
    settings: LearningOptions
    seed: int
    n_steps: int
    session: str
    steps_today: int
    known: tuple[LabelledSentence, ...]
    decoded: tuple[LabelledSentence, ...]
    corrected: tuple[LabelledSentence, ...]
    today: tuple[LabelledSentence, ...]
    moments: dict[str, torch.Tensor]


class Learner:
    """A model that keeps learning.

    The same sentences in the same order give the same weights: all noise depends on the seed and
    the number of the step.

    Args:
        model: The model to begin with; its weights are not changed.
        config: The training configuration of its run.
        settings: How it learns.
        seed: Seed of noise, dropout and replay.

    Attributes:
        model: The model as it is now.
        settings: How it learns.
        seed: Seed of noise, dropout and replay.
        n_steps: Steps taken so far.
        session: The recording day that was begun last.
        steps_today: Steps taken on that day.
        replay: Sentences that it keeps for replay.
        knows_wildcards: Labels may have `ANY`: the run's loss is CTC.
    """

    def __init__(
        self,
        model: AcousticModel,
        config: TrainConfig,
        settings: LearningOptions,
        *,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.settings = settings
        self.seed = seed
        self.n_steps = 0
        self._config = _learning_config(config, settings)
        self._extra = build_augmentations(config.dataset.augmentations)
        self._loss: Callable[[Any, TrainBatch, float], dict[str, torch.Tensor]]
        self._loss = build_loss(config.loss, config.model.kind, model.inventory)
        self.knows_wildcards = loss_kind(config.loss, config.model.kind) == "ctc"
        if self.knows_wildcards and settings.word_confidence:
            self._loss = WildcardCTC()
        self.replay = ReplayMemory(settings.remembered)
        self._start(model.sessions[-1])

    @classmethod
    def restored(cls, state: LearnerState) -> Learner:
        """Return a learner that continues, to the bit, as the one of the state would.

        Raises:
            KeyError, RuntimeError: For moments that are not those of the model.
        """
        learner = cls(state.model, state.config, state.settings, seed=state.seed)
        learner.begin_day(state.session)
        learner._optimizer.load(state.moments)
        learner.replay.known.extend(state.known)
        learner.replay.decoded.extend(state.decoded)
        learner.replay.corrected.extend(state.corrected)
        learner.replay.today = state.today
        learner.steps_today = state.steps_today
        learner.n_steps = state.n_steps
        return learner

    def state(self) -> LearnerState:
        """Return the state; its tensors change with the next step."""
        return LearnerState(
            model=self.model,
            config=self._config,
            settings=self.settings,
            seed=self.seed,
            n_steps=self.n_steps,
            session=self.session,
            steps_today=self.steps_today,
            known=tuple(self.replay.known),
            decoded=tuple(self.replay.decoded),
            corrected=tuple(self.replay.corrected),
            today=self.replay.today,
            moments=self._optimizer.state(),
        )

    def remember(self, sentences: Iterable[LabelledSentence]) -> None:
        """Keep labelled sentences of earlier days for replay, the last ones given if too many.

        Those that nothing can be learnt from are left out; see `learn`.
        """
        self.replay.known.extend(sentence for sentence in sentences if self._fits(sentence))

    def keep(self, sentence: LabelledSentence) -> bool:
        """Keep a sentence of an earlier day for replay; tell whether it can be learnt from.

        In either case it is no longer replayed with the label that it had before.
        """
        self.replay.drop(sentence.session, sentence.entry)
        fits = self._fits(sentence)
        self.replay.keep([sentence] if fits else [])
        return fits

    def fewest_tokens(self, n_bins: int) -> float:
        """Return the fewest tokens that a decoded sentence of so many bins is trusted with.

        It is a share (`LearningOptions.least_rate`) of the median of the labelled sentences that
        are replayed; 0 without any.
        """
        return self.settings.least_rate * n_bins * self.replay.tokens_per_bin()

    def begin_day(self, session: str) -> None:
        """Begin a recording day; a new one starts with the layer of the day before."""
        if session != self.session:
            self._start(session)

    def learn(
        self, sentence: LabelledSentence, before_step: Callable[[], None] = lambda: None
    ) -> Learnt:
        """Learn from a sentence, and keep it for replay.

        Nothing is learnt from a sentence whose label does not fit into its frames, for which CTC's
        loss is infinite, or whose features are not finite. Replayed, it would undo every step.

        Args:
            sentence: The sentence; its day is begun where it is another than the last one's.
            before_step: Is called before each step; it may wait.
        """
        self.begin_day(sentence.session)
        if not self._fits(sentence):
            self.replay.drop(sentence.session, sentence.entry)
            return Learnt(0, float("nan"), kept=False)
        settings = self.settings
        budget = settings.steps
        if settings.steps_per_day:
            budget = min(budget, settings.steps_per_day - self.steps_today)
        steps, loss = 0, float("nan")
        with torch.random.fork_rng(devices=[]):
            while steps < budget:
                before_step()
                loss = self._step(sentence)
                steps += 1
                if loss < settings.stop_loss:
                    break
        self.model.network.eval()
        self.steps_today += steps
        self.replay.keep([sentence])
        return Learnt(steps, loss)

    def learn_together(
        self,
        sentences: Sequence[LabelledSentence],
        steps: int,
        before_step: Callable[[], None] = lambda: None,
    ) -> int:
        """Learn from the sentences of one day so far, different ones in each batch.

        Call it again when the day has grown, with all its sentences and labels made anew by the
        model that has learnt: those of the last call are kept for replay when the next day begins.
        A batch has up to `together` sentences, drawn by `corrected_weight`, and `replayed` ones:
        half of labelled recordings, half of earlier days. Without copies of one sentence, few steps
        see the whole day, and a wrong label is one of many.

        Args:
            sentences: The sentences in the order of time; those that `learn` refuses are left out.
            steps: Steps to take, as far as the day has any left.
            before_step: Is called before each step; it may wait.

        Returns:
            The steps that were taken.
        """
        fitting = [sentence for sentence in sentences if self._fits(sentence)]
        if not fitting:
            return 0
        self.begin_day(fitting[-1].session)
        for each in fitting:  # or else its earlier label would be replayed, too
            self.replay.drop(each.session, each.entry)
        if self.settings.steps_per_day:
            steps = min(steps, self.settings.steps_per_day - self.steps_today)
        with torch.random.fork_rng(devices=[]):
            for number in range(steps):
                before_step()
                lr_share = _share_of_lr(number, steps, self.settings.lr_floor)
                self._train(self._drawn_together(fitting), lr_share)
        self.model.network.eval()
        self.steps_today += steps
        self.replay.today = tuple(fitting)
        return steps

    def _drawn_together(self, sentences: Sequence[LabelledSentence]) -> list[LabelledSentence]:
        """Return the sentences of a batch: different ones of the day, and replayed ones."""
        settings = self.settings
        drawn = np.random.default_rng((self.seed, self.n_steps))
        weight_S = np.array(
            [settings.corrected_weight if each.corrected else 1.0 for each in sentences]
        )
        chosen = drawn.choice(
            len(sentences),
            min(settings.together, len(sentences)),
            replace=False,
            p=weight_S / weight_S.sum(),
        )
        return [
            *(sentences[i] for i in chosen),
            *self.replay.draw_halves(settings.replayed, drawn),
        ]

    def _fits(self, sentence: LabelledSentence) -> bool:
        """Tell whether the label fits into the frames that augmentation leaves."""
        cut = max(0, self._config.dataset.data_transforms.random_cut - 1)
        n_frames = self.model.n_patches(len(sentence.features_TC) - cut, smooth=False)
        fits = len(sentence.labels_U) > 0 and frames_needed(sentence.labels_U) <= n_frames
        return bool(fits and np.isfinite(sentence.features_TC).all())

    def _start(self, session: str) -> None:
        """Make a copy of the model that knows the day, and an optimiser for what learns."""
        latest = self.model.sessions[-1]
        self.model = with_day(self.model, session, like=latest)
        names = () if self.settings.whole_model else tuple(learning_parts(self.model))
        for name, parameter in self.model.network.named_parameters():
            parameter.requires_grad_(not names or name.startswith(names))
        self._optimizer = Optimizer(self.model.network, self._config)
        self.session = session
        self.steps_today = 0
        self.replay.end_day()

    def _step(self, sentence: LabelledSentence) -> float:
        """Take one step; return the mean loss of the sentence's copies before it."""
        settings = self.settings
        drawn = np.random.default_rng((self.seed, self.n_steps))
        replayed = self.replay.draw(settings.replayed, drawn)
        loss_B = self._train([*[sentence] * settings.copies, *replayed])
        return float(loss_B[: settings.copies].mean())

    def _train(
        self, sentences: Sequence[LabelledSentence], share_of_lr: float = 1.0
    ) -> torch.Tensor:
        """Take one step on a batch; return its losses before it, float32 [B]."""
        batch = self._batch(sentences)
        network = self.model.network.train()
        torch.manual_seed(derived_seed(self.seed, DROPOUT, self.n_steps))
        loss_B = self._loss(network, batch, 1.0)["loss"]
        torch.autograd.backward(loss_B.mean())
        lr = share_of_lr * self.settings.lr
        self._optimizer.config = replace(
            self._config, lr_max=lr, lr_min=lr, lr_max_day=lr, lr_min_day=lr
        )
        self._optimizer.step(self.n_steps, batch.days)
        self.n_steps += 1
        return loss_B.detach()

    def _batch(self, sentences: Sequence[LabelledSentence]) -> TrainBatch:
        """Return sentences as a batch, with noise, smoothed."""
        n_bins_B = torch.tensor([len(each.features_TC) for each in sentences])
        n_labels_B = torch.tensor([len(each.labels_U) for each in sentences])
        x_BTC = torch.zeros(len(sentences), int(n_bins_B.max()), self.model.n_used_features)
        labels_BU = torch.zeros(len(sentences), int(n_labels_B.max()), dtype=torch.int64)
        columns = self.model.feature_subset
        for x_TC, labels_U, each in zip(x_BTC, labels_BU, sentences, strict=True):
            features_TC = each.features_TC if columns is None else each.features_TC[:, columns]
            x_TC[: len(features_TC)] = torch.from_numpy(features_TC)
            labels_U[: len(each.labels_U)] = torch.from_numpy(each.labels_U)
        generator = torch.Generator().manual_seed(
            derived_seed(self.seed, AUGMENTATION, self.n_steps)
        )
        x_BTC, n_bins_B = prepare(
            x_BTC,
            n_bins_B,
            self._config.dataset.data_transforms,
            generator,
            extra=self._extra,
            clear_padding=self.model.pads_last_patch,
        )
        day_B = torch.tensor([self.model.day(each.session) for each in sentences])
        own_1 = torch.tensor([self.model.day(self.session)])
        return TrainBatch(
            x_BTC,
            day_B,
            n_bins_B,
            self.model.n_patches(n_bins_B, smooth=False),
            labels_BU,
            n_labels_B,
            np.arange(len(sentences)),
            torch.unique(day_B) if self.settings.whole_model else own_1,
        )


def _share_of_lr(number: int, steps: int, floor: float) -> float:
    """Return the share of the learning rate at one of some steps: it falls in a line."""
    return 1.0 - (1.0 - floor) * number / max(1, steps - 1)


def _learning_config(config: TrainConfig, settings: LearningOptions) -> TrainConfig:
    """Return the configuration of a run with noise, rates and bounds of the settings."""
    transforms = replace(
        config.dataset.data_transforms,
        white_noise_std=settings.white_noise_std,
        constant_offset_std=settings.constant_offset_std,
    )
    return replace(
        config,
        dataset=replace(config.dataset, data_transforms=transforms),
        lr_scheduler_type="linear",
        lr_max=settings.lr,
        lr_min=settings.lr,
        lr_max_day=settings.lr,
        lr_min_day=settings.lr,
        weight_decay=settings.weight_decay,
        weight_decay_day=settings.weight_decay,
        grad_norm_clip_value=settings.clip,
        # As in `adapt`: within few steps the published 0.1 would hardly move the weights.
        epsilon=1e-8,
    )
