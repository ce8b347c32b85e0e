"""Structured noise: oscillations, movement artefacts and block steps."""

import hashlib
from dataclasses import replace

import h5py
import numpy as np
import pytest

from cortext.data import open_dataset
from cortext.errors import ConfigError
from cortext.text import to_phonemes
from cortext_data.simulate import PRESETS, SimulatorConfig, preset_config, simulate
from cortext_data.simulate.articulators import articulate
from cortext_data.simulate.brain import electrodes
from cortext_data.simulate.neural import max_lead_bins, record
from cortext_data.simulate.plan import PlannedBlock, PlannedDay, PlannedTrial, Prompt
from cortext_data.simulate.speech import utter
from cortext_data.simulate.streams import Purpose, stream
from cortext_data.simulate.structured import BlockNoise, TrialNoise, oscillations, waveform
from cortext_data.simulate.write import simulate_block

TINY = PRESETS["tiny"]
NOISY = replace(PRESETS["demo"], seed=4, structured_noise=1.0)
PHONEMES = to_phonemes("could you close the window before dinner")
BIN_S = 0.02
NO_OSCILLATION = {"oscillation_sd": 0.0}
NO_ARTEFACT = {"artefacts_per_min": 0.0}
NO_STEP = {"step_sd": 0.0}


def noise_of(
    config: SimulatorConfig, n_bins: int = 50_000, block: int = 1, day: int = 1
) -> TrialNoise:
    """The noise of a block that is one long trial."""
    return BlockNoise(config, electrodes(config, (1,)), day, block, n_bins).trial(0, 0, n_bins)


def alive(config: SimulatorConfig) -> np.ndarray:
    return electrodes(config, (1,)).alive_E


def test_without_it_the_recording_is_what_it_was_before_there_was_structured_noise():
    # Counts and powers of a trial, made by the commit before this option (3f3ccd8).
    positions = articulate(utter(PHONEMES, TINY, 1, 1, 0), TINY.undershoot, max_lead_bins(TINY))
    features = record(positions, electrodes(TINY, (1,)), TINY, 1, 1, 0)
    digest = hashlib.sha256(features[:, :16].astype(np.uint8).tobytes()).hexdigest()
    assert digest == "a9172e8b096cd33c68098db2196aa7c990b180862f1d7047866c8a1fa3dac9b9"
    np.testing.assert_allclose(
        features[0, 16:20], [0.562159, 0.700383, 1.098965, 0.480098], rtol=1e-5
    )
    np.testing.assert_allclose(
        features[300, 16:20], [0.562755, 0.773051, 1.370393, 0.950089], rtol=1e-5
    )


def test_with_a_factor_of_zero_its_other_settings_change_no_bit(simulated, tmp_path):
    others = ["oscillation_sd=3", "n_oscillations=2", "steps_per_block=7", "artefacts_per_min=90"]
    simulate(tmp_path / "set", "tiny", truth=True, overrides=others)
    made = list(simulated.root.rglob("*.hdf5"))
    assert len(made) == 8
    for path in made:
        there = tmp_path / "set" / path.relative_to(simulated.root)
        assert path.read_bytes() == there.read_bytes()


def test_every_oscillation_has_unit_variance_and_its_power_at_its_frequency():
    config = replace(NOISY, n_oscillations=3, oscillation_hz=(1.0, 9.0))
    course = oscillations(config, stream(1, Purpose.STRUCTURED), 100_000)
    np.testing.assert_allclose(course.var(axis=0), 1, rtol=0.1)
    power = np.abs(np.fft.rfft(course.astype(np.float64), axis=0)) ** 2
    hz = np.fft.rfftfreq(len(course), BIN_S)
    half_width = 1 / (2 * np.pi * config.oscillation_s)
    for column, frequency in enumerate([1.0, 3.0, 9.0]):  # evenly spread in logarithm
        near = np.abs(hz - frequency) < half_width
        # The first-order process around the carrier: a Lorentzian has half its power within its
        # half width.
        assert power[near, column].sum() / power[:, column].sum() == pytest.approx(0.5, abs=0.06)


