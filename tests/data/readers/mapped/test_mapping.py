"""Mapping files: every key is read, and every mistake is one line with the file and the key."""

from __future__ import annotations

import dataclasses
import re
from datetime import date
from pathlib import Path, PurePath

import pytest

from cortext.errors import ConfigError, CortextError
from cortext_data.readers.mapped.mapping import (
    BlockNumbers,
    Feature,
    MatMapping,
    MatTrials,
    NwbMapping,
    NwbTrials,
    Sentences,
    SessionNames,
    SplitRule,
    load_mapping,
)

NWB = """
format: cortext-mapping
format_version: 1
reader: nwb
bin_ms: 20
features:
  - {name: acquisition/binned_spikes, kind: counts, columns: "0-2, 5"}
sentence: {name: cue}
"""
MAT = """
format: cortext-mapping
format_version: 1
reader: mat
participant: t99
bin_ms: 20
features:
  - {name: tx1, kind: counts}
trials: {layout: cells}
sentence: {name: sentenceText}
"""


def _written(folder: Path, text: str) -> Path:
    path = folder / "mapping.yaml"
    path.write_text(text)
    return path


def test_a_mapping_of_nwb_files_has_the_usual_names_of_the_trials_table(tmp_path: Path) -> None:
    found = load_mapping(_written(tmp_path, NWB), NwbMapping, "nwb")
    trials = found.trials
    assert (trials.table, trials.start, trials.stop) == (
        "intervals/trials",
        "start_time",
        "stop_time",
    )
    assert trials.stop_bin == "excluded"
    assert found.features[0].numbers() == [0, 1, 2, 5]
    assert found.participant is None


def test_a_mapping_of_matlab_files_names_every_variable_to_read_once(tmp_path: Path) -> None:
    text = MAT.replace("layout: cells", "layout: epochs, epochs: goTrialEpochs").replace(
        "{name: sentenceText}", "{name: trialCues, cues: cueList}"
    )
    text += "block: {name: blockNum, per: bin}\nsplit: {name: trialCues, train: [1], test: [2]}\n"
    found = load_mapping(_written(tmp_path, text), MatMapping, "mat")
    assert found.variables() == ("tx1", "goTrialEpochs", "trialCues", "blockNum", "cueList")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("bin_ms: 20", "bin_ms: 4", "bin_ms is 4.0; 5 to 50 ms are possible"),
        ("bin_ms: 20\n", "", "missing key bin_ms"),
        ("kind: counts", "kind: count", "features.kind is 'count'; one of 'counts', 'power'"),
        (", kind: counts", "", "missing key features.kind"),
        ("sentence:", "sentense:", "unknown key sentense; did you mean 'sentence'?"),
        ("{name: cue}", "{column: cue}", "unknown key sentence.column; known: cues"),
        ("sentence: {name: cue}", "", "missing key sentence; only trials of the split test"),
        ('"0-2, 5"', '"0-"', "columns of acquisition/binned_spikes are '0-'; numbers from 0"),
        ('"0-2, 5"', '"5-2"', "columns of acquisition/binned_spikes are '5-2'; numbers from 0"),
        ('"0-2, 5"', "[1, 1]", "name none, or one of them twice"),
        ('"0-2, 5"', "0-2, arrays: [6v]", "has columns and arrays; give one of them"),
        ("format_version: 1", "format_version: 2", "format_version 2; 'cortext-mapping' and 1 are"),
        ("cortext-mapping", "cortext", "format is 'cortext' and format_version 1; 'cortext-map"),
        ("reader: nwb", "reader: mat", "reader is 'mat'; 'nwb' is needed"),
        ("reader: nwb", "participant: a/b\nreader: nwb", "participant is 'a/b'; a plain name"),
        ("{name: cue}", "{name: cue, cues: cueList}", "sentence.cues is a text; a list of cues"),
        ("{name: cue}", '{name: cue, replace: {"": " "}}', "sentence.replace replaces an empty"),
        ("{name: cue}", "{name: cue}\nsplit: {}", "split needs either name or val_blocks"),
        ("{name: cue}", "{name: cue}\nsplit: {val_blocks: 0}", "split.val_blocks is 0; at least 1"),
        ("{name: cue}", "{name: cue}\nsplit: {name: s}", "split has no values; give train, val"),
        (
            "{name: cue}",
            "{name: cue}\nsplit: {name: s, train: [1], val: ['1']}",
            "split has the value '1' twice",
        ),
        (
            "{name: cue}",
            "{name: cue}\nblock: {name: b, per: bin}",
            "block.per is 'bin'; NWB files have blocks per trial",
        ),
        ("{name: cue}", "{name: cue", "not valid YAML in line"),
    ],
)
def test_a_mistake_is_one_line_with_file_and_key(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in NWB
    path = _written(tmp_path, NWB.replace(old, new))
    with pytest.raises(CortextError) as caught:
        load_mapping(path, NwbMapping, "nwb")
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert expected in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("layout: cells", "layout: cube", "trials.lengths is missing; layout 'cube' needs it"),
        ("layout: cells", "layout: epochs", "trials.epochs is missing; layout 'epochs' needs"),
        (
            "layout: cells",
            "layout: cells, lengths: n",
            "is given; leave it out: only layout 'cube'",
        ),
        ("layout: cells", "layout: cell", "trials.layout is 'cell'; one of 'cells', 'cube'"),
        ("participant: t99\n", "", "missing key participant"),
        ("kind: counts", "kind: counts, arrays: [6v]", "arrays are names of NWB's electrodes"),
        ("bin_ms: 20", "bin_ms: 20\nsession: {date: YYYY}", "session.date is 'YYYY'; a form such"),
        (
            "bin_ms: 20",
            "bin_ms: 20\nsession: {files: {a.mat: 2025-02-30}}",
            "session.files has '2025-02-30' for a.mat; a date such as 2025-03-14 is needed",
        ),
        (
            "bin_ms: 20",
            "bin_ms: 20\nblock: {name: b, per: bin}",
            "block.per is 'bin'; only layout 'epochs' has continuous bins",
        ),
    ],
)
def test_a_mistake_in_a_mapping_of_matlab_files_is_one_line(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in MAT
    path = _written(tmp_path, MAT.replace(old, new))
    with pytest.raises(CortextError) as caught:
        load_mapping(path, MatMapping, "mat")
    assert str(caught.value).startswith(f"{path}: ")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("form", "path", "expected"),
    [
        ("YYYY.MM.DD", "t12.2022.04.28.mat", date(2022, 4, 28)),
        ("YYYYMMDD", "data/sub1_20250314_run2.mat", date(2025, 3, 14)),
        ("YYMMDD", "x_250314.mat", date(2025, 3, 14)),
        ("DD-MM-YYYY", "14-03-2025.mat", date(2025, 3, 14)),
        ("YYYY.MM.DD", "Datasets/t5.2019.05.08/sentences.mat", date(2019, 5, 8)),
        ("YYYY.MM.DD", "copied.2021.01.01/t5.2019.05.08.mat", date(2019, 5, 8)),
        ("YYYY.MM.DD", "t5.2019.13.08.mat", None),  # no month 13
        ("YYYYMMDD", "120250314.mat", None),  # nine digits are no date
    ],
)
def test_the_date_is_found_in_the_name_of_the_file_or_of_its_folder(
    form: str, path: str, expected: date | None
) -> None:
    assert SessionNames(date=form).date_of(PurePath(path)) == expected


