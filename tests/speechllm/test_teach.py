"""A small language model learns to read phonemes from text.

What is heard, what is learnt, what is kept.
"""

import random
from pathlib import Path

import pytest
import torch
from own_recordings import LETTERS, OWN
from refusals import refused
from small_models import make_model
from tiny_speech_llm import save_tiny_audio_llm

from cortext.cli import run
from cortext.data import open_packed
from cortext.data.conventions import Conventions
from cortext.errors import ConfigError, CortextError, DataError
from cortext.features import AugmentationConfig
from cortext.models import GRUConfig, load_model
from cortext.text import LM, pronounce, to_phonemes
from cortext.text.inventory import RELEASE
from cortext.text.language import LANGUAGES
from cortext.text.pronunciation import pronouncer
from cortext.training import train
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.config import SpeechConfig
from cortext_speechllm.model import SpeechLLM
from cortext_speechllm.phoneme_bank import PhonemeBank, label_of
from cortext_speechllm.teach import TeachSettings, teach_from_text


@pytest.fixture(scope="module")
def encoder_run(recordings, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("encoder") / "run"
    train(
        "tiny",
        recordings,
        out,
        overrides=["model.n_units=16", "num_training_batches=2"],
        progress=False,
    )
    return out


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(
        "How are you today?\n\nI would like some water.\nPlease call my sister tomorrow.\n"
    )
    return path


def test_pronunciations_are_those_of_labels():
    label = label_of(["some", "water"], RELEASE, pronounce)
    assert label == list(RELEASE.ids(to_phonemes("some water")))
    assert label.count(RELEASE.sil) == 2
    assert label[-1] == RELEASE.sil
    # "el mar" of characters: a boundary between two words, and none at the end
    symbols = LETTERS.names(label_of(["el", "mar"], LETTERS, pronouncer(LETTERS, OWN.language)))
    assert symbols == ["e", "l", "|", "m", "a", "r"]


def test_a_speech_llm_keeps_the_conventions_of_its_encoder():
    encoder = make_model(GRUConfig(n_units=4, n_layers=1), conventions=OWN)
    model = SpeechLLM.around(encoder, SpeechConfig(alpha=0.0), 24, None)
    assert model.conventions == model.encoder.conventions == OWN
    assert model.frame_ms == 40  # 4 bins of 10 ms


def test_an_encoder_of_other_data_is_refused(recordings, encoder_run):
    model = load_model(encoder_run)
    data = open_packed(recordings)
    for other, said in (
        (Conventions(LM), "token 1 is AA, not SIL"),
        (Conventions(language=LANGUAGES["de"]), "the language 'en' is not 'de'"),
        (Conventions(bin_ms=10), "bins last 20 ms, not 10 ms"),
    ):
        model.conventions = other
        with refused(f"the data and the run differ: in the data {said}"):
            PhonemeBank(model, data, AugmentationConfig(), readings=1)


def test_what_was_heard_is_shared_out_among_the_labels():
    """A trial of labels a b c, heard as a x c: x is what the encoder made of b."""
    a, b, c, x = 5, 6, 7, 8
    heard = PhonemeBank.__new__(PhonemeBank)
    heard._pieces = {}
    heard._keep([a, b, c], [a, x, c], torch.tensor([[0.0], [2.0], [3.5]]))
    assert {token: [piece.flatten().tolist() for piece in pieces] for token, pieces in heard._pieces.items()} == {
        a: [[0.0]], b: [[2.0]], c: [[3.5]]
    }  # fmt: skip
    heard._keep([a, b], [x, a], torch.tensor([[1.0], [2.0]]))  # an insertion before, and a deletion
    pieces = {
        token: [piece.flatten().tolist() for piece in pieces]
        for token, pieces in heard._pieces.items()
    }
    assert sorted(value for own in (pieces[a][1], pieces[b][1]) for value in own) == [1.0, 2.0]


def test_hearing_draws_what_the_encoder_made_of_such_phonemes(recordings, encoder_run):
    model = load_model(encoder_run)
    phonemes = PhonemeBank(model, open_packed(recordings), AugmentationConfig(), readings=1)
    rng = random.Random(0)
    heard_QD = phonemes.sample(label_of(["how", "are", "you"], RELEASE, pronounce), rng)
    assert heard_QD.dtype == torch.float32
    assert heard_QD.shape[1] == model.network.n_hidden
    assert len(heard_QD) >= 1
    again = PhonemeBank(model, open_packed(recordings), AugmentationConfig(), readings=1)
    assert torch.equal(
        again.sample([5, 6, 40], random.Random(1)), phonemes.sample([5, 6, 40], random.Random(1))
    )


def test_an_encoder_that_hears_nothing_is_one_line(recordings, encoder_run):
    model = load_model(encoder_run)
    model.network.out.bias.data[0] = 1e4  # blanks alone
    with pytest.raises(
        DataError,
        match="decodes no phoneme in any training trial: it has not learnt; give a longer run",
    ):
        PhonemeBank(model, open_packed(recordings), AugmentationConfig(), readings=1)


def test_the_language_model_learns_and_the_run_is_one_of_a_speech_llm(
    recordings, encoder_run, tiny_audio_llm, text, tmp_path
):
    options = TeachSettings(batches=4, lr=0.01, positions=200)
    facts = teach_from_text(
        encoder_run, [text], recordings, tiny_audio_llm, tmp_path / "reads", options
    )
    assert facts["sentences"] == 3
    assert facts["loss_last"] < facts["loss_first"]
    model, before = SpeechLLM.load(tmp_path / "reads"), AudioLLM.load(tiny_audio_llm)
    assert model.network.speech.merge_blanks
    assert Path(model.network.llm.name) == tmp_path / "reads" / "audio_llm"
    changed = {
        name.partition(".")[2].partition(".")[0]
        for (name, new), old in zip(
            AudioLLM.load(model.network.llm.name).network.named_parameters(),
            before.network.parameters(),
            strict=True,
        )
        if not torch.equal(new, old)
    }
    # Not the tower; weight: the output layer.
    assert changed == {
        "language_model",
        "multi_modal_projector",
        "weight",
    }
    trial = open_packed(recordings).split("val").batch([0])
    session = open_packed(recordings).split("val").session(0)
    (nbest,) = model.generate(trial.features_BTC, [session], trial.n_bins_B, max_length=5)
    assert isinstance(nbest[0].text, str)
    again = tmp_path / "again"
    assert (
        teach_from_text(encoder_run, [text], recordings, tiny_audio_llm, again, options)[
            "loss_last"
        ]
        == facts["loss_last"]
    )


def test_pieces_grow_to_whole_sentences(recordings, encoder_run, tiny_audio_llm):
    from cortext_speechllm.teach import _TextTraining

    encoder, llm = load_model(encoder_run), AudioLLM.load(tiny_audio_llm)
    model = SpeechLLM.around(
        encoder, SpeechConfig(alpha=0.0, merge_blanks=True), llm.audio_width, llm
    )
    phonemes = PhonemeBank(encoder, open_packed(recordings), AugmentationConfig(), readings=1)
    sentence = "one two three four five six seven eight".split()
    lesson = _TextTraining(
        model,
        phonemes,
        [sentence],
        {word: pronounce(word) for word in sentence},
        TeachSettings(positions=400),
    )
    for share, most in ((0.0, 1), (0.25, 7), (0.5, 8), (0.99, 8)):
        lengths = {
            len(llm.chat.text(answer).split())
            for _ in range(6)
            for answer in lesson._batch(share)[1]
        }
        assert max(lengths) == most
        assert (min(lengths) == 8) == (share >= 0.5)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"batches": 0}, "batches is 0; it must be at least 1"),
        ({"lr": 0.0}, "lr is 0.0; it must be above 0 and finite"),
    ],
)
def test_options_that_cannot_be(change, line):
    with pytest.raises(ConfigError) as caught:
        TeachSettings(**change)
    assert line in str(caught.value)


