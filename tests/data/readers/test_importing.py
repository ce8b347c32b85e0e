"""The frame of all imports: what is written, problems by trial, and continuing after a stop."""

import json
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
from abandoned import abandoned
from refusals import complaint

from cortext.data import open_dataset
from cortext.data.checks import FaultError
from cortext.data.scaling import Scale
from cortext.errors import ConfigError, DataError
from cortext_data.readers import importing
from cortext_data.readers.importing import import_source
from cortext_data.readers.recording import Block, Contents, RecordedTrial, Recording, Source

SENTENCES = ("Hello, world!", "Good day to you.", "I am here.")


class Lab:
    """Recordings in memory; each has a file that states its size and time."""

    def __init__(self, folder, n_bins=80, **contents):
        self.folder = folder
        self.n_opened = 0
        self.contents = {"bin_ms": 20, "counts": range(4)} | contents
        rng = np.random.default_rng(0)
        self.recorded = {
            f"t9.2025.01.0{number + 1}": {
                (block, trial): rng.poisson(4 + block, (n_bins + 5 * trial, 4))
                for block in (1, 2)
                for trial in range(3)
            }
            for number in range(2)
        }
        for session in self.recorded:
            self.path(session).write_bytes(bytes(1000))

    def path(self, session):
        return self.folder / f"{session}.lab"

    def sentence(self, session, block, trial):
        return SENTENCES[trial]

    def split(self, block):
        return {1: "train", 2: "val"}[block]

    def source(self, **settings):
        recordings = [
            Recording(session, [self.path(session)], self.opener(session))
            for session in self.recorded
        ]
        return Source("lab", recordings, **settings)

    def opener(self, session):
        @contextmanager
        def opened():
            self.n_opened += 1
            yield Contents(self.blocks(session), **self.contents)

        return opened

    def blocks(self, session):
        trials = self.recorded[session]
        return [
            Block(
                block,
                self.split(block),
                [
                    RecordedTrial(
                        trial, len(x), lambda x=x: x, self.sentence(session, block, trial)
                    )
                    for (found, trial), x in trials.items()
                    if found == block
                ],
            )
            for block in sorted({block for block, _ in trials})
        ]


@pytest.fixture
def lab(tmp_path):
    return Lab(tmp_path)


def written(out, split="train"):
    """Return the trials of a split by session, block and number."""
    trials = open_dataset(out).trials(split)
    return {(trial.session, trial.block, trial.trial): trial for trial in trials}


def files(out):
    return {path.relative_to(out): path.read_bytes() for path in out.glob("*/*.hdf5")}


def test_blocks_are_z_scored_over_all_their_trials(lab, tmp_path):
    done = import_source(lab.source(), tmp_path / "out")
    assert (done.n_written, done.n_kept, done.problems) == (2, 0, [])
    found = written(tmp_path / "out")
    assert len(found) == 6
    for (session, block, trial), one in found.items():
        recorded = lab.recorded[session]
        whole = np.concatenate([x for (number, _), x in recorded.items() if number == block])
        expected = (recorded[block, trial] - whole.mean(axis=0)) / whole.std(axis=0)
        np.testing.assert_allclose(one.features_TC, expected, atol=1e-5)
        assert one.sentence == SENTENCES[trial]
    assert one.conventions.normalised == "z-scored by block"


def test_causal_scores_follow_the_order_of_recording_across_splits(lab, tmp_path):
    import_source(lab.source(normalise="rolling"), tmp_path / "out")
    session = next(iter(lab.recorded))
    x = list(lab.recorded[session].values())
    before = np.concatenate([*x[:3], x[3][:10]])
    expected = (x[3][9] - before.mean(axis=0)) / before.std(axis=0)
    found = written(tmp_path / "out", "val")[session, 2, 0]
    np.testing.assert_allclose(found.features_TC[9], expected, atol=1e-5)


def test_raw_features_are_left_for_packing_and_live_decoding(lab, tmp_path):
    import_source(lab.source(normalise="raw"), tmp_path / "out")
    for (session, block, trial), one in written(tmp_path / "out").items():
        assert np.array_equal(one.features_TC, np.float32(lab.recorded[session][block, trial]))
        assert one.conventions.features == "raw"


def test_features_that_do_not_fit_are_read_again_with_the_same_result(lab, tmp_path, monkeypatch):
    import_source(lab.source(), tmp_path / "kept")
    monkeypatch.setattr(importing, "_MOST_KEPT", 0)
    import_source(lab.source(), tmp_path / "again")
    assert files(tmp_path / "kept") == files(tmp_path / "again")