def test_a_date_given_for_a_file_comes_before_the_one_in_its_name() -> None:
    names = SessionNames(files={"monday.mat": "2025-03-10", "b/x.mat": "2025-03-11"})
    assert names.date_of(PurePath("a/monday.mat")) == date(2025, 3, 10)
    assert names.date_of(PurePath("a/b/x.mat")) == date(2025, 3, 11)
    assert names.date_of(PurePath("a/x.mat")) is None


def test_files_beside_the_mapping_give_tokens_language_and_words(tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text('{"name": "mine", "symbols": ["BLANK", "a", "b", "SIL"]}')
    (tmp_path / "words.txt").write_text("ab a b\n")
    text = NWB + "inventory: tokens.json\nlexicon: words.txt\nlanguage: es\n"
    found = load_mapping(_written(tmp_path, text), NwbMapping, "nwb")
    inventory, language, lexicon = found.texts(tmp_path)
    assert inventory.symbols == ("BLANK", "a", "b", "SIL")
    assert language.name == "es"
    assert lexicon is not None
    assert lexicon.pronunciations("ab") == (("a", "b"),)


def test_a_mapping_that_is_no_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the configuration: No such file"):
        load_mapping(tmp_path / "none.yaml", NwbMapping, "nwb")


DOCS = Path(__file__).resolve().parents[4] / "docs"
PAGES = ("reference/mapping.md", "guides/import-nwb.md", "guides/import-mat.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_mapping_of_the_documentation_is_read(tmp_path: Path, page: str) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)
    whole = [block for block in blocks if block.startswith("format: ")]
    assert whole
    for text in whole:
        reader = "nwb" if "reader: nwb" in text else "mat"
        load_mapping(
            _written(tmp_path, text), NwbMapping if reader == "nwb" else MatMapping, reader
        )
    for part in set(blocks) - set(whole):  # a section, in place of the one that MAT has
        text = MAT.replace("sentence: {name: sentenceText}\n", part)
        load_mapping(_written(tmp_path, text), MatMapping, "mat")


def test_the_reference_has_every_key() -> None:
    page = (DOCS / PAGES[0]).read_text()
    keys = {"format", "format_version", "reader"}
    for part in (NwbMapping, MatMapping, Feature, NwbTrials, MatTrials, Sentences):
        keys |= {field.name for field in dataclasses.fields(part)}
    for section, part in (("block", BlockNumbers), ("split", SplitRule), ("session", SessionNames)):
        keys |= {f"{section}.{field.name}" for field in dataclasses.fields(part)}
    assert set(re.findall(r"^\| `([\w.]+)` \|", page, re.M)) == keys
