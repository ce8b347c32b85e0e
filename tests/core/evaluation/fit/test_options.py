"""`decoder.yaml`: what it holds, which options a command takes, and honest rates."""

import dataclasses
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml
from made_fit import made_fit
from refusals import complaint

from cortext.decoding import Decoder, DecoderOptions
from cortext.decoding.fake import fake_log_probs
from cortext.decoding.ngram.language_model import file_checksums, language_model_checksum
from cortext.errors import ConfigError, CortextError, DataError, DecodingError
from cortext.evaluation import decode, evaluate
from cortext.evaluation.decoder_options import choose_options, options_for
from cortext.evaluation.fit.fitted_file import FittedWith
from cortext.evaluation.fit.options import (
    FittedOn,
    FittedOptions,
    Half,
    TrialName,
    fit_to_run,
    kept_before,
)
from cortext.text.inventory import LM

pytestmark = pytest.mark.usefixtures("short_reports")

DAYS = ("t15.2023.08.11", "t15.2023.08.13")
SAID = ("i see you", "me and you", "we see me")
VAL = [
    TrialName(day, 1 + number // 2, number, sentence)
    for day in DAYS
    for number, sentence in enumerate(SAID)
]
FIRST, SECOND = VAL[:3], VAL[3:]
MINIMAL = """\
options: {nbest: 2}
language_model: {path: lm, checksum: aaaabbbbccccdddd}
fitted_on: {data: packed, split: val, trials: 6, words: 18, decoded: 6}
word_errors: {words: 18, start: 12, fitted: 8, cross_fitted: 9}
halves:
- {options: {nbest: 1}, trials: 00000001 00000002}
- {options: {nbest: 3}, trials: '00000003'}
weights: null
tried: 4
seconds: 1.5
created: '2026-11-23T00:00:00+00:00'
version: 0.1.0
"""


def keys(trials):
    return " ".join(trial.key for trial in trials)


def fitted_with(lm: Path, **changes) -> FittedOptions:
    """Lists of one sentence for the first day, three for the second, two for all other trials."""
    halves = [
        Half(DecoderOptions(nbest=1), keys(FIRST)),
        Half(DecoderOptions(nbest=3), keys(SECOND)),
    ]
    made = made_fit(lm, DecoderOptions(nbest=2), halves=halves)
    return dataclasses.replace(made, **changes)


@pytest.fixture
def run(tiny, tmp_path):
    """A run with fitted options, and an untouched language model beside it."""
    folder = shutil.copytree(tiny.run, tmp_path / "run")
    fitted_with(tiny.lm).write(folder)
    return folder


@pytest.fixture(scope="module")
def other_lm(tiny, tmp_path_factory):
    """The same language model with one word less."""
    folder = shutil.copytree(tiny.lm, tmp_path_factory.mktemp("other") / "lm")
    lexicon = folder / "lexicon.txt"
    lexicon.write_text("".join(lexicon.read_text().splitlines(keepends=True)[:-1]))
    return folder


def test_a_file_written_by_hand_is_read(tmp_path):
    (tmp_path / "decoder.yaml").write_text(MINIMAL)
    fitted = FittedOptions.read(tmp_path)
    assert fitted.options == DecoderOptions(nbest=2)
    assert fitted.word_errors.rate("cross_fitted") == 0.5
    assert "fitted on 6 val trials, WER 66.7 % before and 50.0 % cross-fitted" in fitted.about


def test_what_is_written_is_read_again_and_names_every_option(tiny, tmp_path):
    priors = {"BLANK": 0.6, "SIL": 0.1}
    fitted = fitted_with(tiny.lm, options=DecoderOptions(label_priors=priors, recombine="max"))
    fitted.write(tmp_path)
    assert FittedOptions.read(tmp_path) == fitted
    content = yaml.safe_load((tmp_path / "decoder.yaml").read_text())
    # A later version may have other defaults: the file does not lean on them.
    every = {field.name for field in dataclasses.fields(DecoderOptions)}
    assert content["options"].keys() == every - {"llm"}
    assert content["options"]["label_priors"] == priors
    header, *_ = (tmp_path / "decoder.yaml").read_text().splitlines()
    assert header == (
        "# Decoder options that cortext has fitted to this run; delete the file to go without them."
    )
    keys = (
        "format_version options language_model fitted_on word_errors halves weights tried seconds"
        " created version source"
    )
    assert list(content) == keys.split()
    assert [path.name for path in tmp_path.iterdir()] == ["decoder.yaml"]


def test_no_sentence_stands_in_the_file(run):
    text = (run / "decoder.yaml").read_text()
    assert not any(word in text for sentence in SAID for word in sentence.split() if len(word) > 2)


def test_a_key_is_of_the_recording_and_its_sentence():
    keys = {trial.key for trial in VAL}
    assert len(keys) == 6
    changes = [{"session": "x"}, {"block": 9}, {"trial": 9}, {"reference": "x"}]
    assert not keys & {dataclasses.replace(VAL[0], **change).key for change in changes}


def test_options_are_the_runs_own_with_its_language_model_and_else_the_defaults(
    run, tiny, other_lm
):
    options, note = options_for(run, tiny.lm)
    assert options == DecoderOptions(nbest=2)
    assert note == (
        f"decoder options: those of {run}, fitted on 6 val trials, WER 66.7 % before and 50.0 %"
        " cross-fitted"
    )
    copied = shutil.copytree(tiny.lm, run / "lm copied elsewhere")
    assert options_for(run, copied)[0] == DecoderOptions(nbest=2)
    options, note = options_for(run, other_lm)
    assert options == DecoderOptions()
    assert f"another language model ({tiny.lm})" in note
    options, note = options_for(tiny.run, tiny.lm)
    assert options == DecoderOptions()
    assert "the defaults; none were fitted" in note
    assert options_for(None, tiny.lm) == (DecoderOptions(), "decoder options: the defaults")


def test_options_that_are_named_go_before_the_runs(run, tiny, other_lm, tmp_path):
    def chosen(options, of=run, lm=tiny.lm):
        return options_for(of, lm, options)

    file = tmp_path / "options.yaml"
    file.write_text("beam: 7\n")
    named = DecoderOptions(beam=7)
    assert chosen(file) == (named, f"decoder options: those of {file}")
    assert chosen(str(file))[0] == chosen({"beam": 7})[0] == chosen(named)[0] == named
    assert chosen("default") == chosen(Path("default"))
    assert chosen("default") == (DecoderOptions(), "decoder options: the defaults, as asked for")
    for source in (run, str(run), run / "decoder.yaml"):
        options, note = chosen(source, None, other_lm)
        assert options == DecoderOptions(nbest=2)
        assert f"those of {source}" in note
        assert "with another language model" in note
        assert "another" not in chosen(source, None)[1]


def test_settings_of_a_large_model_alone_leave_the_search_to_the_run(run, tiny, tmp_path):
    file = tmp_path / "llm.yaml"
    file.write_text("llm: {weight: 0.25}\n")
    for options in (file, {"llm": {"weight": 0.25}}):
        chosen = choose_options(run, tiny.lm, options)
        assert chosen.options == DecoderOptions(nbest=2, llm={"weight": 0.25})
        own = chosen.without(SECOND[0])
        assert own == DecoderOptions(nbest=3, llm={"weight": 0.25})
    assert choose_options(run, tiny.lm, {}).options.nbest == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("no.yaml", "no.yaml: cannot read"),
        ({"beem": 3}, "did you mean 'beam'"),
        ({"beam": -1}, "beam is -1"),
        (".", "no decoder.yaml: no decoder options were fitted to it; `cortext evaluate --fit`"),
    ],
)
def test_options_that_cannot_be_are_refused_in_one_line(options, says, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CortextError) as error:
        options_for(None, tiny.lm, options)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_every_change_of_a_language_model_changes_its_checksum(tiny, tmp_path):
    checksum = language_model_checksum(tiny.lm)
    assert checksum == language_model_checksum(shutil.copytree(tiny.lm, tmp_path / "same"))
    found = {checksum}
    for name in ("lexicon.txt", "tokens.txt", "lm.bin"):
        for change in ("a byte", "the end"):
            folder = shutil.copytree(tiny.lm, tmp_path / f"{name} {change}")
            content = bytearray((folder / name).read_bytes())
            middle = len(content) // 2
            content[middle] ^= 1
            (folder / name).write_bytes(content if change == "a byte" else content[:-1])
            found.add(language_model_checksum(folder))
    assert len(found) == 7
    folder = shutil.copytree(tiny.lm, tmp_path / "more")
    (folder / "lm.arpa").write_text("not read beside lm.bin")
    (folder / "lm.json").write_text("{}")
    assert language_model_checksum(folder) == checksum


