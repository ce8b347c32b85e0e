"""`cortext verify t15` on a stand-in: whole, with parts missing or damaged, and interrupted."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from commands import Command
from commands import run as run_command
from refusals import complaint
from release_oracle import load_as_the_evaluation_script, logits_of_the_evaluation_script
from stand_in import (
    CHECKPOINT,
    N_FEATURES,
    N_TRIALS,
    RECORDINGS,
    SENTENCES,
    SESSIONS,
    StandIn,
    verified,
)

import cortext_published.verification.baseline
from cortext.cli import run
from cortext.decoding.options import DecoderOptions
from cortext.text.inventory import RELEASE
from cortext.text.normalize import normalize
from cortext_published.verification import Check, Verification, t15_facts
from cortext_published.verification.baseline import WORST_SESSION
from cortext_published.verification.published import COPY_TASK
from cortext_published.verification.recordings import find_parts
from cortext_published.verification.stages import PAGE, RESULT, Stages
from cortext_published.verification.words import Searching, Trials, check_words

VAL = RECORDINGS / SESSIONS[1] / "data_val.hdf5"
STAGES = ["files", "recordings", "packing", "checkpoint", "logits", "validation", "words"]
STAGES += ["analyses", "analyses words"]


def lines(result: Verification) -> dict[str, Check]:
    return {check.name: check for check in result.checks}


def test_a_whole_copy_passes_every_check_that_can_be_made(whole):
    out, result = whole
    statuses = {check.name: check.status for check in result.checks}
    open_ones = {"Size of t15_personalUse.pkl", "WER of the published logits"}
    assert {name for name, status in statuses.items() if status != "PASS"} == open_ones
    assert len(statuses) == 27
    assert not result.failed
    page = (out / PAGE).read_text()
    assert "T15: no check failed" in page
    assert "<svg" in page
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    content = json.loads((out / RESULT).read_text())
    assert content["counts"] == {"PASS": 25, "FAIL": 0, "not checked": 2}
    assert [stage["name"] for stage in content["stages"]] == STAGES
    assert all(stage["peak_mb"] > 50 for stage in content["stages"])
    assert {"python", "torch", "cortext", "processor", "torch threads"} <= set(content["machine"])


def edits(reference: list, decoded: list) -> int:
    """Levenshtein distance, row by row."""
    row = list(range(len(decoded) + 1))
    for i, symbol in enumerate(reference, start=1):
        above, row = row, [i]
        for j, other in enumerate(decoded, start=1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (symbol != other)))
    return row[-1]


def test_the_numbers_are_those_of_the_release_restated(stand_in: StandIn, whole):
    _, result = whole
    model, arguments = load_as_the_evaluation_script(stand_in.directory / CHECKPOINT.parent)
    wrong, phonemes, blank, frames = {}, {}, {}, {}
    for session in SESSIONS[1:]:
        with h5py.File(stand_in.directory / RECORDINGS / session / "data_val.hdf5") as file:
            for trial in file.values():
                x_TC = trial["input_features"][()].astype(np.float16).astype(np.float32)
                logits_PV = logits_of_the_evaluation_script(model, arguments, x_TC, session)
                best_P = logits_PV.argmax(1)
                decoded = [token for token, _ in itertools.groupby(best_P.tolist()) if token]
                labels = trial["seq_class_ids"][: trial.attrs["seq_len"]].tolist()
                wrong[session] = wrong.get(session, 0) + edits(labels, decoded)
                phonemes[session] = phonemes.get(session, 0) + len(labels)
                blank[session] = blank.get(session, 0) + int((best_P == 0).sum())
                frames[session] = frames.get(session, 0) + len(best_P)
    for session in SESSIONS[1:]:
        row = result.sessions[session]
        assert row["per"] == pytest.approx(wrong[session] / phonemes[session])
        assert row["blank_share"] == pytest.approx(blank[session] / frames[session], abs=1e-4)
        assert {split: row[f"n_{split}"] for split in N_TRIALS} == N_TRIALS
    per = sum(wrong.values()) / sum(phonemes.values())
    assert result.facts["evaluation"]["per"] == pytest.approx(per)
    assert result.facts["logits"]["n_frames"] == sum(frames.values())
    assert 0 < per < 0.5


def test_words_are_scored_as_by_hand(whole):
    out, result = whole
    said = [json.loads(line) for line in (out / "sentences.jsonl").read_text().splitlines()]
    assert len(said) == 2 * N_TRIALS["val"]
    wrong = sum(edits(line["reference"].split(), line["decoded"].split()) for line in said)
    n_words = sum(len(line["reference"].split()) for line in said)
    assert result.facts["words"]["wer"] == pytest.approx(wrong / n_words)
    assert result.facts["words"]["n_words"] == n_words


def test_the_trainers_rule_gives_the_per_that_the_checkpoint_carries(stand_in: StandIn, whole):
    _, result = whole
    carried = torch.load(stand_in.directory / CHECKPOINT / "best_checkpoint", weights_only=True)[
        "val_PER"
    ]
    assert result.facts["validation"]["per"] == pytest.approx(carried)


def without(path: Path | str) -> Callable[[StandIn], None]:
    def remove(own: StandIn) -> None:
        target = own.directory / path
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    return remove


def cut(path: Path | str) -> Callable[[StandIn], None]:
    def damage(own: StandIn) -> None:
        content = (own.directory / path).read_bytes()
        (own.directory / path).write_bytes(content[: len(content) // 2])

    return damage


def overwrite(path: Path | str, content: bytes) -> Callable[[StandIn], None]:
    return lambda own: (own.directory / path).write_bytes(content) and None


def not_finite(own: StandIn) -> None:
    with h5py.File(own.directory / VAL, "a") as file:
        file["trial_0001/input_features"][3, 2] = np.nan


def without_labels(own: StandIn) -> None:
    with h5py.File(own.directory / RECORDINGS / SESSIONS[0] / "data_train.hdf5", "a") as file:
        del file["trial_0000/seq_class_ids"]


def dangling(own: StandIn) -> None:
    (own.directory / VAL).unlink()
    (own.directory / VAL).symlink_to("nowhere")


def carried_per(per: float) -> Callable[[StandIn], None]:
    def change(own: StandIn) -> None:
        path = own.directory / CHECKPOINT / "best_checkpoint"
        torch.save(torch.load(path, weights_only=True) | {"val_PER": per}, path)

    return change


def swapped_days(own: StandIn) -> None:
    path = own.directory / CHECKPOINT / "best_checkpoint"
    content = torch.load(path, weights_only=True)
    weights = content["model_state_dict"]
    weights["_orig_mod.day_weights.1"].neg_()
    torch.save(content, path)


def sentence_that_is_no_text(own: StandIn) -> None:
    with h5py.File(own.directory / VAL, "a") as file:
        file["trial_0001"].attrs["sentence_label"] = SENTENCES[0].encode() + b" \xff"


def sentence_as_number(own: StandIn) -> None:
    path = own.directory / CHECKPOINT / "best_checkpoint"
    torch.save(torch.load(path, weights_only=True) | {"val_PER": SENTENCES[0]}, path)


def analyses_by_sentence(own: StandIn) -> None:
    (own.directory / COPY_TASK).write_bytes(pickle.dumps(dict.fromkeys(SENTENCES, 1)))


def one_more_session(own: StandIn) -> None:
    root = own.directory / RECORDINGS
    shutil.copytree(root / SESSIONS[0], root / "t15.2030.01.01")


def named(folder: Path, session: str) -> None:
    for path in folder.glob("*.hdf5"):
        with h5py.File(path, "a") as file:
            for trial in file.values():
                trial.attrs["session"] = session


def one_more_session_to_validate(own: StandIn) -> None:
    root = own.directory / RECORDINGS
    named(shutil.copytree(root / SESSIONS[1], root / "t15.2030.01.01"), "t15.2030.01.01")


def every_trial_without_numbers(own: StandIn) -> None:
    for session in SESSIONS:
        path = own.directory / RECORDINGS / session / "data_val.hdf5"
        if path.is_file():
            with h5py.File(path, "a") as file:
                for trial in file.values():
                    trial["input_features"][...] = np.nan


def every_session_renamed(own: StandIn) -> None:
    for number, session in enumerate(SESSIONS):
        folder = own.directory / RECORDINGS / session
        other = f"t15.2030.01.0{number + 1}"
        named(folder.rename(folder.with_name(other)), other)


def wrong_lm(own: StandIn) -> None:
    (own.lm / "lm.bin").write_bytes(b"mmap lm http://kheafield.com/code format version 5\n\0 ...")


DAMAGES = {
    "no recordings": (
        without(RECORDINGS.parent),
        {
            "Sessions": "not checked, because no session files were found",
            "Recordings": "not checked, because no session files were found",
            "Import": "PASS",
            "PER": "not checked, because no validation trial was read",
            "WER": "not checked, because there are no logits",
        },
    ),
    "no checkpoint": (
        without(CHECKPOINT.parent),
        {
            "Recordings": "PASS",
            "Import": "not checked, because no best_checkpoint was found",
            "PER": "not checked, because there is no checkpoint",
            "WER": "not checked, because there are no logits",
        },
    ),
    "no weights": (
        without(CHECKPOINT / "best_checkpoint"),
        {"checkpoint": "FAIL  DIR/.*checkpoint: has no file best_checkpoint; give the directory"},
    ),
    "no arguments": (
        without(CHECKPOINT / "args.yaml"),
        {"checkpoint": "FAIL .*has no file args.yaml"},
    ),
    "half of the weights": (
        cut(CHECKPOINT / "best_checkpoint"),
        {"checkpoint": "FAIL .*is not a file of torch.save, or not all of it; copy"},
    ),
    "a program as weights": (
        overwrite(CHECKPOINT / "best_checkpoint", b"cos\nsystem\n(S'true'\ntR."),
        {"checkpoint": "FAIL .*is not a file of torch.save"},
    ),
    "arguments that are none": (
        overwrite(CHECKPOINT / "args.yaml", b"model: [1, 2\n"),
        {"checkpoint": "FAIL .*args.yaml"},
    ),
    "another PER in the checkpoint": (
        carried_per(0.5),
        {"PER of the checkpoint": r"FAIL  .* here, val_PER is 50.00 %"},
    ),
    "no PER in the checkpoint": (
        carried_per(math.inf),
        {"PER of the checkpoint": "not checked, because it carries no val_PER"},
    ),
    "a wrong day layer": (
        swapped_days,
        {"PER of the checkpoint": "FAIL", "Published PER": "FAIL"},
    ),
    "a missing session": (
        without(RECORDINGS / SESSIONS[2]),
        {
            "Sessions": rf"FAIL  2 found, 3 published; missing: {SESSIONS[2]}",
            "Trials": "FAIL  24 train, 4 val, 2 test; published: 36 train, 8 val, 4 test",
            "PER of the checkpoint": "not checked, because 4 of 8 validation trials are read",
        },
    ),
    "a session too many": (
        one_more_session,
        {"Sessions": "FAIL  4 found, 3 published; not published: t15.2030.01.01"},
    ),
    "a session too many with validation trials": (
        one_more_session_to_validate,
        {
            "Decoded trials": "FAIL  8 trials, 4 left out; the first: .*t15.2030.01.01' is unknown",
            "PER of other sessions": "not checked, because the checkpoint has no layer for"
            r" t15.2030.01.01 \(4 trials\)$",
            "PER of the checkpoint": "PASS",
            "WER": "PASS",
        },
    ),
    "sessions of another participant": (
        every_session_renamed,
        {
            "Sessions": "FAIL",
            "logits": "FAIL  .*no trial of split 'val' .*; give the release's own files$",
            "WER": "not checked",
        },
    ),
    "not one number in the validation trials": (
        every_trial_without_numbers,
        {"packing": "FAIL  .*every trial is bad; .*; give the release's own files$"},
    ),
    "a missing file": (
        without(VAL),
        {"Session files": f"FAIL  6 found; missing: {SESSIONS[1]}/data_val.hdf5"},
    ),
    "a link to nothing": (
        dangling,
        {"Session files": f"FAIL  6 found; missing: {SESSIONS[1]}/data_val.hdf5"},
    ),
    "half of a file": (
        cut(VAL),
        {
            "Recordings": f"FAIL  1 problem; the first: DIR/.*{SESSIONS[1]}/data_val.hdf5",
            "Validation trials": "FAIL  4 trials, 1 left out",
            "PER of the checkpoint": "not checked, because 4 of 8 validation trials are read; .* %$",
            "Published PER": "not checked, because 4 of 8 validation trials are read",
            "WER": "not checked, because 4 of 8 validation trials are read; .* published 6.3 %$",
        },
    ),
    "a number that is none": (
        not_finite,
        {
            "Recordings": "FAIL  1 problem; the first: .*trial_0001: input_features",
            "Validation trials": "FAIL  7 trials, 1 left out",
        },
    ),
    "a sentence that is no text": (
        sentence_that_is_no_text,
        {"Recordings": "FAIL  1 problem; the first: .*trial_0001: sentence_label: '...' found"},
    ),
    "a sentence for a number": (
        sentence_as_number,
        {"checkpoint": "FAIL .*: val_PER is '...'; a number from 0 is needed"},
    ),
    "analyses by sentence": (
        analyses_by_sentence,
        {"analyses": "FAIL  DIR/t15_copyTask.pkl: has no post_implant_day"},
    ),
    "a trial without labels": (
        without_labels,
        {"Recordings": "FAIL  1 problem; the first: .*trial_0000: seq_class_ids"},
    ),
    "a damaged language model": (
        wrong_lm,
        {"words": "FAIL  LM/lm.bin", "analyses words": "FAIL  LM/lm.bin"},
    ),
    "no analyses": (
        without(COPY_TASK),
        {"Published analyses": "not checked, because t15_copyTask.pkl was not found; it can be"},
    ),
    "half of the analyses": (
        cut(COPY_TASK),
        {"analyses": "FAIL  DIR/t15_copyTask.pkl: ", f"Size of {COPY_TASK}": "FAIL"},
    ),
    "a program as analyses": (
        overwrite(COPY_TASK, b"cos\nsystem\n(S'touch harmed'\ntR."),
        {"analyses": "FAIL  DIR/t15_copyTask.pkl: ", f"Size of {COPY_TASK}": "FAIL"},
    ),
    "a table of blocks that is none": (
        overwrite(RECORDINGS / "t15_copyTaskData_description.csv", b"a\nb\n"),
        {"files": "FAIL .*not the table of blocks", "recordings": "FAIL .*the table of blocks"},
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_each_missing_or_damaged_part_gives_its_line(name, own: StandIn, out: Path):
    damage, expected = DAMAGES[name]
    damage(own)
    result = verified(own, out)
    found = {check.name: f"{check}".removeprefix(f"{check.name}: ") for check in result.checks}
    for line, says in expected.items():
        assert re.match(says, found[line]), found[line]
    assert "cortext has a fault" not in str(found)
    content = (out / PAGE).read_text() + (out / RESULT).read_text()
    assert "jane" not in content
    assert str(out.parent) not in content
    assert not any(sentence in content for sentence in SENTENCES)
    assert (result.count("FAIL") > 0) == any("FAIL" in says for says in expected.values())


def test_no_text_and_no_path_is_in_the_page_unless_asked_for(own: StandIn, out: Path):
    private = [*SENTENCES, "jane doe", str(out.parent), str(Path.home())]
    verified(own, out)
    for file in (out / PAGE, out / RESULT, *(out / "stages").iterdir()):
        content = file.read_text()
        assert not [text for text in private if text in content], file
    result = verified(own, out, with_text=True)
    assert all(stage.kept for stage in result.stages)
    page = (out / PAGE).read_text()
    assert result.sentences is not None
    for line in result.sentences:
        assert normalize(line["reference"]) in page
    assert "Text of the data" in page
    assert verified(own, out, with_text=True, lm=None).sentences is None


def test_an_interrupted_verification_continues_where_it_was(stand_in: StandIn, whole, tmp_path):
    names = [stage.name for stage in whole[1].stages]
    for name in names:

        def stop(stage: str, name: str = name) -> Callable[[int, int], None] | None:
            def interrupt(done: int, total: int) -> None:
                if stage == name:
                    raise KeyboardInterrupt

            if stage == name and name not in ("packing", "logits", "words"):
                raise KeyboardInterrupt
            return interrupt

        with pytest.raises(KeyboardInterrupt):
            verified(stand_in, tmp_path / "verify", stage=stop)
        assert not (tmp_path / "verify" / PAGE).exists()
    result = verified(stand_in, tmp_path / "verify")
    assert [stage.kept for stage in result.stages] == [True] * (len(names) - 1) + [False]
    assert result.checks == whole[1].checks
    assert result.sessions == whole[1].sessions


def test_what_has_changed_is_checked_again_and_nothing_else(own: StandIn, out: Path):
    verified(own, out)  # other paths, the same files
    trial = own.directory / VAL
    with h5py.File(trial, "a") as file:
        file["trial_0000/input_features"][0, 0] = 0
    kept = {stage.name: stage.kept for stage in verified(own, out).stages}
    again = {name for name, value in kept.items() if not value}
    assert again == {"files", "recordings", "packing", "logits", "validation", "words"} | {
        "analyses words"  # with the options that are fitted anew
    }
    shutil.rmtree(out / "run")
    kept = {stage.name: stage.kept for stage in verified(own, out).stages}
    again = {name for name, value in kept.items() if not value}
    assert again == {"checkpoint", "words", "analyses words"}  # the run held the fitted options


def test_a_damaged_memory_of_a_stage_is_made_anew(own: StandIn, out: Path):
    for content in ("", "[]", '{"made_from": {}}'):
        (out / "stages" / "files.json").write_text(content)
        assert not verified(own, out).failed


def test_wer_is_judged_with_the_language_model_of_the_published_rate_alone(
    stand_in: StandIn, whole, tmp_path
):
    out, _ = whole
    trials = Trials(out / "run", out / "packed", out / "logits.npz")
    search = Searching(stand_in.lm, DecoderOptions(), 1)

    def judge(**changes: float) -> Check:
        published = replace(stand_in.published, **changes)
        (check,) = check_words(trials, search, published, tmp_path / "lines", None).checks
        return check

    assert judge().status == "PASS"
    assert judge(wer=-0.031).status == "FAIL"
    for other in (judge(lm_order=5), judge(lm_words=100_000)):
        assert other.status == "not checked"
        assert "with the 2-gram of 11 words" in other.found


def test_a_fault_of_ours_is_a_line_without_the_texts_it_quotes(
    stand_in: StandIn, out: Path, monkeypatch
):
    def fault(*arguments: object) -> None:
        raise KeyError(SENTENCES[0])

    (out / "logits.npz").unlink()
    monkeypatch.setattr(cortext_published.verification.baseline, "check_logits", fault)
    result = verified(stand_in, out)
    line = lines(result)["logits"]
    assert line.status == "FAIL"
    assert re.fullmatch(
        r"cortext has a fault: KeyError in verification/test_t15.py, line \d+; report it with this"
        " page",
        line.found,
    )
    assert lines(result)["WER"].found == "there are no logits"


def test_the_command_ends_with_1_where_something_differs_and_with_0_otherwise(
    own: StandIn, out: Path, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.setattr("cortext_published.verification.t15.t15_facts", lambda: own.published)
    arguments = ["verify", "t15", str(own.directory), "--lm", str(own.lm), "--out", str(out)]
    assert run([*arguments, "--threads", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["FAIL"] == 0
    monkeypatch.undo()
    without(CHECKPOINT.parent)(own)
    without(COPY_TASK)(own)
    assert run(["verify", "t15", str(own.directory), "--out", str(tmp_path / "other")]) == 1
    printed = capsys.readouterr().out
    assert "Sessions: FAIL  3 found, 45 published; missing: t15.2023.08.20" in printed
    assert "WER: not checked, because no language model was given" in printed


def test_what_is_no_copy_of_the_data_is_refused(tmp_path: Path, stand_in: StandIn, capsys):
    out = tmp_path / "out"
    empty = tmp_path / "empty"
    empty.mkdir()
    for directory, says in (
        (tmp_path / "nowhere", "no such directory; fetch it: cortext fetch t15"),
        (empty, "holds no recordings, checkpoint or file of T15; give the directory"),
        (stand_in.lm, "holds no recordings, checkpoint or file of T15"),
    ):
        assert says in complaint(capsys, "verify", "t15", directory, "--out", out)
    for name in ("file", "other/file"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
        place = tmp_path / Path(name).parts[0]
        said = complaint(capsys, "verify", "t15", stand_in.directory, "--out", place)
        assert "exists and is not the directory of a verification" in said
    options = ["--options", tmp_path / "no.yaml"]
    arguments = ["verify", "t15", stand_in.directory, "--out", out, *options]
    assert "without a language model; give it" in complaint(capsys, *arguments)
    assert "no.yaml" in complaint(capsys, *arguments, "--lm", stand_in.lm)
    for name, value, says in (
        ("--lm", "nowhere", "nowhere: no such directory; give a language-model directory"),
        ("--analyses", "nowhere.pkl", "nowhere.pkl: no such file; give t15_copyTask.pkl"),
        ("--device", "cude", "device 'cude': .*; use cpu"),
    ):
        said = complaint(capsys, "verify", "t15", stand_in.directory, "--out", out, name, value)
        assert re.search(says, said)
    assert not out.exists()


@pytest.mark.parametrize("place", ["data", "nejm-brain-to-text/data", "a/b"])
def test_parts_are_found_where_unpacking_puts_them(place, own: StandIn, out: Path, tmp_path):
    folder = tmp_path / place
    folder.mkdir(parents=True)
    shutil.move(own.directory / RECORDINGS, folder / "hdf5_data_final")
    shutil.move(own.directory / CHECKPOINT, folder / "checkpoint")
    moved = replace(own, directory=tmp_path / Path(place).parts[0])
    assert not verified(moved, out).failed


def test_recordings_of_other_tokens_or_bins_are_none_of_t15(own: StandIn, tmp_path: Path, capsys):
    given = {"format": "cortext-conventions", "format_version": 1}
    path = own.directory / RECORDINGS / "cortext.json"
    for other, says in (
        ({"inventory": "release"}, None),
        ({"inventory": "lm"}, "in the public T15 data token 1 is AA, not SIL"),
        (
            {"inventory": "characters"},
            "in the public T15 data the tokens are phonemes, not characters",
        ),
        ({"language": "es"}, "the language 'en' is not 'es'"),
        ({"bin_ms": 10}, "bins last 20 ms, not 10 ms"),
    ):
        path.write_text(json.dumps(given | other))
        if says is None:
            assert find_parts(own.directory, t15_facts(), tmp_path).recordings == path.parent
        else:
            said = complaint(capsys, "verify", "t15", own.directory, "--out", tmp_path / "out")
            assert says in said
            assert "; remove its cortext.json, or give the directory that" in said


def test_a_sessions_rate_far_above_the_others_fails():
    judge = cortext_published.verification.baseline._sessions
    rates = {"a": {"per": 0.1}, "b": {"per": 0.1 * WORST_SESSION * 1.01}}
    assert judge(0.1, rates).status == "FAIL"
    rates["b"]["per"] = 0.1 * WORST_SESSION * 0.99
    assert judge(0.1, rates).status == "PASS"


def test_the_facts_of_t15_are_those_of_its_table(real_data: Path):
    rows = (real_data / "t15" / "t15_copyTaskData_description.csv").read_text().splitlines()[1:]
    facts = t15_facts()
    assert len(facts.sessions) == 45
    assert facts.n_trials == {"train": 8072, "val": 1426, "test": 1450}
    assert sum(facts.n_trials.values()) == 10_948
    for kind, split in (("train", "Train"), ("held out", "Val/Test")):
        expected = sum(int(row.split(",")[3]) for row in rows if row.endswith(split))
        assert sum(counts[kind] for counts in facts.sessions.values()) == expected
    # Four days have neither validation nor test trials, says `rnn_args.yaml` of the release.
    assert [name for name, counts in facts.sessions.items() if not counts["held out"]] == [
        "t15.2023.08.11",
        "t15.2024.03.03",
        "t15.2024.04.25",
        "t15.2024.04.28",
    ]
    assert facts.days["t15.2023.08.11"] == 25
    assert facts.days["t15.2025.04.13"] == 636


def test_data_unlike_the_published_ones_fail_the_lines_that_compare_them(
    stand_in: StandIn, tmp_path: Path
):
    facts = stand_in.published
    published = replace(
        facts,
        blocks=(replace(facts.blocks[0], n_sentences=11), *facts.blocks[1:]),
        n_features=N_FEATURES + 1,
        model=facts.model | {"n_units": 49},
        n_copy_trials=facts.n_copy_trials + 1,
        copy_wer={day: wer + 0.006 for day, wer in facts.copy_wer.items()},
    )
    result = verified(stand_in, tmp_path / "verify", published=published, lm=None)
    assert {check.name: check.found for check in result.checks if check.status == "FAIL"} == {
        "Trials by session": f"{SESSIONS[0]} train has 12, 11 in the table",
        "Features": "16 in each bin; 17 published",
        "Network": "kind gru, n_layers 1, n_units 48, patch_size 6, patch_stride 2, 16 features;"
        " published: kind gru, n_layers 1, n_units 49, patch_size 6, patch_stride 2, 17 features",
        "Trials of the published analyses": "8 found, 9 published",
        "Published sentences, day 25, 50-word": "WER 7.1 % here, 7.7 % in the paper",
        "Published sentences, day 27, open vocabulary": "WER 0.0 % here, 0.6 % in the paper",
    }
    assert "this is not the published network" in lines(result)["Published PER"].found


def test_a_checkpoint_of_other_days_fails(stand_in: StandIn, tmp_path: Path):
    published = replace(stand_in.published, blocks=stand_in.published.blocks[1:])
    folder = stand_in.directory / CHECKPOINT.parent
    checks = cortext_published.verification.baseline.check_checkpoint(
        folder, tmp_path / "run", published
    )
    found = {check.name: f"{check}" for check in checks.checks}
    assert found["Day layers"] == (
        f"Day layers: FAIL  3 found, 2 published; not published: {SESSIONS[0]}"
    )
    assert found["Network"].startswith("Network: PASS")


@pytest.mark.parametrize("line", ["PER of the checkpoint", "Published PER", "PER of evaluation"])
def test_a_per_that_is_five_points_off_fails_its_line_alone(line, stand_in: StandIn, whole):
    """By 0.2, 0.3 and 1 point they may differ, or by two and four of the few phonemes."""
    out, result = whole
    per = result.facts["validation"]["per"]
    assert 4 / result.facts["validation"]["n_phonemes"] < 0.05
    rates = {"PER of the checkpoint": per, "Published PER": per, "PER of evaluation": per}
    rates[line] += 0.05
    outcome = cortext_published.verification.baseline.check_validation(
        out / "run",
        out / "packed",
        {
            "checkpoint": {"val_per": rates["PER of the checkpoint"]},
            "evaluation": {"per": rates["PER of evaluation"]},
        },
        replace(stand_in.published, per=rates["Published PER"]),
        "cpu",
        None,
    )
    assert {check.name for check in outcome.checks if check.status == "FAIL"} == {line}
    assert len(outcome.checks) == 3


@pytest.mark.parametrize(
    ("frames", "failed"),
    [
        (["BLANK", "AA"] * 5, set()),
        (["BLANK"] * 100 + ["AA"], {"Frames"}),
        (["AA"] * 9 + ["BLANK"], {"Frames"}),
        ([None] * 10, {"Frames"}),  # no token is more probable than another
        (["BLANK", "AA", "not finite"], {"Finite logits"}),
    ],
)
def test_frames_unlike_those_of_a_trained_model_fail(frames, failed):
    logits_PV = np.zeros((len(frames), len(RELEASE)), np.float32)
    for frame, symbol in enumerate(frames):
        if symbol == "not finite":
            logits_PV[frame, 3] = np.inf
        elif symbol is not None:
            logits_PV[frame, RELEASE.index[symbol]] = 10
    sums = cortext_published.verification.baseline._FrameSums()
    sums.add(logits_PV, RELEASE)
    checks = cortext_published.verification.baseline._sane(sums, {"a day": sums})
    assert {check.name for check in checks if check.status == "FAIL"} == failed


def test_paths_are_replaced_as_whole_names_alone(tmp_path: Path):
    private = {"/data": "DIR", "/home/jane": "~"}
    clean = Stages(tmp_path, {}, private, lambda name: None).clean
    assert clean(["/data/t15/data_val.hdf5: trial_0001"]) == ["DIR/t15/data_val.hdf5: trial_0001"]
    assert clean({"a": "/home/jane/lm, /database/x.bin"}) == {"a": "~/lm, x.bin"}
    assert clean("1/2 of a/b, /data.") == "1/2 of a/b, DIR."
    clean = Stages(tmp_path, {}, {"jane_doe": "DIR"}, lambda name: None).clean
    assert (
        clean("jane_doe/val.hdf5: jane_doe, my_jane_doe/x")
        == "DIR/val.hdf5: jane_doe, my_jane_doe/x"
    )


@pytest.mark.parametrize(
    ("said", "cleaned"),
    [
        ("label: 'we see' found", "label: '...' found"),
        (r"label: b'we see \xff' found", "label: '...' found"),
        ("""label: "I'd see" found""", "label: '...' found"),
        ("label: 'we see the ... the m", "label: '...'"),
        ("'lm' gives the trainer's order; the model's is 'lm'",) * 2,
    ],
)
def test_quoted_words_are_left_out(said: str, cleaned: str, tmp_path: Path):
    assert Stages(tmp_path, {}, {}, lambda name: None).clean(said) == cleaned


@pytest.mark.parametrize(
    ("n_bytes", "listed", "right"),
    [
        (57_790_000, "57.79 MB", True),
        (57_794_999, "57.79 MB", True),
        (57_796_000, "57.79 MB", False),
        (60_597_207, "57.79 MB", True),  # 57.79 * 1024 ** 2
        (11_050_000_000, "11.05 GB", True),
        (11_000_000_000, "11.05 GB", False),
        (0, "1.13 MB", False),
    ],
)
def test_sizes_are_compared_as_they_are_listed(n_bytes, listed, right):
    from cortext_published.verification.published import has_listed_size

    assert has_listed_size(n_bytes, listed) == right


@pytest.mark.slow
def test_a_killed_verification_continues_to_the_same_result(stand_in: StandIn, whole, tmp_path):
    out = tmp_path / "verify"
    arguments = ["verify", "t15", stand_in.directory, "--lm", stand_in.lm, "--out", out]
    for stage in ("recordings", "logits"):
        command = Command(*arguments, OMP_NUM_THREADS="1")
        while command.running() and not (out / "stages" / f"{stage}.json").exists():
            time.sleep(0.01)
        command.kill()
        assert not (out / RESULT).exists()
    ended = run_command(*arguments, OMP_NUM_THREADS="1")
    assert ended.status == 1  # three sessions are not those of T15
    content = json.loads((out / RESULT).read_text())
    kept = [stage["name"] for stage in content["stages"] if stage["kept"]]
    assert {"recordings", "logits"} <= set(kept)
    for name in ("evaluation", "validation", "logits"):
        expected = {k: v for k, v in whole[1].facts[name].items() if k != "seconds_per_trial"}
        for key, value in expected.items():
            assert content["facts"][name][key] == pytest.approx(value)
    assert content["facts"]["words"]["wer"] == whole[1].facts["words"]["wer"]
