"""MATLAB files with skipped trials, cells the other way round, and files that are no recordings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from foreign_matlab import cells, save_v5, save_v73, texts
from refusals import refused

from cortext.cli import run
from cortext.data import open_dataset
from cortext_data.readers.importing import Imported, import_source
from cortext_data.readers.mapped.inspect_mat import inspect_mat
from cortext_data.readers.mat import mat

HEAD = "format: cortext-mapping\nformat_version: 1\nreader: mat\nparticipant: t99\nbin_ms: 20\n"
CELLS = HEAD + "features: [{name: tx, kind: counts}]\ntrials: {layout: cells}\n"
WORDS = "sentence: {name: words}\n"
NAME = "t99.2025.03.14.mat"
SAVES = [pytest.param(save_v5, id="v5"), pytest.param(save_v73, id="v7.3")]
RNG = np.random.default_rng(3)


def counts(*shape: int) -> np.ndarray:
    return RNG.poisson(1, shape).astype("u1")


def imported(source: Path, text: str, *, skip_bad: bool = False) -> Imported:
    mapping = source.parent / "mapping.yaml"
    mapping.write_text(text)
    out = source.parent / "out"
    return import_source(mat(source, mapping), out, normalise="none", skip_bad=skip_bad)


def sentences(source: Path) -> list[str | None]:
    return [trial.sentence for trial in open_dataset(source.parent / "out").trials("train")]


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("at", [0, 1])
def test_an_empty_cell_is_a_trial_that_was_skipped(tmp_path: Path, save, at: int) -> None:
    tx = [counts(40 + i, 16) for i in range(3)]
    tx[at] = np.zeros((0, 0))
    save(tmp_path / NAME, {"tx": cells(tx), "words": texts(["one", "two", "yes"], (3, 1))})
    done = imported(tmp_path / NAME, CELLS + WORDS)
    assert done.problems == []
    assert done.notes == ["t99.2025.03.14: left out: 1 trial with an empty cell"]
    kept = ["one", "two", "yes"]
    del kept[at]
    assert sentences(tmp_path / NAME) == kept
    items, first = inspect_mat(tmp_path / NAME)
    assert "1 of 3 are empty" in {item.name: item.about for item in items}["tx"]
    assert "name: tx" in first
    assert "name: words" in first


@pytest.mark.parametrize("save", SAVES)
def test_an_epoch_of_nan_is_a_trial_that_was_skipped(tmp_path: Path, save) -> None:
    epochs = np.array([[1, 40], [np.nan, np.nan], [81, 120]])
    variables = {"tx": counts(160, 16), "go": epochs, "blocks": np.ones((160, 1))}
    save(tmp_path / NAME, variables | {"words": texts(["one", "two", "yes"], (3, 1))})
    text = CELLS.replace("layout: cells", "layout: epochs, epochs: go") + WORDS
    done = imported(tmp_path / NAME, text + "block: {name: blocks, per: bin}\n")
    assert done.problems == []
    assert done.notes == ["t99.2025.03.14: left out: 1 trial whose epoch is NaN"]
    assert sentences(tmp_path / NAME) == ["one", "yes"]
    items, first = inspect_mat(tmp_path / NAME)
    assert "name: tx" in first
    assert "epochs: go" in first
    assert "1 of 3 rows have NaN" in {item.name: item.about for item in items}["go"]


def test_cells_of_equal_rows_are_noted_as_perhaps_transposed(tmp_path: Path) -> None:
    save_v5(
        tmp_path / NAME,
        {"tx": cells([counts(96, 150)] * 3), "words": texts(["one", "two", "yes"], (3, 1))},
    )
    note = (
        "t99.2025.03.14: every cell of tx has 96 rows and 150 columns, read as 96 bins of 150"
        " features; transpose the cells if 96 is the number of channels, or write `columns: 0-149`"
        " if it is not"
    )
    assert note in imported(tmp_path / NAME, CELLS + WORDS).notes
    about = {item.name: item.about for item in inspect_mat(tmp_path / NAME)[0]}["tx"]
    assert about.endswith("; all have 96 rows: transpose them if these are channels")


def test_the_columns_of_the_mapping_say_that_equal_rows_are_right(tmp_path: Path) -> None:
    save_v5(
        tmp_path / NAME,
        {"tx": cells([counts(96, 16)] * 3), "words": texts(["one", "two", "yes"], (3, 1))},
    )
    text = (CELLS + WORDS).replace("counts}", "counts, columns: 0-15}")
    assert imported(tmp_path / NAME, text).notes == []


@pytest.mark.parametrize(
    ("variables", "text", "expected"),
    [
        (
            {"tx": cells([counts(16, n) for n in (40, 50, 60)])},
            CELLS,
            "tx: 16 rows in every cell, and columns that differ; [bins, columns] with equal columns"
            " expected; transpose the cells",
        ),
        (
            {"tx": counts(16, 160), "go": np.array([[1, 40], [41, 80], [81, 120.0]])},
            CELLS.replace("layout: cells", "layout: epochs, epochs: go"),
            "tx: shape [16, 160] found, and epochs up to bin 120; [bins, columns] expected;"
            " transpose it",
        ),
        (
            {"tx": np.zeros((0, 100, 8)), "n": np.zeros((0, 1))},
            CELLS.replace("layout: cells", "layout: cube, lengths: n"),
            "tx: no trials found; correct the mapping",
        ),
    ],
)
def test_arrays_that_hold_no_trials_are_refused_once(
    tmp_path: Path, variables: dict[str, object], text: str, expected: str
) -> None:
    save_v5(tmp_path / NAME, variables | {"words": texts(["one", "two", "yes"], (3, 1))})
    (problem,) = imported(tmp_path / NAME, text + WORDS).problems
    assert str(problem) == f"{tmp_path / NAME}: {expected}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    for name, words in ((NAME, ["one", "two"]), ("t99.2025.03.15.mat", ["yes", "no"])):
        tx = cells([counts(40, 16), counts(50, 16)])
        save_v5(made / name, {"tx": tx, "words": texts(words, (2, 1))})
    return made


@pytest.mark.parametrize("name", ["params.mat", "t99.2025.03.14_params.mat"])
def test_a_file_without_the_features_is_left_out_with_a_note(folder: Path, name: str) -> None:
    save_v5(folder / name, {"w": np.eye(3)})
    done = imported(folder, CELLS + WORDS)
    assert done.problems == []
    left_out = "left out: the file has none of the mapping's features (tx)"
    assert done.notes == [f"{name}: {left_out}"]
    assert done.n_written == 2


def test_a_recording_without_a_date_costs_only_itself(folder: Path) -> None:
    (folder / "t99.2025.03.15.mat").rename(folder / "monday.mat")
    done = imported(folder, CELLS + WORDS)
    assert [str(problem) for problem in done.problems] == [
        f"{folder}/monday.mat: no date of the form YYYY.MM.DD in its name; correct session.date in"
        " the mapping, or give its date under session.files"
    ]
    assert done.n_written == 1


def test_a_mapping_that_fits_no_file_leaves_none_out(folder: Path) -> None:
    text = (CELLS + WORDS).replace("name: tx,", "name: tx9,")
    problems = imported(folder, text).problems
    assert len(problems) == 2
    assert "tx9: variable missing; the file has tx, words" in str(problems[0])


def test_one_file_without_a_date_is_refused_at_once(folder: Path) -> None:
    (folder / NAME).rename(folder / "monday.mat")
    with refused("no date of the form YYYY"):
        imported(folder / "monday.mat", CELLS + WORDS)


def test_a_part_of_a_struct_is_no_variable(folder: Path) -> None:
    save_v5(folder / NAME, {"s": {"tx": counts(40, 8)}, "words": texts(["one"], (1, 1))})
    text = (CELLS + WORDS).replace("name: tx,", "name: s.tx,")
    problem = imported(folder / NAME, text).problems[0]
    assert "s.tx: s is a struct or an object, whose parts are not read" in str(problem)


def test_inspect_of_a_folder_says_that_it_shows_the_first_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", "mat", str(folder), "--inspect"]) == 0
    said = capsys.readouterr().err
    assert said == "note: this is the first of 2 files; name another one to see it\n"


EPOCHS = CELLS.replace("layout: cells", "layout: epochs, epochs: go") + WORDS


def bins_and_epochs(epochs: np.ndarray) -> dict[str, np.ndarray]:
    words = texts(["one", "two", "yes"], (3, 1))
    return {"tx": counts(160, 16), "go": epochs, "words": words}


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("bad", ["one", cells([counts(40, 16)])], ids=["a text", "a cell"])
def test_a_cell_that_is_no_numbers_costs_its_trial_alone(tmp_path: Path, save, bad) -> None:
    tx = cells([counts(40 + i, 16) for i in range(3)])
    tx[0, 1] = bad
    save(tmp_path / NAME, {"tx": tx, "words": texts(["one", "two", "yes"], (3, 1))})
    items, first = inspect_mat(tmp_path / NAME)
    assert "1 of 3 are no numbers" in {item.name: item.about for item in items}["tx"]
    assert "name: tx" in first
    (problem,) = imported(tmp_path / NAME, CELLS + WORDS, skip_bad=True).problems
    assert problem.trial == "block 0 trial 1"
    assert "found in cell 2, numbers expected" in problem.message
    assert sentences(tmp_path / NAME) == ["one", "yes"]


@pytest.mark.parametrize(
    ("name", "values", "text", "said"),
    [
        ("block", [1, np.nan, 2], "{w}block: {{name: block}}\n", "block: nan found, a whole"),
        (
            "cue",
            [1, np.nan, 3],
            "sentence: {{name: cue, cues: words}}\n",
            "cue: nan found, a whole",
        ),
        ("cue", [1, 7, 3], "sentence: {{name: cue, cues: words}}\n", "cue: cue 7 found, 1 to 3"),
    ],
)
def test_a_trial_without_block_or_cue_costs_itself_alone(tmp_path, name, values, text, said):
    words = texts(["one", "two", "yes"], (3, 1))
    tx = cells([counts(40 + i, 16) for i in range(3)])
    save_v5(tmp_path / NAME, {"tx": tx, "words": words, name: np.array(values)[:, None]})
    inspect_mat(tmp_path / NAME)
    done = imported(tmp_path / NAME, CELLS + text.format(w=WORDS), skip_bad=True)
    (problem,) = done.problems
    assert str(problem).startswith(
        f"{tmp_path / NAME}: block {int(name == 'block')} trial 1: {said}"
    )
    assert sentences(tmp_path / NAME) == ["one", "yes"]


def test_an_epoch_or_a_block_that_is_wrong_costs_its_trial_alone(tmp_path: Path) -> None:
    blocks = np.ones((160, 1))
    blocks[100:] = 2
    variables = bins_and_epochs(np.array([[1.0, 40], [80, 41], [81, 120]]))
    save_v5(tmp_path / NAME, variables | {"blocks": blocks})
    done = imported(tmp_path / NAME, EPOCHS + "block: {name: blocks, per: bin}\n", skip_bad=True)
    assert [problem.field for problem in done.problems] == ["go", "blocks"]
    assert sentences(tmp_path / NAME) == ["one"]


@pytest.mark.parametrize("wrong", [(80, 41), (41, 1000)], ids=["reversed", "beyond the end"])
def test_inspect_finds_the_epochs_of_which_one_is_wrong(tmp_path: Path, wrong) -> None:
    save_v5(tmp_path / NAME, bins_and_epochs(np.array([[1.0, 40], wrong, [81, 120]])))
    first = inspect_mat(tmp_path / NAME)[1]
    assert "epochs: go" in first
    assert "name: tx" in first


def test_epochs_that_count_from_0_are_refused(tmp_path: Path) -> None:
    save_v5(tmp_path / NAME, bins_and_epochs(np.array([[0.0, 39], [40, 79], [80, 119]])))
    (problem,) = imported(tmp_path / NAME, EPOCHS, skip_bad=True).problems
    assert "the first epoch is from bin 0, and bins are counted from 1; add 1" in str(problem)