def test_phase_and_amplitude_of_an_oscillation_wander_over_the_time_that_is_set():
    config = replace(NOISY, n_oscillations=1, oscillation_hz=(5.0, 5.0), oscillation_s=2.0)
    course = oscillations(config, stream(1, Purpose.STRUCTURED), 200_000)[:, 0].astype(np.float64)
    for lag_s in (0.2, 1.0, 2.0):  # whole periods of 5 Hz
        lag = round(lag_s / BIN_S)
        assert (course[lag:] * course[:-lag]).mean() == pytest.approx(
            np.exp(-lag_s / 2.0), abs=0.06
        )


def test_an_oscillation_moves_the_electrodes_of_its_array_most():
    config = replace(NOISY, **NO_ARTEFACT, **NO_STEP, n_oscillations=1)
    power = noise_of(config).log_rate_TE.var(axis=0).reshape(4, 16)
    living = alive(config).reshape(4, 16)
    means = [power[array][living[array]].mean() for array in range(4)]
    assert means[0] > 4 * max(means[1:])  # 0.3 squared is a ninth on the others


def test_the_stated_sd_is_that_of_living_electrodes():
    config = replace(NOISY, **NO_ARTEFACT, **NO_STEP)
    power = noise_of(config, 100_000).log_rate_TE[:, alive(config)].var(axis=0).mean()
    assert power == pytest.approx(config.oscillation_sd**2, rel=0.1)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_its_power_is_the_factor_squared(factor):
    one = noise_of(NOISY).log_rate_TE
    other = noise_of(replace(NOISY, structured_noise=factor)).log_rate_TE
    assert (other**2).mean() / (one**2).mean() == pytest.approx(factor**2, rel=1e-4)


def test_log_power_gains_a_variance_that_grows_with_the_factor_squared():
    """In the recording, not only in the noise: small factors, below the ceiling of rates."""
    still = replace(
        NOISY,
        modulation=0.0,
        latent_sd=0.0,
        arousal_sd=0.0,
        movement_per_min=0.0,
        power_noise_sd=0.0,
    )
    e = electrodes(still, (1,))
    variances = []
    for factor in (0.0, 0.25, 0.5):
        config = replace(still, structured_noise=factor)
        at = np.zeros((20_000 + max_lead_bins(config), 17))
        added = (
            BlockNoise(config, e, 1, 1, 20_000).trial(0, 0, 20_000).log_rate_TE if factor else None
        )
        power = record(at, e, config, 1, 1, 0, added)[:, config.n_electrodes :]
        variances.append(np.log(power)[:, e.alive_E].var(axis=0).mean())
    assert (variances[2] - variances[0]) / (variances[1] - variances[0]) == pytest.approx(
        4, rel=0.25
    )


def test_artefacts_are_as_frequent_and_as_long_as_set():
    minutes = 50_000 * BIN_S / 60
    found = np.concatenate([noise_of(NOISY, block=block).artefacts_N3 for block in range(1, 11)])
    assert len(found) == pytest.approx(NOISY.artefacts_per_min * 10 * minutes, rel=0.08)
    seconds = (found[:, 2] - found[:, 1]) * BIN_S
    assert seconds.min() >= 0.6
    assert seconds.max() <= 3.0
    assert seconds.mean() == pytest.approx(1.8, rel=0.03)
    assert set(found[:, 0]) == {0, 1, 2}


def test_an_artefact_begins_and_ends_when_it_is_said_to_on_almost_all_electrodes():
    config = replace(NOISY, **NO_OSCILLATION, **NO_STEP, artefacts_per_min=6.0)
    noise = noise_of(config, 3_000)
    inside = np.zeros(3_000, dtype=bool)
    for _, start, end in noise.artefacts_N3:
        inside[start:end] = True
    moving = np.abs(noise.log_rate_TE) > 1e-6
    assert not moving[~inside].any()
    assert moving[inside].mean() > 0.95
    assert inside.any()