def test_bins_are_joined_before_they_are_z_scored(tmp_path):
    lab = Lab(tmp_path, n_bins=200, bin_ms=10, counts=(0, 1))  # the others are averaged
    import_source(lab.source(), tmp_path / "out", bin_ms=20, normalise="none")
    found = written(tmp_path / "out")["t9.2025.01.01", 1, 0]
    pairs = lab.recorded["t9.2025.01.01"][1, 0].reshape(100, 2, 4).sum(axis=1)
    np.testing.assert_allclose(found.features_TC, pairs / [1, 1, 2, 2], rtol=1e-6)
    assert found.conventions.bin_ms == 20


def test_recordings_of_two_bin_lengths_need_one(tmp_path):
    lab = Lab(tmp_path, n_bins=200)

    @contextmanager
    def second():
        yield Contents(lab.blocks("t9.2025.01.02"), 10)

    source = lab.source()
    source.recordings[1] = Recording("t9.2025.01.02", [lab.path("t9.2025.01.02")], second)
    done = import_source(source, tmp_path / "out")
    (problem,) = done.problems
    assert problem.message == (
        "its bins last 10 ms, those of other recordings 20 ms; give --bin-ms with the longer ones"
    )
    assert (done.n_written, done.n_refused) == (1, 1)
    done = import_source(source, tmp_path / "out20", bin_ms=20)
    assert (done.n_written, done.problems) == (2, [])


def test_the_published_scaling_is_the_blocks_own(lab, tmp_path):
    blocks = lab.blocks
    scale = Scale(np.arange(4.0), np.full(4, 2.0))
    lab.blocks = lambda session: [
        Block(b.number, b.split, b.trials, published=scale) for b in blocks(session)
    ]
    source = lab.source(normalise="published", published="by hand")
    import_source(source, tmp_path / "out")
    found = written(tmp_path / "out")["t9.2025.01.01", 1, 1]
    expected = (lab.recorded["t9.2025.01.01"][1, 1] - [0, 1, 2, 3]) / 2
    np.testing.assert_allclose(found.features_TC, expected, rtol=1e-6)
    assert found.conventions.normalised == "by hand"


def test_an_unknown_or_absent_scaling_is_refused(lab, tmp_path):
    for name in ("published", "blocks"):
        with pytest.raises(ConfigError, match=f"unknown normalisation '{name}'"):
            import_source(lab.source(), tmp_path / "out", normalise=name)


def test_an_import_that_was_cut_off_continues(lab, tmp_path):
    import_source(lab.source(), tmp_path / "whole")
    out = tmp_path / "out"
    source = lab.source()
    source.recordings.pop()
    import_source(source, out)
    rest = abandoned(out / "t9.2025.01.02" / "data_train.hdf5")
    lab.n_opened = 0
    done = import_source(lab.source(), out)
    assert (done.n_written, done.n_kept, lab.n_opened) == (1, 1, 1)
    assert files(out) == files(tmp_path / "whole")
    assert not rest.exists()


def test_a_recording_is_read_again_when_it_or_its_session_files_have_changed(lab, tmp_path):
    out = tmp_path / "out"
    import_source(lab.source(), out)
    lab.path("t9.2025.01.01").write_bytes(bytes(1001))
    (out / "t9.2025.01.02" / "data_val.hdf5").unlink()
    done = import_source(lab.source(), out)
    assert (done.n_written, done.n_kept) == (2, 0)
    assert import_source(lab.source(), out).n_kept == 2


def test_a_recording_that_changes_while_it_is_read_is_not_kept(lab, tmp_path):
    first, second = lab.recorded
    read = lab.sentence

    def changed(session, block, trial):
        if session == first:
            lab.path(first).write_bytes(bytes(1001 + trial))
        return read(session, block, trial)

    lab.sentence = changed
    result = import_source(lab.source(), tmp_path / "out")
    assert [str(problem) for problem in result.problems] == [
        f"{lab.path(first)}: changed while it was read; import it again"
    ]
    assert (result.n_written, result.n_refused) == (1, 1)
    assert [file.parent.name for file in (tmp_path / "out").glob("*/*")] == [second, second]
    lab.sentence = read
    assert import_source(lab.source(), tmp_path / "out").n_written == 1


def test_other_settings_need_another_directory(lab, tmp_path):
    out = tmp_path / "out"
    import_source(lab.source(), out)
    with pytest.raises(DataError) as caught:
        import_source(lab.source(settings={"columns": "1-64"}), out, normalise="rolling")
    assert str(caught.value) == (
        f"{out}: holds an import with other columns, normalise; choose another directory, or"
        " remove this one"
    )


