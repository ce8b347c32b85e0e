"""`cortext verify t12` on a small copy of the release: whole, damaged, and with an import."""

import json
import re
import shutil

import h5py
import numpy as np
import pytest
import scipy.io
from foreign_files import T12_DAYS, t12_trials, write_t12
from foreign_matlab import column, save_v5
from refusals import complaint

from cortext.cli import run
from cortext_data.readers.importing import import_source
from cortext_data.readers.t12 import t12
from cortext_published.verification import PublishedT12, t12_facts, verify_t12
from cortext_published.verification.stages import PAGE, RESULT

FIRST, SECOND = T12_DAYS
SAID = ("we see you", "so do I", "not yet", "go on", "me too")
FACTS = PublishedT12(
    sessions={"train": T12_DAYS, "test": T12_DAYS, "competitionHoldOut": (SECOND,)},
    n_trials={"train": 10, "test": 4, "competitionHoldOut": 3},
    n_blocks={"test": 1, "competitionHoldOut": 2},
    n_columns=256,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with a small copy of the release, an import of it and its verification."""
    root = tmp_path_factory.mktemp("t12")
    rng = np.random.default_rng(0)
    material = {}
    for day in T12_DAYS:
        material["train", day] = t12_trials(rng, [3, 3, 3, 4, 4], SAID, (80, 90))
        material["test", day] = t12_trials(rng, [9, 9], SAID, (80, 90))
    material["competitionHoldOut", SECOND] = t12_trials(rng, [1, 1, 2], ["redacted"], (80, 90))
    write_t12(root, material)
    import_source(t12(root), root / "imported")
    verified(root)
    return root


def verified(root, published=FACTS, **options):
    return verify_t12(
        root / "competitionData",
        root / "verify",
        **{"data": root / "imported", "published": published} | options,
    )


@pytest.fixture
def own(whole, tmp_path):
    """A copy of all three, to be damaged: only what a damage concerns is done again."""
    return shutil.copytree(whole, tmp_path / "jane doe")


def lines(result):
    return {check.name: str(check).removeprefix(f"{check.name}: ") for check in result.checks}


def test_a_whole_copy_passes_every_check_that_can_be_made(whole):
    result = verified(whole)
    assert all(stage.kept for stage in result.stages)
    assert [stage.name for stage in result.stages] == ["files", "recordings", "import"]
    assert lines(result) == {
        "Sessions of train": "PASS  2 found, 2 published",
        "Sessions of test": "PASS  2 found, 2 published",
        "Sessions of competitionHoldOut": "PASS  1 found, 1 published",
        "Recordings": "PASS  17 trials were read without a problem",
        "Trials": "PASS  10 train, 4 test, 3 competitionHoldOut;"
        " published: 10 train, 4 test, 3 competitionHoldOut",
        "Blocks of test": "PASS  1 on every day",
        "Blocks of competitionHoldOut": "PASS  2 on every day",
        "Order of the blocks": "PASS  the holdout comes first and test last on all days",
        "Columns": "PASS  256 in each array; 256 published",
        "Thresholds": "PASS  tx1 has most crossings and tx4 fewest",
        "Sentences": "PASS  every trial of train and test has one",
        "Sentences of competitionHoldOut": "not checked, because they are withheld, and never read",
        "Imported trials": "PASS  17, on each day as in the release",
        "Problems of the imported data": "PASS  none",
        "Tokens and language": "PASS  ARPABET, English",
        "Imported features": "PASS  256; crossings and power of 128 columns are 256",
        "Labels": "PASS  sentences in train and val, none in test",
        "Z-scores by block": "PASS  mean 0 and standard deviation 1 over 5 blocks, the first of"
        " each file",
    }
    assert result.sessions[SECOND] == {"n_train": 5, "n_val": 2, "n_test": 3}
    page = (whole / "verify" / PAGE).read_text()
    assert "T12: no check failed" in page
    assert "participant T12" in page
    assert "WER" not in page
    assert not any(sentence in page for sentence in (*SAID, "redacted"))
    content = json.loads((whole / "verify" / RESULT).read_text())
    assert content["counts"] == {"PASS": 17, "FAIL": 0, "not checked": 1}


def test_without_imported_data_the_release_alone_is_checked(whole, tmp_path):
    result = verify_t12(whole, tmp_path / "verify", published=FACTS)
    says = "not checked, because no imported data were given; they can be given with --data"
    assert lines(result)["Imported data"] == says
    assert not result.failed


def mat(folder, day, change):
    """Return a damage that saves a file again with changed variables."""

    def damage(own):
        path = own / "competitionData" / folder / f"{day}.mat"
        content = {k: v for k, v in scipy.io.loadmat(path).items() if not k.startswith("__")}
        change(content)
        save_v5(path, content)

    return damage


def without(name):
    return lambda own: (own / "competitionData" / name).unlink()


def with_nan(content):
    content["spikePow"][0, 2][4, 200] = np.nan


def part(name, number, *slices):
    """Return a change that keeps a part of one cell."""

    def change(content):
        content[name][0, number] = content[name][0, number][slices]

    return change


def unlabelled(content):
    content["sentenceText"][1] = " " * len(content["sentenceText"][1])


def of_another_lab(own):
    path = own / "competitionData" / "train" / "t15.2023.08.11.mat"
    shutil.copy(path.with_name(f"{FIRST}.mat"), path)


def cut(own):
    path = own / "competitionData" / "test" / f"{FIRST}.mat"
    path.write_bytes(path.read_bytes()[:-2000])


def imported(split, change):
    """Return a damage of the imported session file of the second day."""

    def damage(own):
        with h5py.File(own / "imported" / SECOND / f"data_{split}.hdf5", "a") as file:
            change(file)

    return damage


def scaled_twice(file):
    for trial in file.values():
        trial["input_features"][...] *= 2


def record_of_another_reader(own):
    path = own / "imported" / "import.json"
    path.write_text(path.read_text().replace('"t12"', '"mat"'))


def fewer_columns(own):
    path = own / "imported" / "import.json"
    path.write_text(path.read_text().replace('"1-128"', '"1-64"'))


def columns_that_are_none(own):
    path = own / "imported" / "import.json"
    path.write_text(path.read_text().replace('"1-128"', "{}"))


DAMAGES = {
    "a missing day": (
        without(f"test/{FIRST}.mat"),
        {
            "Sessions of test": f"FAIL  1 found, 2 published; missing: {FIRST}",
            "Trials": "FAIL  10 train, 2 test, 3 competitionHoldOut; published: 10 train, 4 test",
            "Imported trials": f"FAIL  {FIRST} val has 2, the release 0",
        },
    ),
    "a file of another participant": (
        of_another_lab,
        {
            "files": "FAIL  DIR/train/t15.2023.08.11.mat: is no session of T12",
            "recordings": "FAIL  DIR/train/t15.2023.08.11.mat: is no session of T12",
        },
    ),
    "a file that was cut off": (
        cut,
        {"Recordings": rf"FAIL  \d problems?; the first: DIR/test/{FIRST}.mat: .*truncated"},
    ),
    "NaN outside of area 6v": (
        mat("train", FIRST, with_nan),
        {"Recordings": "FAIL  1 problem; the first: .*: spikePow: NaN or Inf found in trial 2"},
    ),
    "one trial of tx4 less": (
        mat("train", FIRST, lambda content: content.update(tx4=content["tx4"][:, 1:])),
        {"Recordings": "FAIL  1 problem; the first: .*: tx4: 4 trials found, 5 expected"},
    ),
    "one bin of tx2 less": (
        mat("train", FIRST, part("tx2", 3, slice(70))),
        {"Recordings": r"FAIL  1 problem; .*: tx2: 70 bins found in trial 3, \d+ as in tx1"},
    ),
    "thresholds that were swapped": (
        mat("test", SECOND, lambda content: content.update(tx1=content["tx2"], tx2=content["tx1"])),
        {"Thresholds": f"FAIL  tx1 has most .* but not in test/{SECOND}.mat"},
    ),
    "a column too few": (
        mat("test", SECOND, part("tx3", 0, slice(None), slice(255))),
        {"Columns": "FAIL  255, 256 in each array; 256 published"},
    ),
    "a trial without a sentence": (
        mat("test", SECOND, unlabelled),
        {"Sentences": f"FAIL  1 of 2 in test/{SECOND}.mat"},
    ),
    "two blocks of test": (
        mat("test", SECOND, lambda content: content.update(blockIdx=column([9, 10], "u1"))),
        {"Blocks of test": f"FAIL  1 on each day published; {SECOND} has 2"},
    ),
    "test before train": (
        mat("test", SECOND, lambda content: content.update(blockIdx=column([2.0, 2.0]))),
        {"Order of the blocks": f"not checked, because folders share .* on {SECOND}: they may"},
    ),
    "train before the holdout": (
        mat("train", SECOND, lambda content: content.update(blockIdx=column([0, 0, 0, 4, 4]))),
        {"Order of the blocks": f"FAIL  the holdout comes first .*, but not on {SECOND}"},
    ),
    "an import of another reader": (
        record_of_another_reader,
        {"Imported data": "FAIL  no import.json of `cortext import t12` was found"},
    ),
    "columns that are none": (
        columns_that_are_none,
        {"Imported data": "FAIL  no import.json of `cortext import t12` was found"},
    ),
    "fewer columns asked for": (
        fewer_columns,
        {"Imported features": "FAIL  256; crossings and power of 64 columns are 128"},
    ),
    "an imported trial that is gone": (
        imported("val", lambda file: file.pop("trial_0001")),
        {"Imported trials": f"FAIL  {SECOND} val has 1, the release 2"},
    ),
    "imported features that were scaled": (
        imported("test", scaled_twice),
        {"Z-scores by block": rf"FAIL  .* but not over {SECOND} test \(by 1\)"},
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_gives_its_line(name, own):
    damage, expected = DAMAGES[name]
    damage(own)
    result = verified(own)
    found = lines(result)
    for line, says in expected.items():
        assert re.match(says, found[line]), found[line]
    assert "cortext has a fault" not in str(found)
    content = (own / "verify" / PAGE).read_text() + (own / "verify" / RESULT).read_text()
    assert "jane" not in content
    assert not any(sentence in content for sentence in SAID)


def test_a_label_in_the_imported_holdout_fails(own):
    folder = own / "imported" / SECOND
    shutil.copy(folder / "data_val.hdf5", folder / "data_test.hdf5")
    result = verified(own)
    assert lines(result)["Labels"] == "FAIL  2 of 2 test trials have a sentence"


def test_an_import_of_other_tokens_language_or_bins(own):
    path = own / "imported" / "cortext.json"
    given = json.loads(path.read_text())
    for other, says in (
        ({"inventory": "lm"}, "FAIL  the import writes others: in it token 1 is AA, not SIL"),
        ({"language": "es"}, "FAIL  the import writes others: in it the language 'en' is not 'es'"),
        ({"bin_ms": 40}, "PASS  ARPABET, English"),
    ):
        path.write_text(json.dumps(given | other))
        assert lines(verified(own))["Tokens and language"] == says


def test_other_z_scores_are_not_checked(whole, tmp_path):
    import_source(t12(whole), tmp_path / "rolling", normalise="rolling")
    result = verify_t12(whole, tmp_path / "out", data=tmp_path / "rolling", published=FACTS)
    found = lines(result)["Z-scores by block"]
    assert found == "not checked, because the data were imported with --normalise rolling"


def test_the_command_ends_with_1_where_something_differs(whole, tmp_path, capsys, monkeypatch):
    given = ["verify", "t12", str(whole), "--out", str(tmp_path / "out")]
    assert run(given) == 1
    assert "Sessions of train: FAIL  2 found, 24 published; missing: " in capsys.readouterr().out
    monkeypatch.setattr("cortext_published.verification.t12.t12_facts", lambda: FACTS)
    given += ["--data", str(whole / "imported"), "--json"]
    assert run(given) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["PASS"] == 17


def test_what_is_no_copy_is_refused(whole, tmp_path, capsys):
    out = ["--out", tmp_path / "out"]
    for source, says in (
        (tmp_path / "nowhere", "no such directory; give the folder that competitionData.tar.gz"),
        (tmp_path, "holds no folders train and test with files such as t12.2022.04.28.mat"),
    ):
        assert says in complaint(capsys, "verify", "t12", source, *out)
    said = complaint(capsys, "verify", "t12", whole, *out, "--data", tmp_path / "nowhere")
    assert "nowhere: no such directory; give what `cortext import t12` wrote" in said
    (tmp_path / "out").write_text("mine")
    said = complaint(capsys, "verify", "t12", whole, *out)
    assert "exists and is not the directory of a verification" in said


def test_the_facts_are_those_of_the_benchmark():
    facts = t12_facts()
    assert sum(facts.n_trials.values()) == 10_880
    assert [len(facts.sessions[name]) for name in facts.n_trials] == [24, 24, 15]
    assert facts.sessions["train"][0] == "t12.2022.04.28"
    assert facts.sessions["train"][-1] == "t12.2022.08.25"
    assert list(facts.sessions["train"]) == sorted(facts.sessions["train"])
    # Numbers of the holdout's days among all, as the organisers' code lists them.
    places = [facts.sessions["train"].index(day) for day in facts.sessions["competitionHoldOut"]]
    assert places == [4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 18, 19, 20]
