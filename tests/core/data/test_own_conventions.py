"""Recordings of other tokens, languages and bins than the release's.

Labels are written out by hand: token numbers are positions in `SYMBOLS`.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from refusals import complaint

from cortext.cli import run
from cortext.data import (
    Trial,
    make_trial,
    open_data,
    open_dataset,
    open_packed,
    pack,
    read_trials,
    write_session,
)
from cortext.data.conventions import FILE, RELEASE_CONVENTIONS, Conventions
from cortext.data.inspect import inspect
from cortext.data.packed_dataset import joined
from cortext.errors import DataError, TextError
from cortext.text.inventory import CHARACTERS, Inventory
from cortext.text.language import LANGUAGES, Language

SYMBOLS = ("_", "|", *"abcdefghijklmnopqrstuvwxyzáéíóúüñ")
GROUPS = (("with accent", tuple("áéíóúü")), ("eñe", ("ñ",)))
LETRAS = Inventory("letras", SYMBOLS, "_", None, "|", "character", GROUPS)
SPANISH = Conventions(LETRAS, LANGUAGES["es"], 10, "z-scored by block")
DAY = "lab.2026.01.02"
OTHER_DAY = "lab.2026.01.03"
FRIO = [7, 19, 30, 16]  # frío


def trial_of(
    sentence: str | None = "¡Frío!",
    number: int = 0,
    n_bins: int = 60,
    day: str = DAY,
    conventions: Conventions = SPANISH,
) -> Trial:
    features_TC = np.random.default_rng(number).standard_normal((n_bins, 4))
    return make_trial(features_TC, day, 1, number, sentence, conventions=conventions)


@pytest.fixture
def spanish(tmp_path: Path) -> Path:
    """Session files of two days."""
    for day in (DAY, OTHER_DAY):
        write_session(
            tmp_path / "data" / day / "data_train.hdf5",
            [trial_of(day=day), trial_of("el niño", 1, day=day)],
        )
    return tmp_path / "data"


def test_conventions_travel_from_session_files_to_packed_trials(
    spanish: Path, tmp_path: Path
) -> None:
    written = json.loads((spanish / FILE).read_text())
    assert (written["inventory"]["name"], written["language"]) == ("letras", "es")
    assert (written["bin_ms"], written["normalised"]) == (10, "z-scored by block")
    dataset = open_dataset(spanish)
    packed = pack(spanish, tmp_path / "packed")
    assert dataset.conventions == packed.conventions == SPANISH
    assert packed.conventions.inventory.groups == GROUPS
    split = packed.split("train")
    assert split.conventions == split.take(np.array([1])).conventions == SPANISH
    read = next(read_trials(spanish / DAY / "data_train.hdf5", labels_required=True))
    for trial in (read, next(iter(dataset)), next(iter(packed)), split.trial(2)):
        assert trial.conventions == SPANISH
        assert trial.phoneme_ids.tolist() == FRIO
    assert split.labels(1).tolist() == [6, 13, 1, 15, 10, 34, 16]  # el niño
    assert "minutes: 0.0" in str(split)
    # 4 trials of 60 bins of 10 ms are 2.4 s.
    assert inspect(spanish).totals[0].minutes == pytest.approx(2.4 / 60)
    assert "seconds: 0.6" in str(read)


def test_the_release_s_files_say_nothing_of_conventions(dataset_root: Path, tmp_path: Path) -> None:
    packed = pack(dataset_root, tmp_path / "packed")
    assert not list(tmp_path.rglob(FILE))
    assert packed.conventions == open_dataset(dataset_root).conventions == RELEASE_CONVENTIONS
    index = json.loads((packed.path / "index.json").read_text())["index"]
    assert sorted(index) == [
        "arrays",
        "bad_trials",
        "n_features",
        "post_implant_day",
        "sessions",
        "source",
        "source_files",
        "splits",
    ]
    plain = json.loads(inspect(dataset_root).to_json())
    assert sorted(plain) == [
        "kind",
        "labels_differ",
        "n_distinct_sentences",
        "n_features",
        "path",
        "phonemes_missing",
        "problems",
        "rows",
        "totals",
    ]
    lines = str(inspect(dataset_root, check_sentences=False)).splitlines()
    assert lines[:2] == [f"{dataset_root}: session files, 8 features", ""]
    assert lines[2].split()[4:] == ["minutes", "sentences", "phonemes", "bins", "values", "corpora"]
    assert lines[-3].startswith("phonemes that never occur: AA AE AO ")


@pytest.mark.parametrize("token", [0, 35, -1, 2**31 - 1])
def test_labels_are_tokens_of_the_data_s_inventory(spanish: Path, token: int) -> None:
    with h5py.File(spanish / DAY / "data_train.hdf5", "r+") as file:
        file["trial_0001/seq_class_ids"][2] = token
    with pytest.raises(DataError) as caught:
        pack(spanish, spanish.parent / "packed")
    line = str(caught.value)
    assert f"trial_0001: seq_class_ids: token {token} found at position 2, 1 to 34 expected" in line
    assert "use the character numbers of inventory 'letras'" in line


def test_token_40_of_the_release_is_none_of_the_handwriting_s(tmp_path: Path) -> None:
    release = Trial(np.ones((60, 4), np.float32), DAY, 1, 0, "a", np.array([40]))
    path = tmp_path / "data" / DAY / "data_train.hdf5"
    write_session(path, [release])
    (tmp_path / "data" / FILE).write_text(
        '{"format": "cortext-conventions", "format_version": 1, "inventory": "handwriting"}'
    )
    with pytest.raises(DataError, match="token 40 found at position 0, 1 to 31 expected"):
        list(read_trials(path, labels_required=True))


def test_labels_of_10_000_tokens_are_written_packed_and_batched(tmp_path: Path) -> None:
    long = "ab" * 4_999 + "a"  # 9,999 characters, and as many tokens
    trials = [trial_of(long, 0, 9_999), trial_of("ñ" * 300 + "o" * 300, 1, 1_300), trial_of()]
    trials[2] = replace(trials[2], trial=2)
    path = tmp_path / "data" / DAY / "data_train.hdf5"
    write_session(path, trials)
    with h5py.File(path) as file:
        shapes = [[file[f"trial_000{n}/{name}"].shape for n in range(3)] for name in _ARRAYS]
        assert shapes == [[(9_999,), (600,), (500,)], [(10_000,), (601,), (500,)]]
        assert file["trial_0001/transcription"].dtype == np.int32
        assert file["trial_0001/transcription"][[0, 299, 300, 600]].tolist() == [241, 241, 111, 0]
    split = open_data(tmp_path / "data").split("train")
    assert split.n_labels_N.tolist() == [9_999, 600, 4]
    labels_BU, n_labels_B = split.labels_batch(np.array([1, 0]))
    assert labels_BU.shape == (2, 9_999)
    assert labels_BU[0, [0, 299, 300, 599, 600]].tolist() == [34, 34, 16, 16, 0]
    assert n_labels_B.tolist() == [600, 9_999]
    assert split.batch([2, 0]).labels_BU.shape == (2, 9_999)
    assert split.sentence(0) == long
    with pytest.raises(DataError, match="seq_len: 10001 found, 1 to 10000 expected"):
        write_session(path, [trial_of("a" * 10_001, 0, 10_001)])
    with pytest.raises(DataError, match="10000 characters found, under 10000 expected"):
        write_session(path, [trial_of("ab" * 5_000, 0, 10_001)])


_ARRAYS = ("seq_class_ids", "transcription")


def test_sentences_of_any_script_are_code_points(tmp_path: Path) -> None:
    greek = Inventory("greek", ("_", *"αβγδεζηθικλμνξοπρστυφχψωός𐤀"), "_", None, unit="character")
    conventions = Conventions(greek, Language("el", "α-ωό𐤀"))
    path = tmp_path / "data" / DAY / "data_train.hdf5"
    write_session(path, [trial_of("λόγος 𐤀", conventions=conventions)])
    with h5py.File(path) as file:
        codes = file["trial_0000/transcription"][:8].tolist()
    assert codes == [0x3BB, 0x3CC, 0x3B3, 0x3BF, 0x3C2, 0x20, 0x10900, 0]


def test_a_label_is_bound_by_the_bins_alone_where_the_model_is_not_the_release_s(
    tmp_path: Path,
) -> None:
    # "abba" needs 5 frames: a blank between the two b.
    path = tmp_path / "data" / DAY / "data_train.hdf5"
    write_session(path, [trial_of("abba", n_bins=5)])
    assert open_data(tmp_path / "data").split("train").n_bins_N.tolist() == [5]
    with pytest.raises(
        DataError, match=r"4 bins give 4 patches, the label of 4 characters needs .*5"
    ):
        write_session(path, [trial_of("abba", n_bins=4)])


def rewrite(root: Path, conventions: Conventions) -> None:
    (root / FILE).unlink()
    text = {"format": "cortext-conventions", "format_version": 1} | conventions.to_json()
    (root / FILE).write_text(json.dumps(text))


CHANGES: dict[str, Callable[[Path], object]] = {
    "changed": lambda root: rewrite(root, replace(SPANISH, bin_ms=20)),
    "removed and others by hand": lambda root: rewrite(root, Conventions(LETRAS)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_packed_data_are_stale_when_the_conventions_changed(
    spanish: Path, tmp_path: Path, name: str
) -> None:
    cached = open_data(spanish)
    packed = pack(spanish, tmp_path / "packed")
    assert not packed.stale()
    CHANGES[name](spanish)
    assert packed.stale()
    with pytest.raises(DataError, match=r"have changed since it was packed; run cortext pack .*"):
        open_data(tmp_path / "packed")
    assert open_data(spanish).conventions != cached.conventions


def test_packed_data_are_stale_when_conventions_are_added_or_removed(
    dataset_root: Path, tmp_path: Path
) -> None:
    assert open_data(dataset_root).conventions == RELEASE_CONVENTIONS
    packed = pack(dataset_root, tmp_path / "packed")
    given = replace(RELEASE_CONVENTIONS, bin_ms=40).to_json()
    (dataset_root / FILE).write_text(
        json.dumps({"format": "cortext-conventions", "format_version": 1} | given)
    )
    assert packed.stale()
    assert open_data(dataset_root).conventions.bin_ms == 40
    (dataset_root / FILE).unlink()
    assert not packed.stale()
    assert open_data(dataset_root).conventions == RELEASE_CONVENTIONS


def test_a_damaged_file_makes_packed_data_stale_and_is_named(
    spanish: Path, tmp_path: Path, capsys
) -> None:
    packed = pack(spanish, tmp_path / "packed")
    (spanish / FILE).write_text("{")
    assert packed.stale()
    for arguments in (("pack", spanish, "--out", tmp_path / "again"), ("inspect", spanish)):
        assert f"{spanish / FILE}: cannot be read: " in complaint(capsys, *arguments)
    with pytest.raises(DataError, match=f"{FILE}: cannot be read"):
        open_data(tmp_path / "packed")


def test_a_directory_never_gets_two_conventions(spanish: Path, tmp_path: Path) -> None:
    english = trial_of("hello", day="lab.2026.01.04", conventions=RELEASE_CONVENTIONS)
    file = spanish / "lab.2026.01.04" / "data_train.hdf5"
    for other, says in (
        (english, "in the trials the tokens are phonemes, not characters"),
        (replace(english, conventions=replace(SPANISH, bin_ms=20)), "bins last 20 ms, not 10 ms"),
        (
            replace(english, conventions=replace(SPANISH, language=LANGUAGES["de"])),
            "the language 'de' is not 'es'",
        ),
    ):
        with pytest.raises(DataError, match=says) as caught:
            write_session(file, [other])
        assert str(caught.value).endswith(
            "write trials of other conventions to a directory of their own"
        )
        with pytest.raises(DataError, match="the session files there differ"):
            other.conventions.write(spanish)
    assert not file.exists()
    # A note on normalising is no difference.
    replace(SPANISH, normalised="rolling").write(spanish)
    assert open_dataset(spanish).conventions.normalised == "rolling"

    root = tmp_path / "release"
    write_session(root / DAY / "data_train.hdf5", [replace(english, session=DAY)])
    with pytest.raises(DataError, match="in the trials the tokens are characters, not phonemes"):
        write_session(root / OTHER_DAY / "data_train.hdf5", [trial_of(day=OTHER_DAY)])
    with pytest.raises(DataError, match="the session files there differ"):
        SPANISH.write(root)
    assert not (root / FILE).exists()


def test_conventions_that_others_wrote_meanwhile_are_seen(tmp_path: Path) -> None:
    root = tmp_path / "data"
    others = replace(trial_of(day=OTHER_DAY), conventions=replace(SPANISH, bin_ms=20))

    def trials():
        yield trial_of()
        write_session(root / OTHER_DAY / "data_train.hdf5", [others])

    with pytest.raises(DataError, match="in the trials bins last 10 ms, not 20 ms"):
        write_session(root / DAY / "data_train.hdf5", trials())
    assert [trial.session for trial in open_dataset(root)] == [OTHER_DAY]


def test_one_file_never_gets_two_conventions(tmp_path: Path) -> None:
    other = replace(trial_of(number=1), conventions=replace(SPANISH, bin_ms=20))
    path = tmp_path / "data" / DAY / "data_train.hdf5"
    with pytest.raises(DataError, match=r"the first trial and trial_0001 differ: .* 10 ms, not 20"):
        write_session(path, [trial_of(), other])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_conventions_may_be_written_before_the_session_files(tmp_path: Path) -> None:
    Conventions(CHARACTERS).write(tmp_path)
    SPANISH.write(tmp_path)
    with pytest.raises(DataError, match="in the trials the tokens are phonemes, not characters"):
        write_session(
            tmp_path / DAY / "data_train.hdf5",
            [trial_of("hello", conventions=RELEASE_CONVENTIONS)],
        )
    write_session(tmp_path / DAY / "data_train.hdf5", [trial_of()])
    assert open_dataset(tmp_path).conventions == SPANISH
    (tmp_path / DAY / "data_train.hdf5").unlink()
    RELEASE_CONVENTIONS.write(tmp_path)
    assert not (tmp_path / FILE).exists()


def test_conventions_that_could_not_be_read_again_are_not_written(tmp_path: Path) -> None:
    twice = Inventory("twice", ("_", "a", "a"), "_", None)
    with pytest.raises(TextError, match="'a' is there twice"):
        Conventions(twice).write(tmp_path)
    with pytest.raises(DataError, match=r"bin_ms is 0\.02"):
        Conventions(bin_ms=0.02).write(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_failed_file_leaves_no_conventions(tmp_path: Path) -> None:
    def trials():
        yield trial_of()
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        write_session(tmp_path / "data" / DAY / "data_train.hdf5", trials())
    assert not list(tmp_path.rglob(FILE))


def test_data_of_two_conventions_are_not_joined(spanish: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write_session(
        other / DAY / "data_train.hdf5",
        [replace(trial_of(), conventions=replace(SPANISH, bin_ms=20))],
    )
    both = open_data(spanish), open_data(other)
    assert joined([both[0], both[0]]).split("train").conventions == SPANISH
    with pytest.raises(DataError, match=r"differ: in the data in .* bins last 10 ms, not 20 ms"):
        joined(both)


def test_conventions_put_beside_packed_data_are_not_ignored(spanish: Path, tmp_path: Path) -> None:
    packed = pack(spanish, tmp_path / "packed")
    (packed.path / FILE).write_bytes((spanish / FILE).read_bytes())
    assert open_packed(packed.path).conventions == SPANISH
    rewrite(packed.path, replace(SPANISH, bin_ms=25))
    with pytest.raises(DataError, match=r"bins last 10 ms, not 25 ms; remove its cortext\.json"):
        open_packed(packed.path)


def test_conventions_that_changed_since_the_data_were_opened_are_not_packed(
    spanish: Path, tmp_path: Path
) -> None:
    dataset = open_dataset(spanish)
    rewrite(spanish, replace(SPANISH, language=LANGUAGES["de"]))
    with pytest.raises(DataError, match=r"cortext\.json has changed meanwhile; open it again"):
        pack(dataset, tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_inspect_shows_conventions_and_sentences_that_the_language_would_lose(
    spanish: Path, tmp_path: Path, capsys
) -> None:
    with h5py.File(spanish / DAY / "data_train.hdf5", "r+") as file:
        file["trial_0001"].attrs["sentence_label"] = "naïve 3 ‘l’eau’"
    report = inspect(spanish)
    said = (
        f"{DAY}/block 1/trial 1: sentence_label: language 'es' would lose ï 3 in 'naïve 3 ‘l’eau’'"
    )
    assert [said in str(problem) for problem in report.problems] == [True]
    assert report.totals[0].n_bad == 0
    assert run(["inspect", str(spanish)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(
        f"{spanish}: session files, 4 features\n"
        "inventory: letras: 34 characters and the blank\n"
        "language: es\nbins: 10 ms\nnormalised: z-scored by block\n\n"
    )
    assert "characters that never occur: a b c d g h j k m p q s t u v w x y z á é ó ú ü\n" in shown
    assert said in shown
    plain = json.loads(report.to_json())
    assert plain["conventions"]["language"] == "es"
    assert plain["conventions"]["inventory"]["groups"] == {
        name: list(members) for name, members in GROUPS
    }
    assert len(inspect(pack(spanish, tmp_path / "packed").path).problems) == 1


def test_inspect_finds_what_english_would_lose(dataset_root: Path) -> None:
    sentences = ("Café at 5", "don’t — well-known “words”", "plain", "3")
    with h5py.File(dataset_root / "t15.2023.08.11" / "data_train.hdf5", "r+") as file:
        for trial, sentence in zip(file.values(), sentences, strict=True):
            trial.attrs["sentence_label"] = sentence
    problems = inspect(dataset_root).problems
    said = [str(problem) for problem in problems if problem.field == "sentence_label"]
    assert ["would lose é 5 in 'Café at 5'" in said[0], "would lose 3 in '3'" in said[1]] == [
        True,
        True,
    ]
    assert "labelled \"don't well-known words\" and scored 'dont well-known words'" in said[2]
    assert len(said) == 3
    with pytest.raises(TextError, match="language 'en' would lose é 5 in 'Café at 5'"):
        make_trial(np.ones((60, 4)), DAY, 1, 0, "Café at 5")


def counts(root: Path, n_bins: int = 41) -> Path:
    """Session files of 10 ms bins: feature 0 counts up from 0, feature 1 is its double."""
    rows_TC = np.arange(n_bins)[:, None] * [1, 2]
    trial = make_trial(rows_TC, DAY, 1, 0, "el niño", conventions=SPANISH)
    write_session(root / DAY / "data_train.hdf5", [trial])
    return root


def test_pack_joins_bins(tmp_path: Path, capsys) -> None:
    data = counts(tmp_path / "data")
    out = tmp_path / "packed"
    assert run(["pack", str(data), "--out", str(out), "--bin-ms", "20", "--sums", "1"]) == 0
    packed = open_packed(out)
    split = packed.split("train")
    # Bins 0 1 | 2 3 | ...: means of feature 0, sums of feature 1; the 41st bin is dropped.
    np.testing.assert_array_equal(split.features(0)[:, 0], np.arange(20) * 2 + 0.5)
    np.testing.assert_array_equal(split.features(0)[:, 1], (np.arange(20) * 4 + 1) * 2)
    assert packed.conventions == replace(
        SPANISH,
        bin_ms=20,
        normalised="z-scored by block; rebinned from 10 ms, features 1 summed, others averaged",
    )
    assert split.trial(0).conventions.bin_ms == 20
    packed.verify()
    assert open_data(out).conventions.bin_ms == 20
    (data / FILE).touch()
    with pytest.raises(
        DataError, match=f"run cortext pack {data} --out {out} --bin-ms 20 --sums 1 again"
    ):
        open_data(out)


def test_data_are_not_read_from_a_cache_of_other_bins(tmp_path: Path) -> None:
    data = counts(tmp_path / "data")
    pack(data, data / ".packed", bin_ms=20)
    assert open_data(data).conventions.bin_ms == 10
    assert pack(data, tmp_path / "same", bin_ms=10).conventions == SPANISH


def test_trials_that_longer_bins_make_bad_are_named_or_left_out(tmp_path: Path, capsys) -> None:
    data = counts(tmp_path / "data")
    file = data / DAY / "data_train.hdf5"
    loud_TC = np.full((41, 2), 40_000)
    short = make_trial(np.ones((8, 2)), DAY, 1, 2, "el niño", conventions=SPANISH)
    trials = list(read_trials(file, labels_required=True))
    loud = replace(trials[0], features_TC=loud_TC, trial=1)
    write_session(file, [*trials, loud, short])
    out = tmp_path / "packed"
    arguments = ("pack", data, "--out", out, "--bin-ms", "20", "--sums", "0-1")
    line = complaint(capsys, *arguments)
    assert "trial_0001: input_features: a magnitude of 80000 found, at most 65504" in line
    assert run([str(part) for part in (*arguments, "--skip-bad")]) == 0
    problems = [str(problem) for problem in open_packed(out).bad_trials]
    assert len(problems) == 2
    assert "trial_0002: n_time_steps: 4 bins give 4 patches, the label of 7" in problems[1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--bin-ms", "4"), "--bin-ms"),
        (("--bin-ms", "20", "--sums", "2"), "sums names feature 2; the data has 0 to 1"),
        (("--bin-ms", "20", "--sums", "1-0"), "--sums is '1-0'; numbers and ranges such as"),
        (("--bin-ms", "20", "--sums", "x"), "--sums is 'x'"),
        (("--bin-ms", "20", "--sums", "9" * 99), "--sums is '999"),
        (("--sums", "1"), "sums is given without bin_ms"),
    ],
)
def test_bad_options_of_rebinning_are_one_line(
    options: tuple[str, ...], says: str, tmp_path: Path, capsys
) -> None:
    data = counts(tmp_path / "data")
    assert says in complaint(capsys, "pack", data, "--out", tmp_path / "packed", *options)
    assert not (tmp_path / "packed").exists()


def test_a_dataset_is_rebinned_as_it_is_read_and_once(tmp_path: Path) -> None:
    dataset = open_dataset(counts(tmp_path / "data")).rebinned(50)
    trials = dataset.trials("train")
    assert next(trials).n_bins == 8
    with pytest.raises(DataError, match="the bins are joined already"):
        dataset.rebinned(20)


def test_a_link_to_the_conventions_is_followed(spanish: Path, tmp_path: Path) -> None:
    (spanish / FILE).rename(tmp_path / "lab.json")
    (spanish / FILE).symlink_to(tmp_path / "lab.json")
    assert open_data(spanish).conventions == SPANISH