def test_session_files_of_others_are_not_touched(lab, tmp_path):
    out = tmp_path / "out"
    import_source(lab.source(), out)
    (out / "import.json").unlink()
    before = files(out)
    with pytest.raises(DataError, match="holds session files that no import wrote; choose"):
        import_source(lab.source(), out)
    assert files(out) == before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff\xfe",
        b'{"format": "cortext-import", "format_version": 2}',
        b'{"format": "cortext-import", "format_version": 1, "recordings": 3}',
        b'{"format": "cortext-import", "format_version": 1, "recordings": {}, "settings": {},'
        b' "bin_ms": "long", "n_features": 4}',
    ],
)
def test_a_damaged_record_is_refused_in_one_line(lab, tmp_path, content):
    out = tmp_path / "out"
    import_source(lab.source(), out)
    (out / "import.json").write_bytes(content)
    with pytest.raises(
        DataError, match=r"import.json: cannot be read: .*; choose another directory"
    ):
        import_source(lab.source(), out)


@pytest.mark.parametrize("entry", [{}, {"paths": []}, {"files": 3}, {"files": {"x": "y"}}, 7])
def test_a_record_that_lies_about_a_recording_is_not_believed(lab, tmp_path, entry):
    out = tmp_path / "out"
    import_source(lab.source(), out)
    record = json.loads((out / "import.json").read_text())
    name = next(iter(record["recordings"]))
    known = record["recordings"][name]
    record["recordings"][name] = known | entry if isinstance(entry, dict) else entry
    if entry == {}:
        del record["recordings"][name]["files"]
    (out / "import.json").write_text(json.dumps(record))
    before = files(out)
    assert import_source(lab.source(), out).n_written == 1
    assert files(out) == before


def damaged(session, block, trial):
    raise FaultError("tx1", "2 of 40 bins found", "copy the file again")


@pytest.mark.parametrize(
    ("harm", "line"),
    [
        (
            lambda x: np.where(np.arange(len(x))[:, None] == 7, np.nan, x),
            "input_features: 4 NaN or Inf found, the first at bin 7 of feature 0; finite values"
            " expected; replace them before writing the file, or leave it out with --skip-bad",
        ),
        (
            lambda x: x[:, :3],
            "input_features: 3 features found, 4 expected as in the dataset's other trials; give"
            " every trial of a dataset the same features, or leave it out with --skip-bad",
        ),
        (
            lambda x: x[:9],
            "input_features: 9 bins found, at least 14 (one patch) expected; record longer trials,"
            " or leave it out with --skip-bad",
        ),
        (
            lambda x: x[:, 0],
            "features_TC has shape [90] and type int64; numbers [bins, features] are needed, or leave it out"
            " with --skip-bad",
        ),
        (
            lambda x: x.astype(str),
            "features_TC has shape [90, 4] and type <U21; numbers [bins, features] are needed, or leave it out"
            " with --skip-bad",
        ),
    ],
)
def test_a_bad_trial_is_named_and_the_other_recordings_are_written(lab, tmp_path, harm, line):
    x = lab.recorded["t9.2025.01.02"][1, 2]
    lab.recorded["t9.2025.01.02"][1, 2] = harm(x)
    done = import_source(lab.source(), tmp_path / "out")
    (problem,) = done.problems
    place = f"{lab.path('t9.2025.01.02')}: block 1 trial 2: "
    assert str(problem) == place + line
    assert (done.n_written, done.n_refused) == (1, 1)
    assert [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()] == [
        "t9.2025.01.01"
    ]
    done = import_source(lab.source(), tmp_path / "out", skip_bad=True)
    assert (done.n_written, done.n_kept, len(done.problems)) == (1, 1, 1)
    assert ("t9.2025.01.02", 1, 2) not in written(tmp_path / "out")
    assert len(written(tmp_path / "out")) == 5


def test_letters_that_would_get_lost_are_a_problem_of_their_trial(lab, tmp_path):
    lab.sentence = lambda session, block, trial: "Hace frío" if trial == 1 else "I am here."
    done = import_source(lab.source(), tmp_path / "out")
    assert len(done.problems) == 4
    assert str(done.problems[0]).endswith(
        "block 1 trial 1: sentence_label: language 'en' would lose í in 'Hace frío'; choose the"
        " text's language, or write other letters and numbers as words, or leave it out with"
        " --skip-bad"
    )
    assert (done.n_written, done.n_refused) == (0, 2)