def test_artefacts_of_a_kind_have_one_course_and_one_pattern_over_electrodes():
    config = replace(NOISY, **NO_OSCILLATION, **NO_STEP, artefacts_per_min=1.0)
    pieces: dict[int, list[np.ndarray]] = {}
    for block in range(1, 40):
        noise = noise_of(config, 3_000, block)
        alone = [a for a in noise.artefacts_N3 if a[2] <= 3_000]
        if len(noise.artefacts_N3) == 1 and alone:
            kind, start, end = alone[0]
            piece = noise.log_rate_TE[start:end]
            height = np.abs(piece).max()
            at = np.linspace(0, len(piece) - 1, 30).round().astype(int)
            pieces.setdefault(int(kind), []).append(piece[at] / height)
    assert sum(len(same) for same in pieces.values()) >= 6
    for same in pieces.values():
        for piece in same[1:]:
            assert np.corrcoef(piece.ravel(), same[0].ravel())[0, 1] > 0.97


@pytest.mark.parametrize(("kind", "swings"), [(0, 1), (1, 2), (2, 3)])
def test_waveforms_have_one_two_or_three_swings_and_a_height_of_one(kind, swings):
    course = waveform(kind, 101)
    assert np.abs(course).max() == pytest.approx(1)
    assert (np.diff(np.sign(course[np.abs(course) > 1e-9])) != 0).sum() == swings - 1


def test_baselines_step_at_the_stated_bins_and_stay_until_the_next_step():
    config = replace(NOISY, **NO_OSCILLATION, **NO_ARTEFACT, steps_per_block=2)
    noise = noise_of(config, 4_000)
    first, second = noise.steps_S
    assert 500 <= first < 1_500 < 2_500 <= second < 3_500  # the middle halves of the two halves
    assert (noise.log_rate_TE[:first] == 0).all()
    for start, end in ((first, second), (second, 4_000)):
        level = noise.log_rate_TE[start:end]
        assert (level == level[0]).all()
        assert (level[0, alive(config)] ** 2).mean() ** 0.5 == pytest.approx(
            config.step_sd, rel=1e-4
        )
    assert not np.allclose(noise.log_rate_TE[first], noise.log_rate_TE[second])


def test_steps_persist_across_the_trials_of_a_block():
    config = replace(NOISY, **NO_OSCILLATION, **NO_ARTEFACT)
    block = BlockNoise(config, electrodes(config, (1,)), 1, 1, 4_000)
    pieces = [block.trial(number, start, 500) for number, start in enumerate(range(0, 4_000, 500))]
    whole = block.trial(0, 0, 4_000)
    np.testing.assert_array_equal(
        np.concatenate([piece.log_rate_TE for piece in pieces]), whole.log_rate_TE
    )
    stated = [start * 500 + step for start, piece in enumerate(pieces) for step in piece.steps_S]
    np.testing.assert_array_equal(stated, whole.steps_S)


