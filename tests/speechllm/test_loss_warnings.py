"""Lines that warn in the course of a training."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from cortext_speechllm.validate import LossWarnings

ROOT = Path(__file__).resolve().parents[2]
TRAINER = SimpleNamespace(shown=True, processes=SimpleNamespace(first=True))


def said(capsys: pytest.CaptureFixture) -> list[str]:
    return capsys.readouterr().err.splitlines()


def trained(watch: LossWarnings, step: int, **losses: float) -> None:
    watch.on_train(
        TRAINER,
        step,
        {"train_loss": sum(losses.values())} | {f"train_{k}": v for k, v in losses.items()},
    )


def check_page(line: str) -> None:
    """Find the page and the heading that a warning sends its reader to."""
    (page, heading), *_ = re.findall(r"see (docs/\S+\.md), '([^']+)'", line)
    assert f"\n## {heading}\n" in (ROOT / page).read_text()


def test_a_loss_that_drowns_another_is_named_once(capsys):
    watch = LossWarnings({"alignment": 1.0, "tokens": 1.0, "ctc": 0.1, "contrastive": 0.0})
    trained(watch, 100, alignment=1.0, tokens=9.9, ctc=50.0, contrastive=1e-9)
    assert said(capsys) == []
    trained(watch, 200, alignment=0.5, tokens=5.1, ctc=20.0)
    (line,) = said(capsys)
    assert line.startswith(
        "batch 200: the tokens loss (5.1) is more than ten times the alignment loss (0.5), each"
        " times"
    )
    check_page(line)
    trained(watch, 300, alignment=0.5, tokens=5.2, ctc=20.0)
    assert said(capsys) == []  # nothing new
    trained(watch, 400, alignment=0.5, tokens=4.0, ctc=20.0)
    trained(watch, 500, alignment=0.5, tokens=6.0, ctc=20.0)
    assert len(said(capsys)) == 1  # it is so again


def test_weights_count(capsys):
    trained(LossWarnings({"tokens": 1.0, "ctc": 0.01}), 100, tokens=1.0, ctc=200.0)
    assert said(capsys) == []
    trained(LossWarnings({"tokens": 1.0, "ctc": 1.0}), 100, tokens=1.0, ctc=200.0)
    assert "the ctc loss (200) is more than ten times the tokens loss (1)" in said(capsys)[0]


def test_a_validation_that_leaves_training_is_reported(capsys):
    watch = LossWarnings({"tokens": 1.0})
    for step, (train, val) in enumerate(
        [(5.0, 5.0), (4.0, 4.5), (3.0, 4.6), (2.0, 4.8), (1.0, 5.0)], 1
    ):
        trained(watch, 1000 * step, tokens=train)
        watch.on_validation(TRAINER, 1000 * step, {"val_loss": val})
    (line,) = said(capsys)
    assert line.startswith(
        "batch 4000: the validation loss has risen to 4.8 while that of training fell to 2:"
    )
    check_page(line)


def test_noise_is_not_reported(capsys):
    watch = LossWarnings({"tokens": 1.0})
    for step, (train, val) in enumerate(
        [(5.0, 5.0), (4.0, 5.1), (3.0, 4.6), (3.1, 4.8), (3.2, 5.0), (3.0, 5.1)], 1
    ):
        trained(watch, 1000 * step, tokens=train)
        watch.on_validation(TRAINER, 1000 * step, {"val_loss": val})
    assert said(capsys) == []


def test_what_is_written_is_shown(capsys):
    LossWarnings({"tokens": 1.0}).on_validation(
        TRAINER, 1000, {"val_loss": 1.0, "val_samples": {"how are you": "who are"}}
    )
    assert said(capsys) == ["batch 1000: 'how are you' is read as 'who are'"]