def test_a_trial_without_a_sentence_belongs_to_test(lab, tmp_path):
    lab.sentence = lambda session, block, trial: None if block == 2 else "I am here."
    done = import_source(lab.source(), tmp_path / "val")
    assert str(done.problems[0]).endswith(
        "sentence_label: no sentence found, which trials of val need; give one, or make it a trial"
        " of test, or leave it out with --skip-bad"
    )
    lab.split = lambda block: {1: "train", 2: "test"}[block]
    done = import_source(lab.source(), tmp_path / "test")
    assert done.problems == []
    assert {one.sentence for one in written(tmp_path / "test", "test").values()} == {None}


def test_a_number_that_occurs_twice_in_a_block_is_a_problem(lab, tmp_path):
    blocks = lab.blocks
    lab.blocks = lambda session: [*blocks(session), blocks(session)[0]]
    done = import_source(lab.source(), tmp_path / "out", skip_bad=True)
    assert len(done.problems) == 6
    assert str(done.problems[0]).endswith(
        "block 1 trial 0: trial_num: the block has two trials of this number; number them"
        " differently, or leave it out with --skip-bad"
    )
    assert len(written(tmp_path / "out")) == 6


def test_two_recordings_of_the_same_session_and_split_are_refused(lab, tmp_path):
    source = lab.source()
    again = lab.folder / "again" / "t9.2025.01.01.lab"
    again.parent.mkdir()
    shutil.copy(lab.path("t9.2025.01.01"), again)
    source.recordings.append(Recording("t9.2025.01.01", [again], source.recordings[0].open))
    with pytest.raises(DataError) as caught:
        import_source(source, tmp_path / "out")
    assert str(caught.value) == (
        f"{again}: and {lab.path('t9.2025.01.01')} hold the same split of t9.2025.01.01; give them"
        " as one recording, or import them to separate directories"
    )


def test_a_file_that_cannot_be_read_costs_only_its_recording(lab, tmp_path):
    source = lab.source()

    @contextmanager
    def damaged():
        raise FaultError(None, "not a file of the lab", "copy it again")
        yield

    path = lab.path("t9.2025.01.01")
    source.recordings[0] = Recording("t9.2025.01.01", [path], damaged)
    done = import_source(source, tmp_path / "out")
    assert [str(problem) for problem in done.problems] == [
        f"{path}: not a file of the lab; copy it again"
    ]
    assert (done.n_written, done.n_refused) == (1, 1)


def test_nothing_to_import_is_an_error(tmp_path):
    with pytest.raises(DataError, match="holds no recordings of lab"):
        import_source(Source("lab", []), tmp_path / "out")


def test_progress_grows_to_all_megabytes(lab, tmp_path):
    for session in lab.recorded:
        lab.path(session).write_bytes(bytes(3_000_000))
    seen = []
    import_source(lab.source(), tmp_path / "out", progress=lambda *numbers: seen.append(numbers))
    assert seen == sorted(seen)
    assert seen[-1] == (6, 6)
    assert len({done for done, _ in seen}) == 7  # by trial, not by file


def test_a_recording_that_is_refused_decides_nothing_for_the_others(tmp_path):
    lab = Lab(tmp_path, n_bins=200)
    x_TC = lab.recorded["t9.2025.01.01"]
    x_TC |= {place: x[:, :3] for place, x in x_TC.items()}
    x_TC[2, 2] = np.full((200, 3), np.nan)
    source = lab.source()

    @contextmanager
    def first():
        yield Contents(lab.blocks("t9.2025.01.01"), 10)

    source.recordings[0] = Recording("t9.2025.01.01", [lab.path("t9.2025.01.01")], first)
    done = import_source(source, tmp_path / "out")
    assert (done.n_written, done.n_refused, len(done.problems)) == (1, 1, 1)
    assert {one.features_TC.shape[1] for one in written(tmp_path / "out").values()} == {4}
    assert open_dataset(tmp_path / "out").conventions.bin_ms == 20


def test_notes_name_their_session(lab, tmp_path):
    lab.contents["notes"] = ["2 trials of rest"]
    done = import_source(lab.source(), tmp_path / "out")
    assert done.notes == [
        "t9.2025.01.01: 2 trials of rest",
        "t9.2025.01.02: 2 trials of rest",
    ]


@pytest.mark.parametrize("reader", ["t12", "handwriting", "inner-speech", "falcon-h2"])
def test_a_name_that_is_too_long_is_one_line(tmp_path, capsys, reader):
    long = tmp_path / (300 * "x")
    said = complaint(capsys, "import", reader, long, "--out", tmp_path / "out")
    assert "File name too long" in said
    assert not (tmp_path / "out").exists()