def test_of_a_large_n_gram_64_blocks_are_read(tmp_path):
    """300 MiB of zeros, of which the first, the last and 62 blocks between count."""
    path = tmp_path / "lm.bin"
    path.touch()
    os.truncate(path, 300 << 20)
    before = file_checksums(tmp_path)
    assert before["lm.bin"].startswith(f"{300 << 20} bytes")
    for block in (0, 21, 62, 63):
        start = (299 << 20) * block // 63
        with path.open("r+b") as file:
            file.seek(start + (1 << 19))
            file.write(b"x")
            file.flush()
            assert file_checksums(tmp_path) != before, block
            file.seek(start + (1 << 19))
            file.write(b"\0")
    assert file_checksums(tmp_path) == before


def test_a_short_file_is_read_whole(tmp_path):
    """What studies of decoder options recorded before larger files were sampled stays as it was."""
    import hashlib

    content = bytes(range(256)) * 5000  # 1.2 MiB
    (tmp_path / "lm.arpa").write_bytes(content)
    digest = hashlib.sha256(content[: 1 << 20] + content[-(1 << 20) :]).hexdigest()[:16]
    assert file_checksums(tmp_path) == {"lm.arpa": f"{len(content)} bytes, {digest}"}


DAMAGE = {
    "no YAML": ("options: [", "not valid YAML"),
    "empty": ("", "missing key options"),
    "a list": ("[1, 2]", "is a list"),
    "a key too many": (MINIMAL + "beam: 3\n", "unknown key beam"),
    "a key too few": (MINIMAL.replace("tried: 4\n", ""), "missing key tried"),
    "an unknown option": (MINIMAL.replace("nbest: 2", "nbset: 2"), "did you mean 'nbest'"),
    "an option out of bounds": (MINIMAL.replace("nbest: 2", "nbest: 0"), "nbest is 0"),
    "no number": (MINIMAL.replace("start: 12", "start: many"), "word_errors.start is 'many'"),
    "below zero": (MINIMAL.replace("start: 12", "start: -1"), "counts below 0"),
    "no keys": (MINIMAL.replace("00000003", "../../x"), "no keys"),
    "a later version": (MINIMAL + "format_version: 2\n", "format_version is 2, not 1"),
    "an object": (MINIMAL.replace("null", "!!python/object/apply:os.getcwd []"), "plain value"),
    "too deep": (MINIMAL.replace("null", "[" * 80 + "]" * 80), "more than 64 levels"),
    "too many values": ("a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcde", "bcdef", strict=True)
    ), "more than 100,000 values"),
    "too large": ("# " + "x" * (1 << 20), "bytes; at most 1,048,576 are read"),
    "no text": ("options: \xff\xfe", "not a text file"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused_in_one_line_that_says_what_to_do(damage, tiny, tmp_path):
    text, says = DAMAGE[damage]
    (tmp_path / "decoder.yaml").write_bytes(text.encode("latin-1"))
    for options in (None, tmp_path):
        with pytest.raises(ConfigError) as error:
            options_for(tmp_path, tiny.lm, options)
        said = str(error.value)
        assert says in said
        assert said.startswith(f"{tmp_path / 'decoder.yaml'}: ")
        assert said.endswith("; fit anew with `cortext evaluate --fit`, or delete the file")
        assert "\n" not in said
        assert len(said) < 500
    assert options_for(tmp_path, tiny.lm, "default")[0] == DecoderOptions()


@pytest.mark.parametrize("kind", ["a directory", "a pipe", "a dangling link"])
def test_what_is_no_file_is_refused_without_waiting(kind, tiny, tmp_path):
    path = tmp_path / "decoder.yaml"
    match kind:
        case "a directory":
            path.mkdir()
        case "a pipe":
            os.mkfifo(path)
        case _:
            path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="fit anew"):
        options_for(tmp_path, tiny.lm)