def test_bad_input_is_one_line_and_writes_nothing(
    recordings, encoder_run, tiny_audio_llm, text, tmp_path
):
    (tmp_path / "empty.txt").write_text("\n ...\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    other = save_tiny_audio_llm(tmp_path / "other")
    for texts, llm, out, kind, line in (
        (
            [tmp_path / "empty.txt"],
            tiny_audio_llm,
            "a",
            DataError,
            "there is no sentence in the text",
        ),
        (
            [tmp_path / "none.txt"],
            tiny_audio_llm,
            "a",
            DataError,
            "none.txt: cannot be read as text",
        ),
        ([text], tmp_path / "gone", "a", CortextError, "neither a directory"),
        ([text], tiny_audio_llm, "full", CortextError, "is not empty"),
        ([text], other, "other", CortextError, "other"),
    ):
        with pytest.raises(kind) as caught:
            teach_from_text(
                encoder_run, texts, recordings, llm, tmp_path / out, TeachSettings(batches=1)
            )
        assert line in str(caught.value)
        assert not (tmp_path / "a").exists()
    assert (tmp_path / "full" / "mine").exists()
    assert (tmp_path / "other" / "config.json").exists()


def test_command(recordings, encoder_run, tiny_audio_llm, text, tmp_path, capsys):
    arguments = ["speech-llm", "teach", str(encoder_run), str(text), "--data", str(recordings)]
    arguments += [
        "--audio-llm",
        str(tiny_audio_llm),
        "--out",
        str(tmp_path / "reads"),
        "--batches",
        "2",
    ]
    assert run(arguments) == 0
    assert "loss of the first tenth" in capsys.readouterr().out
    assert run([*arguments, "--lr", "-1"]) == 2
    assert "lr is -1.0" in capsys.readouterr().err
