"""Training of a casing model: it learns what a text shows, and the file is whole or not there."""

import random

import pytest
import torch
from safetensors.torch import load_file

from cortext.cli import run
from cortext.errors import ConfigError
from cortext.text.language import EN, LANGUAGES
from cortext_live.casing import caser_for
from cortext_live.casing.model import read_caser
from cortext_live.casing.train import CasingSettings, train_case

NAMES = ("Avni", "McGill", "BBC", "Pedro")
VERBS = ("come", "duerme", "canta", "baila", "nada", "lee", "escribe", "corre")
WHEN = (
    "hoy",
    "ma\u00f1ana",
    "aqu\u00ed",
    "siempre",
    "nunca",
    "ya",
    "otra vez",
    "en casa",
    "a veces",
)
AND = ("mucho", "poco", "bien", "mal", "solo", "despacio", "deprisa", "algo")


def sentences(seed):
    """Sentences that ask where they begin with `cuando`, with names in the middle."""
    rng = random.Random(seed)
    found = []
    for verb in VERBS:
        for when in WHEN:
            for how in AND:
                name = rng.choice(NAMES)
                if rng.random() < 0.5:
                    found.append(f"\u00bfCuando {verb} {name} {how} {when}?")
                else:
                    found.append(f"Creo que {name} {verb} {how} {when}.")
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("casing")
    text = folder / "text.txt"
    text.write_text("\n".join(sentences(0)))
    out = folder / "es.safetensors"
    options = CasingSettings(epochs=3, batch=32, lr=1e-2, joined=0.2)
    facts = train_case([text], out, LANGUAGES["es"], options)
    return text, out, options, facts


def test_a_model_learns_names_questions_and_ends_that_stand_in_the_middle(trained):
    _, out, _, facts = trained
    assert facts["held_out"]["model"]["sentences_right"] > 0.95
    assert "rules" not in facts["held_out"]  # they are for English
    assert out.stat().st_size < 5e6
    caser = caser_for(LANGUAGES["es"], out)
    assert caser.show(
        [
            "cuando lee mcgill bien hoy",
            "creo que bbc canta mal siempre",
            "creo que avni come bien hoy cuando nada pedro mal ya",
            "",
        ]
    ) == [
        "\u00bfCuando lee McGill bien hoy?",
        "Creo que BBC canta mal siempre.",
        "Creo que Avni come bien hoy. \u00bfCuando nada Pedro mal ya?",
        "",
    ]


def test_names_go_before_what_a_model_has_learnt(trained):
    caser = read_caser(trained[1])
    shown = caser.show(
        ["creo que mcgill lee con zo\u00eb hoy"], {"mcgill": "MCGILL", "zo\u00eb": "Zo\u00eb"}
    )
    assert shown == ["Creo que MCGILL lee con Zo\u00eb hoy."]


def test_a_list_is_shown_as_each_of_its_sentences_alone(trained):
    caser = read_caser(trained[1])
    texts = ["cuando lee avni", "creo que pedro lee bien hoy", "", "ya"]
    assert caser.show(texts) == [caser.show([text])[0] for text in texts]


@pytest.mark.slow
def test_one_seed_gives_one_model(trained, tmp_path):
    text, out, options, _ = trained
    train_case([text], tmp_path / "again.safetensors", LANGUAGES["es"], options)
    first, again = load_file(out), load_file(tmp_path / "again.safetensors")
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_model_of_another_language_is_refused(trained):
    with pytest.raises(ConfigError, match=r"reads language 'es', and decoded text is 'en'"):
        caser_for(EN, trained[1])


def test_the_command_prints_figures_beside_the_rules_and_writes_nothing_on_a_mistake(
    tmp_path, capsys
):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"I am {'x' * n} and Anna is {'y' * n}." for n in range(1, 38)))
    out = tmp_path / "case.safetensors"
    assert run(["lm", "train-case", str(text), "--out", str(out)]) == 2
    assert "at least 500" in capsys.readouterr().err
    assert run(["lm", "train-case", str(text), "--out", str(tmp_path / "case.bin")]) == 2
    assert ".safetensors is needed" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
    lines = [f"I am {'abcdefgh'[n % 8] * (1 + n // 8)} and Anna sees." for n in range(520)]
    text.write_text("\n".join(lines))
    assert run(["lm", "train-case", str(text), "--out", str(out), "--epochs", "1"]) == 0
    told = capsys.readouterr().out
    assert "model" in told
    assert "rules" in told
    assert "F1 of ?" in told
    assert read_caser(out).show(["i am b and anna sees"]) == ["I am b and Anna sees."]