def test_every_command_refuses_a_damaged_file(tiny, run, tmp_path, capsys):
    (run / "decoder.yaml").write_text("options: [")
    says = f"{run / 'decoder.yaml'}: not valid YAML in line 1"
    split = ["--data", tiny.data, "--lm", tiny.lm]
    for command in (
        ["evaluate", run, *split, "--out", tmp_path / "eval"],
        ["decode", run, *split, "--out", tmp_path / "out.csv"],
        ["serve", run, *split, "--port", "0"],
        ["lm-server", "--lm", tiny.lm, "--options", run],
        ["decode", "--fake-text", "i see you", "--lm", tiny.lm, "--options", run],
    ):
        assert says in complaint(capsys, *command), command
    assert not (tmp_path / "eval").exists()


def lists(out):
    """The length of each trial's list of sentences."""
    lines = (out / "nbest.jsonl").read_text().splitlines()
    return [len(json.loads(line)["hypotheses"]) for line in lines]


@pytest.fixture(scope="module")
def crossed(tiny, tmp_path_factory):
    """An evaluation of the split that options were fitted on."""
    folder = tmp_path_factory.mktemp("crossed")
    run = shutil.copytree(tiny.run, folder / "run")
    fitted_with(tiny.lm).write(run)
    return run, folder / "eval", evaluate(run, tiny.data, "val", tiny.lm, folder / "eval")


