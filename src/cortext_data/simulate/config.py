"""Settings of a simulation, and the presets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from cortext.config import check_fields, to_mapping, with_overrides
from cortext.data.conventions import LONGEST_BIN_MS, SHORTEST_BIN_MS, Conventions
from cortext.data.trial import BIN_MS
from cortext.errors import ConfigError, nearest
from cortext.settings import ABOVE_0, AT_LEAST_0, AT_LEAST_1, FROM_0_BELOW_1, Setting
from cortext.text.inventory import BLANK, HANDWRITING, RELEASE, SIL, Inventory
from cortext.text.language import EN, LANGUAGES, Language

N_ARRAYS = 4
ARRAYS = ("ventral 6v", "area 4", "55b", "dorsal 6v")
"""The four arrays of participant T15, in the order of the features (Card et al. 2024)."""
STEP_MS = 5
"""The grid on which utterances and articulators live; bins are whole multiples of it."""
EVENTS = ("array_losses", "garbage_days", "reference_changes")
"""Settings that count days of a plan of months on which something happens."""


def _later(default: Any) -> Any:
    """Return a field that `simulation.json` leaves out at its default, as it was before it came."""
    return field(default=default, metadata={"later": True})


@dataclass(frozen=True, kw_only=True)
class SimulatorConfig:
    """Everything that can be set in a simulation.

    `with_overrides(config, ["snr=0.5"])` changes fields by name.
    """

    seed: Annotated[int, Setting(minimum=0, below=1 << 63)] = 0
    """Seed of everything random; the same seed and config give the same data."""

    # The recording
    plan: Literal["regular", "t15", "months"] = "regular"
    """Plan of the recording days: `regular` has `n_days` equal days.

    `t15` has the days, blocks, sentences per block and corpora of participant T15. `months` has
    `n_days` equal days and then `later_days`, on some of which something happens.
    """
    n_days: Annotated[int, AT_LEAST_1] = 6
    """Recording days of a regular plan, two or three days apart as in the clinic's week."""
    train_per_day: Annotated[int, AT_LEAST_1] = 220
    """Training trials of each day of a regular plan."""
    val_per_day: Annotated[int, AT_LEAST_0] = 34
    """Validation trials of each day of a regular plan."""
    test_per_day: Annotated[int, AT_LEAST_0] = 16
    """Test trials of each day of a regular plan; their labels are withheld, as in the release."""
    trials_per_block: Annotated[int, AT_LEAST_1] = 50
    """Most trials of a block; features are z-scored per block (Card et al. 2024)."""
    later_days: Annotated[int, AT_LEAST_1] = _later(40)
    """Recording days of a plan of months after its first `n_days`, drawn but evenly spread."""
    later_span: int = _later(400)
    """Days over which the later days are spread."""
    later_per_day: tuple[int, int] = _later((20, 60))
    """Fewest and most training trials of a later day; the seed draws how many."""
    further_per_day: Annotated[int, AT_LEAST_0] = _later(0)
    """Validation trials of each later day. Nothing should learn from them: they judge."""
    name_share: Annotated[float, FROM_0_BELOW_1] = _later(0.0)
    """Share of the sentences of each split that call somebody by a name.

    The names of `text/names.txt` are in no dictionary, and not in `text/lm.txt`.
    """
    normalise: Literal["block", "none"] = _later("block")
    """Normalisation of the features that are written: z-scores by `block`, or `none`.

    With `none`, threshold crossings are counts per bin. Spike-band power is relative to the median
    electrode's at rest.
    """

    bin_ms: int = BIN_MS
    """Length of a bin of features in milliseconds, 5 to 50 in steps of 5."""
    inventory: Inventory = field(default=RELEASE, metadata={"key": False})
    """Tokens that are spoken; `simulate` sets them."""
    language: Language = field(default=EN, metadata={"key": False})
    """Language of the sentences; `simulate` sets it."""

    # Speech
    attempt: Literal["vocalized", "silent"] = "vocalized"
    """Manner of speaking: `vocalized`, or `silent`, mouthing without voice.

    `silent` is slower and drives the electrodes less, the larynx least of all.
    """
    phoneme_ms: Annotated[float, ABOVE_0] = 215.0
    """Mean duration of a phoneme, or a character, of intermediate length.

    The default gives about 60 words a minute with the default pauses.
    """
    phoneme_shape: Annotated[float, ABOVE_0] = 7.0
    """Shape of the gamma distribution of each phoneme's duration.

    Its coefficient of variation is shape**-0.5.
    """
    word_pause_ms: Annotated[float, AT_LEAST_0] = 300.0
    """Mean silence between words; attempted speech goes word by word."""
    lead_in_ms: Annotated[float, AT_LEAST_0] = 350.0
    """Mean silence between the go cue, where a trial begins, and the first phoneme."""
    trail_ms: Annotated[float, AT_LEAST_0] = 350.0
    """Mean silence between the last phoneme and the end of the trial."""
    rate_spread: Annotated[float, FROM_0_BELOW_1] = 0.15
    """Largest relative deviation of a block's speaking rate from the mean rate."""
    undershoot: Annotated[float, ABOVE_0] = 1.0
    """Factor on the width over which articulators blend neighbouring phonemes.

    0.5 is crisp, 2 is slurred.
    """

    # Electrodes
    n_electrodes: int = 64
    """Electrodes of the four arrays together.

    Each gives two features, threshold crossings and spike-band power.
    """
    snr: Annotated[float, AT_LEAST_0] = 1.0
    """Factor on the power of the activity that articulators drive; all else is unchanged.

    0.5 halves the signal-to-noise ratio.
    """
    modulation: Annotated[float, AT_LEAST_0] = 0.44
    """Median modulation depth.

    The depth is the standard deviation, in speech, of the part of an electrode's log rate that
    articulators cause.
    """
    baseline_hz: Annotated[float, Setting(above=0, maximum=100)] = 22.0
    """Median threshold-crossing rate of an electrode at rest; at most 100."""
    dead_fraction: Annotated[float, FROM_0_BELOW_1] = 0.08
    """Share of electrodes that carry no tuned activity on a day."""
    lead_ms: tuple[float, float] = (0.0, 320.0)
    """Shortest and longest lead of an electrode's activity over the movement of the
    articulators.
    """
    conjunctive: Annotated[float, FROM_0_BELOW_1] = 0.7
    """Share of an electrode's drive that comes from conjunctions of articulators rather than
    from single ones.
    """

    # Noise that electrodes share
    n_latents: Annotated[int, Setting(minimum=10)] = 12
    """Slow latent components; time constants are spread evenly in logarithm over `latent_s`."""
    latent_s: tuple[float, float] = (1.0, 20.0)
    """Shortest and longest time constant of the latent components, in seconds."""
    latent_sd: Annotated[float, AT_LEAST_0] = 0.45
    """Standard deviation of an electrode's log rate that the latent components cause together."""
    latent_alignment: Annotated[float, FROM_0_BELOW_1] = 0.8
    """Share of the latent components' power that falls on the directions in which articulators
    drive the electrodes.
    """
    arousal_sd: Annotated[float, AT_LEAST_0] = 0.22
    """Standard deviation of the log rate, common to all electrodes, and of the log gain of
    tuning, due to arousal.
    """
    movement_per_min: Annotated[float, AT_LEAST_0] = 4.0
    """Movements of head and face a minute, each a burst on many electrodes for about half a
    second.
    """
    movement_sd: Annotated[float, AT_LEAST_0] = 0.5
    """Standard deviation over electrodes of the log rate at the height of a movement."""
    power_noise_sd: Annotated[float, AT_LEAST_0] = 1.0
    """Private noise of log spike-band power, in units of the log rate that drives it."""
    reference_noise_sd: Annotated[float, AT_LEAST_0] = 0.4
    """Fast noise of log spike-band power common to the electrodes of an array, which share a
    reference.
    """

    # Strong structured noise
    structured_noise: Annotated[float, AT_LEAST_0] = 0.0
    """Factor on all structured noise (see `structured`), 0 for none.

    At 1 it is stronger than the activity that articulators drive.
    """
    n_oscillations: Annotated[int, AT_LEAST_1] = 6
    """Narrow-band components that groups of electrodes share."""
    oscillation_hz: tuple[float, float] = (0.5, 12.0)
    """Lowest and highest frequency of the oscillations, which are spread evenly in logarithm.

    They must be below 25 Hz.
    """
    oscillation_s: Annotated[float, ABOVE_0] = 1.5
    """Time constant with which the phase and the amplitude of an oscillation wander, in seconds."""
    oscillation_sd: Annotated[float, AT_LEAST_0] = 0.7
    """Standard deviation of an electrode's log rate that the oscillations cause together (root
    mean square).
    """
    artefacts_per_min: Annotated[float, AT_LEAST_0] = 12.0
    """Movement artefacts a minute, each with one of three stereotyped courses, on almost all
    electrodes.
    """
    artefact_s: tuple[float, float] = (0.6, 3.0)
    """Shortest and longest duration of an artefact, in seconds."""
    artefact_sd: Annotated[float, AT_LEAST_0] = 1.0
    """Log rate at the height of an artefact (root mean square over electrodes)."""
    steps_per_block: Annotated[int, AT_LEAST_0] = 2
    """Sudden shifts of all baselines in the middle of a block.

    Each lasts until the next, or the end of the block.
    """
    step_sd: Annotated[float, AT_LEAST_0] = 0.6
    """Log rate by which a step shifts the baselines (root mean square over electrodes)."""
    structured_alignment: Annotated[float, FROM_0_BELOW_1] = 0.5
    """Share of the power of oscillations, artefacts and steps that falls on the directions of
    the tuning.
    """

    # Drift between days
    tuning_drift: Annotated[float, AT_LEAST_0] = 0.012
    """Rate per day at which tuning decorrelates.

    After d days its correlation with day 1 is exp(-rate * d).
    """
    gain_drift: Annotated[float, AT_LEAST_0] = 0.03
    """Standard deviation of the daily step of each electrode's log gain (it reverts with
    `drift_reversion`).
    """
    baseline_drift: Annotated[float, AT_LEAST_0] = 0.05
    """Standard deviation of the daily step of each electrode's log baseline rate."""
    drift_reversion: Annotated[float, AT_LEAST_0] = 0.02
    """Rate per day at which gains and baselines return to their mean, which keeps them from
    running away.
    """
    channel_turnover: Annotated[float, FROM_0_BELOW_1] = 0.004
    """Chance per day that a living electrode dies.

    Dead ones appear so often that `dead_fraction` is kept.
    """

    # Drift of a plan of months
    stable_tuning: Annotated[float, FROM_0_BELOW_1] = _later(0.0)
    """Share of the tuning's power that never changes.

    After d days the correlation of tuning with that of day 1 is s + (1 - s) exp(-r d), with this
    share s and r = `tuning_drift` + `array_shifts` * `array_shift` + `tuning_jumps` * `jump_share`.
    """
    drift_spread: Annotated[float, AT_LEAST_0] = _later(0.0)
    """Spread of participants: standard deviation over seeds of the logarithm of a factor on r."""
    array_shifts: Annotated[float, AT_LEAST_0] = _later(0.0)
    """Moves a day of each array, in which the tuning of all its electrodes changes a little."""
    array_shift: Annotated[float, FROM_0_BELOW_1] = _later(0.4)
    """Fall of the correlation of the changing tuning at such a move, 0 to 1."""
    tuning_jumps: Annotated[float, AT_LEAST_0] = _later(0.0)
    """Moments a day at which some electrodes get new tuning at once."""
    jump_share: Annotated[float, FROM_0_BELOW_1] = _later(0.2)
    """Share of all electrodes that get new tuning at such a moment."""
    within_day: Annotated[float, AT_LEAST_0] = _later(0.0)
    """Days' worth of drift of tuning, gain and baseline in the first 100 trials of a day.

    It continues in proportion over the day, and is gone the next morning.
    """

    # Events of a plan of months, each on a later day of its own in the last three quarters
    array_losses: Annotated[int, AT_LEAST_0] = _later(0)
    """Days without the channels of one array, as with a loose connector.

    They are back on the next recording day: no rig records for months without a fourth of its
    channels, and what a method has forgotten in between shows only when they return.
    """
    garbage_days: Annotated[int, AT_LEAST_0] = _later(0)
    """Days on which no electrode carries speech."""
    reference_changes: Annotated[int, AT_LEAST_0] = _later(0)
    """Days from which on the reference of one array is another one."""
    reference_offset: Annotated[float, AT_LEAST_0] = _later(0.5)
    """Change of the log rate of all electrodes of the array at such a change."""
    reference_noise: Annotated[float, AT_LEAST_0] = _later(0.5)
    """Standard deviation of fast noise of the log rate, common to the array, from then on."""
    silent_days: Annotated[int, AT_LEAST_0] = _later(0)
    """Days in a row without a recording, once in the last three quarters."""

    def __post_init__(self) -> None:
        check_fields(self)
        even = self.n_electrodes >= N_ARRAYS and self.n_electrodes % N_ARRAYS == 0
        _require(
            even,
            "n_electrodes",
            self.n_electrodes,
            f"a multiple of {N_ARRAYS}, one share for each array",
        )
        possible = SHORTEST_BIN_MS <= self.bin_ms <= LONGEST_BIN_MS and self.bin_ms % STEP_MS == 0
        needed = f"{SHORTEST_BIN_MS} to {LONGEST_BIN_MS} in steps of {STEP_MS} ms"
        _require(possible, "bin_ms", self.bin_ms, needed)
        # Beyond, counts of the busiest electrodes leave the range of `neural.poisson`.
        most_hz = 2000 / self.bin_ms
        hz = self.baseline_hz
        _require(hz <= most_hz, "baseline_hz", hz, f"at most {most_hz:g}")
        for name in ("lead_ms", "latent_s", "oscillation_hz", "artefact_s", "later_per_day"):
            low, high = getattr(self, name)
            _require(
                0 <= low <= high < math.inf, name, [low, high], "two numbers, the smaller first"
            )
        for name in ("latent_s", "oscillation_hz", "artefact_s", "later_per_day"):
            _require(getattr(self, name)[0] > 0, name, list(getattr(self, name)), "positive")
        # Faster oscillations than half a cycle a bin cannot be seen: 25 Hz in bins of 20 ms.
        most_hz = 500 / (self.bin_ms if self.structured_noise else min(self.bin_ms, BIN_MS))
        low_high = list(self.oscillation_hz)
        fits = low_high[1] < most_hz
        _require(fits, "oscillation_hz", low_high, f"below {most_hz:g} Hz")
        self._check_months()
        self.inventory.check()

    def _check_months(self) -> None:
        free = self.later_span - self.silent_days
        if self.plan == "months":
            needed = f"{self.later_days + self.silent_days} or more, a day for each of `later_days`"
            _require(free >= self.later_days, "later_span", self.later_span, needed)
            # The silence begins in the last three quarters and ends before the last day.
            needed = "less than three quarters of `later_span`"
            fits = self.silent_days < self.later_span - self.later_span // 4
            _require(fits, "silent_days", self.silent_days, needed)
            return
        for name in (*EVENTS, "silent_days"):
            _require(getattr(self, name) == 0, name, getattr(self, name), "0 unless plan=months")

    @cached_property
    def conventions(self) -> Conventions:
        """Conventions of the recordings."""
        given = Conventions(self.inventory, self.language, self.bin_ms)
        return replace(given, features="raw") if self.normalise == "none" else given

    @property
    def steps_per_bin(self) -> int:
        """Steps of the grid of utterances in a bin."""
        return self.bin_ms // STEP_MS

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain values, without the conventions, which `cortext.json` has.

        The length of a bin is there where it is not the release's, and settings for months where
        they are not the defaults.
        """
        mapping = to_mapping(self)
        for each in fields(self):
            at_default = getattr(self, each.name) == each.default
            left_out = each.name == "bin_ms" or each.metadata.get("later", False)
            if not each.metadata.get("key", True) or (left_out and at_default):
                del mapping[each.name]
        return mapping

    @property
    def n_features(self) -> int:
        """Number of features: all threshold crossings come first, then all spike-band powers."""
        return 2 * self.n_electrodes


def _require(condition: bool, name: str, value: object, needed: str) -> None:
    if not condition:
        raise ConfigError(f"{name} is {value}; it must be {needed}")


_SPANISH_GROUPS = {
    "vowels": "a e i o u",
    "glides": "j w",
    "stops": "p b t d k g",
    "fricatives": "f θ s x ʝ tʃ",
    "nasals": "m n ɲ",
    "liquids": "l ɾ r",
}
SPANISH = Inventory(
    "spanish",
    (BLANK, *sorted(" ".join(_SPANISH_GROUPS.values()).split()), SIL),
    groups=tuple((name, tuple(symbols.split())) for name, symbols in _SPANISH_GROUPS.items()),
)
"""The 25 phonemes of the Spanish example, in the order that its lexicon defines."""

PRESETS: dict[str, SimulatorConfig] = {
    "tiny": SimulatorConfig(
        n_days=2,
        train_per_day=24,
        val_per_day=6,
        test_per_day=3,
        trials_per_block=12,
        n_electrodes=16,
        modulation=0.9,
        phoneme_ms=190.0,
        word_pause_ms=260.0,
        lead_in_ms=300.0,
        trail_ms=300.0,
    ),
    "demo": SimulatorConfig(),
    "t15": SimulatorConfig(
        plan="t15",
        n_electrodes=256,
        phoneme_ms=260.0,
        word_pause_ms=550.0,
        lead_in_ms=800.0,
        trail_ms=1000.0,
    ),
    "spanish": SimulatorConfig(inventory=SPANISH, language=LANGUAGES["es"]),
    "handwriting": SimulatorConfig(
        train_per_day=110,
        val_per_day=17,
        test_per_day=8,
        bin_ms=10,
        inventory=HANDWRITING,
        phoneme_ms=610.0,
        word_pause_ms=680.0,
        undershoot=1.5,
    ),
    "months": SimulatorConfig(
        plan="months",
        test_per_day=0,
        name_share=0.05,
        normalise="none",
        snr=4.0,
        tuning_drift=0.023,
        stable_tuning=0.3,
        drift_spread=0.4,
        array_shifts=0.025,
        array_shift=0.25,
        tuning_jumps=0.05,
        jump_share=0.12,
        within_day=2.0,
        array_losses=1,
        garbage_days=1,
        reference_changes=1,
        silent_days=14,
    ),
}
"""Presets by name: `tiny` is easy and takes seconds, for tests.

`demo` trains in minutes on two cores; `t15` has the release's shape. `spanish` is as large as
`demo`, with sentences, phonemes and a lexicon of Castilian Spanish. `handwriting` writes the
characters of Willett et al. 2021 in bins of 10 ms, about 90 a minute as published there.
"""


def preset_config(
    preset: str, overrides: Iterable[str] = (), seed: int | None = None
) -> SimulatorConfig:
    """Return a preset with changes.

    Args:
        preset: Name of a preset.
        overrides: `key=value` changes.
        seed: Seed of the simulation; None for the preset's.

    Raises:
        ConfigError: For an unknown preset, key or value.
    """
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}; {nearest(preset, PRESETS)}")
    config = with_overrides(PRESETS[preset], overrides)
    return config if seed is None else with_overrides(config, [f"seed={seed}"])