def test_recorded_features_step_where_the_truth_says():
    config = replace(
        NOISY, **NO_OSCILLATION, **NO_ARTEFACT, steps_per_block=1, step_sd=1.5, snr=0.0
    )
    trials = tuple(
        PlannedTrial(i, "train", Prompt("we had dinner by the sea", "")) for i in range(12)
    )
    day = PlannedDay("sim.2025.01.06", (1,), (PlannedBlock(1, trials),))
    e = electrodes(config, (1,))
    made = simulate_block(config, day, day.blocks[0], e)
    features = np.concatenate([one.trial.features_TC for one in made])
    (step,) = BlockNoise(config, e, 1, 1, len(features)).steps_S
    middle = range(len(features) // 4, 3 * len(features) // 4)
    change = [
        np.square(features[:t].mean(axis=0) - features[t:].mean(axis=0)).sum() for t in middle
    ]
    # The split of the block into two levels that differ most, found without knowing where it is.
    assert middle[int(np.argmax(change))] == pytest.approx(step, abs=15)


@pytest.mark.parametrize("alignment", [0.0, 0.5, 0.9])
def test_the_stated_share_of_its_power_lies_along_the_tuning(alignment):
    config = replace(
        NOISY, n_electrodes=256, structured_alignment=alignment, **NO_OSCILLATION, **NO_STEP
    )
    e = electrodes(config, (1,))
    living = e.alive_E
    directions = np.linalg.qr(e.tuning_EF[living].astype(np.float64))[0]
    noise = noise_of(config, 10_000).log_rate_TE[:, living].astype(np.float64)
    share = ((noise @ directions) ** 2).sum() / (noise**2).sum()
    by_chance = directions.shape[1] / directions.shape[0]  # 50 of 233 directions
    assert share == pytest.approx(alignment + (1 - alignment) * by_chance, abs=0.15)


@pytest.mark.parametrize("changed", [{"number": 1}, {"block": 2}, {"day": 3}, {"seed": 5}])
def test_noise_differs_between_trials_blocks_days_and_seeds(changed):
    def course(number: int = 0, block: int = 1, day: int = 1, seed: int = 4) -> np.ndarray:
        config = replace(NOISY, seed=seed)
        return (
            BlockNoise(config, electrodes(config, (1,)), day, block, 3_000)
            .trial(number, 0, 1_000)
            .log_rate_TE
        )

    np.testing.assert_array_equal(course(), course())
    assert not np.allclose(course(), course(**changed))


def test_the_files_are_the_same_with_any_number_of_workers(structured, tmp_path):
    simulate(tmp_path / "made", "tiny", truth=True, workers=3, overrides=structured.overrides)
    made = [path for path in (tmp_path / "made").rglob("*") if path.is_file()]
    assert len(made) == sum(path.is_file() for path in structured.root.rglob("*")) == 2 * 4 + 5
    for path in made:
        there = structured.root / path.relative_to(tmp_path / "made")
        assert path.read_bytes() == there.read_bytes()


def test_the_truth_holds_the_noise(structured):
    session = structured.root / "sim.2025.01.06"
    lengths = [
        trial.n_bins for trial in open_dataset(structured.root).trials("train", [session.name])
    ]
    found = []
    n_artefacts = n_steps = 0
    with h5py.File(session / "truth.hdf5") as truth:
        for number, n_bins in enumerate(lengths):
            group = truth[f"train/trial_{number:04d}"]
            assert group["structured_noise"].shape == (n_bins, TINY.n_electrodes)
            n_artefacts += len(group["artefacts"])
            n_steps += len(group["steps"])
            found.append(group["structured_noise"][:])
    assert n_artefacts > 0
    assert n_steps == 2 * 2  # two blocks of twelve trials
    assert np.concatenate(found).std() > 0.3


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("structured_noise=-1", "structured_noise is -1.0; it must be at least 0 and finite"),
        (
            "structured_alignment=1",
            "structured_alignment is 1.0; it must be at least 0 and below 1",
        ),
        ("oscillation_hz=[2, 30]", r"oscillation_hz is \[2.0, 30.0\]; it must be below 25 Hz"),
        ("oscillation_hz=[0, 3]", "oscillation_hz is .* it must be positive"),
        ("artefact_s=[3, 1]", "artefact_s is .* two numbers, the smaller first"),
        ("n_oscillations=0", "n_oscillations is 0; it must be at least 1"),
        ("steps_per_block=-1", "steps_per_block is -1; it must be at least 0"),
        ("oscillation_s=0", "oscillation_s is 0.0; it must be above 0 and finite"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(setting, message):
    with pytest.raises(ConfigError, match=message):
        preset_config("demo", [setting])


@pytest.mark.parametrize(
    "nothing", [{"steps_per_block": 0}, {"dead_fraction": 0.99}, {"artefacts_per_min": 0.0}]
)
def test_corner_cases_stay_finite(nothing):
    assert np.isfinite(noise_of(replace(NOISY, **nothing), 500).log_rate_TE).all()