def test_trials_of_a_fit_are_decoded_with_options_of_the_other_half(crossed):
    _, out, metrics = crossed
    assert lists(out) == [1, 1, 1, 3, 3, 3]
    assert metrics.n_cross_fitted == 6
    assert metrics.caveats == [
        "WER and CER are cross-fitted: 6 of 6 trials used decoder options that were fitted on the"
        " other half of the trials"
    ]
    written = json.loads((out / "metrics.json").read_text())
    assert (written["n_cross_fitted"], written["caveats"]) == (6, metrics.caveats)
    facts = written["provenance"]
    assert (facts["fitted"], facts["options"]["nbest"]) == (True, 2)
    halves = [(half["options"]["nbest"], half["ids"]) for half in facts["cross_fitted"]]
    assert halves == [(1, [0, 1, 2]), (3, [3, 4, 5])]


def test_the_report_says_where_the_options_come_from_and_that_rates_are_cross_fitted(crossed):
    run, out, _ = crossed
    page = (out / "report.html").read_text()
    tiles = re.findall(r'class="name">(.*?)</span>\n<span class="muted">(.*?)</span>', page)
    assert [name for name, note in tiles if note.endswith("; cross-fitted")] == [
        "word error rate (WER)",
        "character error rate (CER)",
    ]
    assert len(tiles) == 3
    assert "WER and CER are cross-fitted: 6 of 6 trials" in page
    assert f"<dt>Decoder options</dt><dd>those of {run}, fitted on 6 val trials" in page


def test_other_splits_are_decoded_with_options_of_all_trials(crossed, tiny, tmp_path):
    run, _, _ = crossed
    metrics = evaluate(run, tiny.data, "test", tiny.lm, tmp_path / "eval")
    assert set(lists(tmp_path / "eval")) == {2}
    assert (metrics.n_cross_fitted, metrics.caveats) == (0, [])
    metrics = evaluate(run, tiny.data, "val", tiny.lm, tmp_path / "eval", options="default")
    assert set(lists(tmp_path / "eval")) == {DecoderOptions().nbest}
    assert metrics.decoder_options == "decoder options: the defaults, as asked for"
    assert metrics.n_cross_fitted == 0


def test_the_large_models_settings_keep_the_halves(crossed, tiny, tmp_path):
    run, _, _ = crossed
    evaluate(run, tiny.data, "val", tiny.lm, tmp_path / "eval", options={"llm": {"weight": 0.1}})
    assert lists(tmp_path / "eval") == [1, 1, 1, 3, 3, 3]


def test_decode_takes_the_runs_options_and_says_so(crossed, tiny, tmp_path):
    run, out, metrics = crossed
    found = decode(run, tiny.data, "val", tiny.lm, tmp_path / "p.csv")
    assert (tmp_path / "p.csv").read_bytes() == (out / "predictions.csv").read_bytes()
    assert found.decoder_options == metrics.decoder_options
    assert f"those of {run}" in found.decoder_options


