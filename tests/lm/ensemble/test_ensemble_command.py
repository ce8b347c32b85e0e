"""The command `ensemble`: over lists and over evaluation directories."""

import csv
import json
import shutil

import numpy as np
import pytest
from refusals import complaint

from cortext.cli import run
from cortext.decoding import Decoder
from cortext.decoding.fake import fake_log_probs
from cortext.decoding.log_probs import log_softmax
from cortext.decoding.nbest import hypothesis_json
from cortext.decoding.ngram import LanguageModel
from cortext.text.inventory import RELEASE
from cortext.text.metrics import error_rate
from cortext_lm.ensemble import EnsembleOptions, average, combine_runs

SENTENCES = ["how are you", "see you soon", "thank you very much", "good morning"]


def answer(capsys, *arguments):
    """What the command prints with --json."""
    assert run(["ensemble", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def write(folder, text):
    """A file with the text."""
    path = folder / "given.yaml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ensemble")
    (directory / "text.txt").write_text("\n".join(SENTENCES) + "\n")
    LanguageModel.build([directory / "text.txt"], 2, directory / "lm")
    return directory / "lm"


@pytest.fixture(scope="module")
def evaluations(lm, tmp_path_factory):
    """Two evaluation directories as `cortext evaluate` leaves them, of noisy log-probabilities."""
    root, decoder = tmp_path_factory.mktemp("evaluations"), Decoder.from_dir(lm)
    for name in ("one", "two"):
        (root / name / "logits").mkdir(parents=True)
        lines = []
        for number, sentence in enumerate(SENTENCES):
            noise = np.random.default_rng([number, name == "two"])
            fake_PV = fake_log_probs(sentence, 1.0, number)
            log_probs_PV = log_softmax(fake_PV + noise.normal(0, 1.5, fake_PV.shape)).astype(
                np.float32
            )
            rounded_PV = log_probs_PV.astype(np.float16)
            np.save(
                root / name / "logits" / f"{number:05d}_day.1_b01_t{number:03d}.npy", rounded_PV
            )
            found = decoder.decode(log_probs_PV, "release")
            key = {
                "id": number,
                "session": "day.1",
                "block": 1,
                "trial": number,
                "reference": sentence,
            }
            lines.append(
                key | {"hypotheses": [hypothesis_json(hypothesis) for hypothesis in found]}
            )
        (root / name / "nbest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        inventory = {"name": RELEASE.name, "symbols": RELEASE.symbols}
        facts = {"inventory": inventory, "frame_ms": 80.0, "options": {}}
        (root / name / "metrics.json").write_text(json.dumps({"provenance": facts}))
        (root / name / "predictions.csv").write_text(
            "id,text\n" + "".join(f"{n},x\n" for n in range(5))
        )
    return root / "one", root / "two"


@pytest.fixture
def lists(tmp_path):
    lines = [
        {
            "id": "first",
            "reference": "How are you?",
            "heard": ["how are you", "who are you", "how our you"],
        },
        {
            "id": "second",
            "reference": "see you soon",
            "heard": ["see you", "see soon you", "sea you"],
        },
    ]
    path = tmp_path / "lists.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_lists_are_combined_and_measured(lists, capsys, tmp_path):
    out = tmp_path / "out"
    facts = answer(capsys, "--lists", lists, "--field", "heard", "--method", "mbr", "--out", out)
    # how are you: right; of the others "see you" is nearest to both, and lacks one word of six
    assert (facts["method"], facts["n_trials"], facts["n_words"]) == ("mbr", 2, 6)
    assert facts["wer"] == pytest.approx(1 / 6)
    assert facts["system_wer"] == pytest.approx([1 / 6, 3 / 6, 3 / 6])
    assert facts["oracle_wer"] == pytest.approx(1 / 6)
    assert (out / "predictions.csv").read_text() == "id,text\nfirst,how are you\nsecond,see you\n"
    lines = [json.loads(line) for line in (out / "nbest.jsonl").read_text().splitlines()]
    assert [line["hypotheses"][0]["text"] for line in lines] == ["how are you", "see you"]
    assert json.loads((out / "metrics.json").read_text())["wer"] == facts["wer"]

    assert run(["ensemble", "--lists", str(lists), "--field", "heard"]) == 0
    printed = capsys.readouterr().out
    assert "best of the candidates" in printed
    assert "16.67 %" in printed


def test_without_references_there_is_no_rate(tmp_path, capsys):
    path = tmp_path / "lists.jsonl"
    path.write_text('{"heard": ["a", "a b"]}\n{"heard": ["c"]}\n')
    facts = answer(capsys, "--lists", path, "--field", "heard")
    assert (facts["wer"], facts["wer_ci95"], facts["system_wer"], facts["oracle_wer"]) == (
        None,
    ) * 4
    assert run(["ensemble", "--lists", str(path), "--field", "heard"]) == 0
    assert "2 trials combined" in capsys.readouterr().out


def test_options_are_fitted_kept_and_applied_unchanged(tmp_path, capsys):
    val, test, kept = (tmp_path / name for name in ("val.jsonl", "test.jsonl", "kept.yaml"))
    # Half the systems add a word.
    val.write_text('{"reference": "a b", "heard": ["a b x", "a b"]}\n' * 9)
    test.write_text('{"reference": "c", "heard": ["c d", "c"]}\n')
    given = ["--field", "heard", "--options", kept]
    facts = answer(capsys, "--lists", test, "--fit", val, *given)
    assert facts["fitted"]["wer"] == 0
    assert facts["fitted"]["baseline"] == 0.5
    assert (facts["wer"], facts["options"]["null_weight"]) == (0, 1.5)
    assert EnsembleOptions.read(kept).null_weight == 1.5
    assert answer(capsys, "--lists", test, *given)["options"] == facts["options"]
    assert answer(capsys, "--lists", test, "--field", "heard")["wer"] == 1
    assert "applied unchanged" in complaint(
        capsys, "ensemble", "--lists", test, *given, "--method", "mbr"
    )
    assert "applied unchanged" in complaint(
        capsys, "ensemble", "--lists", test, *given, "--set", "alpha=1"
    )
    only = answer(capsys, "--fit", val, *given, "--method", "mbr")
    assert only["fitted"]["options"]["method"] == "mbr"
    assert "wer" not in only


def test_rates_are_those_of_the_projects_normaliser(tmp_path, capsys):
    """Case, apostrophes, digits, and hyphens.

    Of two before a blank one is left, which a second pass would take.
    """
    references = ["It's 3.5 km, I'M told -- yes!", "well-known yes-- no", "café A", "12 34"]
    systems = [references, ["its km i'm told - yes", "well known yes no", "caf", "5 six"]]
    lines = [{"reference": r, "heard": h} for r, *h in zip(references, *systems, strict=True)]
    path, out = tmp_path / "lists.jsonl", tmp_path / "out"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    facts = answer(capsys, "--lists", path, "--field", "heard", "--method", "mbr", "--out", out)
    expected = [error_rate(references, texts, n_boot=0).rate for texts in systems]
    assert facts["system_wer"] == pytest.approx(expected)
    assert (expected[0], facts["wer"], facts["oracle_wer"]) == (0, 0, 0)
    with (out / "predictions.csv").open() as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    assert error_rate(references, texts, n_boot=0).rate == 0


def test_what_fitting_writes_replaces_nothing_else(tmp_path, capsys):
    val = tmp_path / "val.jsonl"
    val.write_text('{"reference": "a", "heard": ["a"]}\n')
    before = val.read_bytes()
    error = complaint(capsys, "ensemble", "--fit", val, "--field", "heard", "--options", val)
    assert (
        "val.jsonl: exists and holds no options of an ensemble; choose another name or remove it"
        in error
    )
    assert val.read_bytes() == before
    fit = ["--fit", val, "--field", "heard", "--options", tmp_path / "kept.yaml"]
    assert answer(capsys, *fit)["fitted"]["options"]["method"] == "rover"
    assert answer(capsys, *fit, "--set", "method=mbr")["fitted"]["options"]["method"] == "mbr"
    val.write_text('{"heard": ["a"]}\n')
    assert "val.jsonl, trial 0: has no reference" in complaint(capsys, "ensemble", *fit)


def test_posteriors_are_averaged_decoded_and_written(evaluations, lm, tmp_path, capsys):
    one, two = evaluations
    out = tmp_path / "out"
    facts = answer(
        capsys, one, two, "--method", "average", "--set", "mean=geometric", "--lm", lm, "--out", out
    )
    decoder, texts = Decoder.from_dir(lm), []
    for number in range(4):
        both = [
            np.load(next((path / "logits").glob(f"{number:05d}*"))).astype(np.float64)
            for path in evaluations
        ]
        texts.append(
            decoder.decode(average(list(map(log_softmax, both)), "geometric"), "release")[0].text
        )
    with (out / "predictions.csv").open() as file:
        rows = list(csv.reader(file))
    # the fifth trial was left out by both evaluations and keeps its row
    assert rows == [["id", "text"], *([str(n), text] for n, text in enumerate(texts)), ["4", ""]]
    assert facts["wer"] is not None

    # what was written is an evaluation directory to the next ensemble, and its own mean
    again = answer(capsys, out, "--method", "average", "--lm", lm, "--out", tmp_path / "again")
    assert again["wer"] == facts["wer"]
    assert (tmp_path / "again" / "predictions.csv").read_text() == (
        out / "predictions.csv"
    ).read_text()
    assert answer(capsys, out, "--method", "mbr", "--set", "nbest=1")["wer"] == facts["wer"]


def test_words_that_the_n_gram_lacks_are_noted(evaluations, lm, tmp_path, capsys):
    other = shutil.copytree(lm, tmp_path / "lm")
    with (other / "lexicon.txt").open("a") as file:
        file.writelines(f"{letter}ay EY SIL\n" for letter in "bcdfghjk")
    facts = answer(capsys, *evaluations, "--method", "average", "--lm", other)
    (note,) = facts["notes"]
    assert note.startswith(f"{other}: the n-gram does not know ")
    assert answer(capsys, *evaluations, "--method", "average", "--lm", lm)["notes"] == []


def test_texts_of_evaluations_are_combined(evaluations, lm, capsys):
    one, two = evaluations
    for method in ("rover", "mbr"):
        facts = answer(capsys, one, two, "--method", method)
        assert (facts["n_trials"], len(facts["system_wer"])) == (4, 2)
        assert facts["oracle_wer"] <= min(facts["system_wer"])
        alone = answer(capsys, one, "--method", method, "--set", "nbest=1")
        assert alone["wer"] == alone["system_wer"][0]
    assert answer(capsys, one, two, "--method", "rover-lm", "--lm", lm)["method"] == "rover-lm"
    found = combine_runs([one, two], EnsembleOptions(method="average"), lm=lm, threads=2)
    assert [word.end_ms > 0 for word in found.nbest[0][0].words]


def test_options_of_the_search_are_those_of_the_runs_or_given(evaluations, lm, tmp_path, capsys):
    one, two = evaluations
    other = tmp_path / "other"
    other.mkdir()
    for name in ("nbest.jsonl", "logits"):
        (other / name).symlink_to(two / name)
    facts = json.loads((two / "metrics.json").read_text())
    facts["provenance"]["options"] = {"nbest": 1}
    (other / "metrics.json").write_text(json.dumps(facts))
    given = [one, other, "--method", "average", "--lm", lm]
    assert "other: was decoded with other options than" in complaint(capsys, "ensemble", *given)
    (tmp_path / "search.yaml").write_text("nbest: 2\n")
    assert answer(capsys, *given, "--decoder-options", tmp_path / "search.yaml")["n_trials"] == 4


def test_correction_by_a_model_is_made_of_what_was_heard(lists, tmp_path, capsys):
    pytest.importorskip("transformers")
    from tiny_llm import save_tiny_lm

    model = save_tiny_lm(tmp_path / "model")
    given = [
        "--lists",
        lists,
        "--field",
        "heard",
        "--method",
        "correct",
        "--llm",
        model,
        "--llm-device",
        "cpu",
    ]
    out = tmp_path / "out"
    facts = answer(capsys, *given, "--out", out)
    assert (facts["degraded"], facts["n_trials"]) == (0, 2)
    second = (out / "predictions.csv").read_text().splitlines()[2].partition(",")[2]
    assert set(second.split()) <= {"see", "you", "sea", "soon"}
    # The tiny window is less than two prompts.
    assert any("only the last" in note for note in facts["notes"])
    assert answer(capsys, *given, "--free")["options"]["free"] is True


def test_what_does_not_go_together_is_one_line(lists, evaluations, lm, tmp_path, capsys):
    one, two = evaluations
    by_lists = ["--lists", lists, "--field", "heard"]
    assert "nothing to combine" in complaint(capsys, "ensemble")
    assert "at once" in complaint(capsys, "ensemble", one, *by_lists)
    assert "--lists needs --field" in complaint(capsys, "ensemble", "--lists", lists)
    assert "--fit needs --options" in complaint(capsys, "ensemble", *by_lists, "--fit", lists)
    assert "did you mean 'rover'?" in complaint(capsys, "ensemble", *by_lists, "--method", "rovr")
    assert "rover-lm needs an n-gram" in complaint(
        capsys, "ensemble", *by_lists, "--method", "rover-lm"
    )
    assert "--lm does not go with --method mbr" in complaint(
        capsys, "ensemble", *by_lists, "--method", "mbr", "--lm", lm
    )
    assert "average needs logits" in complaint(
        capsys, "ensemble", *by_lists, "--method", "average", "--lm", lm
    )
    assert "average needs a language-model" in complaint(
        capsys, "ensemble", one, two, "--method", "average"
    )
    assert "correct needs a large language model" in complaint(
        capsys, "ensemble", *by_lists, "--method", "correct"
    )
    assert "--lm does not go with --method rover" in complaint(
        capsys, "ensemble", one, two, "--lm", lm
    )
    assert "--threads do not go with --method mbr" in complaint(
        capsys, "ensemble", one, two, "--method", "mbr", "--threads", 2
    )
    assert "--decoder-options and" in complaint(
        capsys, "ensemble", one, two, "--decoder-options", write(tmp_path, "beam: 9\n")
    )
    kept = write(tmp_path, "method: mbr\n")
    assert "--lm does not go with --method mbr" in complaint(
        capsys, "ensemble", *by_lists, "--options", kept, "--lm", lm
    )
    assert "--llm and --free do not go" in complaint(capsys, "ensemble", one, two, "--llm", "model")
    assert "--field names a field of --lists" in complaint(
        capsys, "ensemble", one, two, "--field", "heard"
    )
    assert "a lattice needs logits" in complaint(
        capsys, "ensemble", *by_lists, "--lattice", "--lm", lm
    )
    fit = [
        "--fit",
        lists,
        "--field",
        "heard",
        "--options",
        tmp_path / "new.yaml",
        "--lattice",
        "--lm",
        lm,
    ]
    assert "a lattice needs logits" in complaint(capsys, "ensemble", *fit)
    assert "--llm and --free do not go" in complaint(
        capsys, "ensemble", *by_lists, "--method", "mbr", "--free"
    )
    assert "unknown key alfa" in complaint(capsys, "ensemble", *by_lists, "--set", "alfa=1")
    assert "weights" in complaint(capsys, "ensemble", one, two, "--set", "weights=[1,2,3]")
    assert "no nbest.jsonl" in complaint(capsys, "ensemble", one, tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    assert "is not an ensemble's directory" in complaint(
        capsys, "ensemble", *by_lists, "--out", tmp_path / "mine"
    )
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