@pytest.mark.slow
def test_the_logits_of_an_evaluation_are_decoded_with_options_of_the_other_half(
    crossed, tiny, tmp_path, capsys
):
    from cortext.cli import run as cortext

    run, out, metrics = crossed
    files = ["--logits", out, "--lm", tiny.lm, "--out", tmp_path / "p.csv", "--options", run]
    assert cortext([str(part) for part in ("decode", *files)]) == 0
    assert "WER decoded now, cross-fitted" in capsys.readouterr().out
    assert (tmp_path / "p.csv").read_text() == (out / "predictions.csv").read_text()
    assert cortext([str(part) for part in ("decode", *files, "--json")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["n_cross_fitted"] == metrics.n_cross_fitted == 6
    assert cortext([str(part) for part in ("decode", *files[:-2], "--json")]) == 0
    assert json.loads(capsys.readouterr().out)["n_cross_fitted"] == 0


def test_evaluate_fits_to_its_split_and_keeps_the_result(tiny, run, tmp_path, capsys):
    from cortext.cli import run as cortext

    data = ["--data", tiny.data, "--lm", tiny.lm, "--out", tmp_path / "eval"]
    assert cortext([str(part) for part in ("evaluate", run, *data, "--fit", "--json")]) == 0
    printed = capsys.readouterr()
    fitted = FittedOptions.read(run)
    assert fitted.language_model == FittedWith(str(tiny.lm), language_model_checksum(tiny.lm))
    assert fitted.fitted_on == FittedOn(str(tiny.data), "val", 6, 18, 6)
    assert fitted.has_seen(VAL)
    # No sentence is on both sides, and "I see you" was said on both days.
    sides = [set(half.trials.split()) for half in fitted.halves]
    assert sides[0].isdisjoint(sides[1])
    for sentence in SAID:
        own = {trial.key for trial in VAL if trial.reference == sentence}
        assert own <= sides[0] or own <= sides[1]
    metrics = json.loads(printed.out)
    errors = metrics["edits"]["word"]
    found = sum(errors[name] for name in ("substitutions", "insertions", "deletions"))
    assert found == fitted.word_errors.cross_fitted
    assert metrics["n_cross_fitted"] == 6
    assert printed.err.count("\n") == 1
    assert f"kept in {run / 'decoder.yaml'}, replacing those fitted on 6 val trials" in printed.err
    # The same again, from the file.
    again = evaluate(run, tiny.data, "val", tiny.lm, tmp_path / "again")
    assert again.edits["word"] == errors


def test_a_fit_without_words_or_sentences_is_refused_and_leaves_nothing(tiny, run, tmp_path):
    before = (run / "decoder.yaml").read_bytes()
    with pytest.raises(DecodingError, match="give an n-gram, too"):
        evaluate(run, tiny.data, "val", None, tmp_path / "eval", fit=True)
    with pytest.raises(DataError, match="at least two are needed"):
        evaluate(run, tiny.data, "test", tiny.lm, tmp_path / "eval", fit=True)
    assert (run / "decoder.yaml").read_bytes() == before
    assert not (tmp_path / "eval").exists()


def test_an_adapted_run_takes_over_what_was_fitted_to_its_source(tiny, run, tmp_path):
    adapted = shutil.copytree(tiny.run, tmp_path / "adapted")
    fitted_with(tiny.lm, weights="00000000").write(run)
    taken = FittedOptions.take_over(run, adapted)
    assert taken == FittedOptions.read(adapted)
    assert taken.weights is None  # it was not fitted to those of the adapted run
    options, note = options_for(adapted, tiny.lm)
    assert options == DecoderOptions(nbest=2)
    assert note.endswith(f", taken over from {run}")
    assert FittedOptions.take_over(tiny.run, tmp_path) is None
    (run / "decoder.yaml").write_text("options: [")
    assert FittedOptions.take_over(run, tmp_path) is None
    assert not (tmp_path / "decoder.yaml").exists()


def test_what_a_fit_replaces_is_named_also_where_it_is_damaged(tiny, run):
    assert kept_before(tiny.run) is None
    assert kept_before(run).startswith("fitted on 6 val trials, WER")
    (run / "decoder.yaml").write_text("options: [")
    assert kept_before(run) == "in a damaged file"


def test_trials_without_a_sentence_have_no_part_in_a_fit(tiny, run):
    trials = [*VAL, TrialName(DAYS[0], 9, 9, "")]
    log_probs = [
        fake_log_probs(trial.reference or "me", 1.0, number, "lm")
        for number, trial in enumerate(trials)
    ]
    decoder = Decoder.from_dir(tiny.lm)
    fitted = fit_to_run(run, log_probs, trials, LM, decoder, data="packed", split="val")
    assert fitted.fitted_on == FittedOn("packed", "val", 6, 18, 6)
    assert fitted.has_seen(VAL)
    assert fitted == FittedOptions.read(run)


def test_options_of_earlier_weights_are_used_and_named_as_such(tiny, run):
    fitted_with(tiny.lm, weights="00000000").write(run)
    options, note = options_for(run, tiny.lm)
    assert options == DecoderOptions(nbest=2)
    assert note.endswith("; its weights have changed since")
