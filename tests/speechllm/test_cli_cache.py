"""The command speech-llm cache."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from refusals import complaint

from cortext.cli import run
from cortext.data import open_dataset
from cortext_speechllm.targets.cache import TargetCache

needs_espeak = pytest.mark.skipif(
    shutil.which("espeak-ng") is None, reason="needs the program espeak-ng (make system)"
)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("The cat sat down.\nDid it?\n\nThe cat sat down.\nI think so.\n")
    return path


def cache(*arguments: object) -> int:
    return run(["speech-llm", "cache", *map(str, arguments)])


def test_a_text_becomes_a_cache(
    tiny_audio_llm: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "speech.safetensors"
    given = (
        "--text",
        text,
        "--audio-llm",
        tiny_audio_llm,
        "--voice",
        "formant",
        "--out",
        out,
        "--device",
        "cpu",
    )
    assert cache(*given, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["sentences"], facts["added"], facts["width"], facts["frame_ms"]) == (3, 3, 24, 40)
    assert (facts["voice"], facts["audio_llm"], facts["left_out"]) == (
        "formant",
        str(tiny_audio_llm),
        [],
    )
    assert not TargetCache.open(out, facts["revision"], 24).missing(
        ["Did it?", "I think so.", "The cat sat down."]
    )
    assert cache(*given) == 0
    table = capsys.readouterr().out
    assert "sentences" in table
    assert "new ones" in table
    assert "spoken in part" not in table
    text.write_text("The cat sat down.\nIt has 9 lives.\n")
    assert cache(*given) == 0
    told = capsys.readouterr().out
    assert "formant passes over digits or letters (write them as words): 1\n" in told
    assert told.endswith(f"  {text} line 2: 'It has 9 lives.' without '9'\n")


def test_the_sentences_of_data_become_a_cache(
    recordings: Path, tiny_audio_llm: Path, tmp_path: Path
) -> None:
    data, out = recordings.parent / "data", tmp_path / "speech.safetensors"
    assert (
        cache(
            data, "--audio-llm", tiny_audio_llm, "--voice", "formant", "--out", out, "--workers", 0
        )
        == 0
    )
    said = {trial.sentence for trial in open_dataset(data) if trial.sentence is not None}
    opened = TargetCache(out)
    assert len(opened) == len(said)
    assert not opened.missing(said)


@pytest.mark.parametrize("voice", [pytest.param("espeak-ng", marks=needs_espeak), "vits"])
def test_other_voices_speak(
    tiny_audio_llm: Path, tiny_vits: Path, text: Path, tmp_path: Path, voice: str
) -> None:
    out, voice = tmp_path / "speech.safetensors", str(tiny_vits) if voice == "vits" else voice
    assert (
        cache(
            "--text",
            text,
            "--audio-llm",
            tiny_audio_llm,
            "--voice",
            voice,
            "--out",
            out,
            "--workers",
            0,
        )
        == 0
    )
    assert TargetCache(out).n_frames("The cat sat down.") > 5


def test_what_is_wrong_is_one_line(
    tiny_audio_llm: Path,
    tiny_vits: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    out = tmp_path / "speech.safetensors"
    model, formant = ("--audio-llm", tiny_audio_llm), ("--voice", "formant")
    assert "give DATA or --text" in complaint(
        capsys, "speech-llm", "cache", *model, *formant, "--out", out
    )
    assert "give DATA or --text" in complaint(
        capsys, "speech-llm", "cache", tmp_path, "--text", text, *model, *formant, "--out", out
    )
    assert "neither a directory nor" in complaint(
        capsys,
        "speech-llm",
        "cache",
        "--text",
        text,
        "--audio-llm",
        "no/such",
        *formant,
        "--out",
        out,
    )
    assert "neither a directory nor" in complaint(
        capsys, "speech-llm", "cache", "--text", text, *model, "--voice", "no/such", "--out", out
    )
    assert "of the type vits" in complaint(
        capsys,
        "speech-llm",
        "cache",
        "--text",
        text,
        "--audio-llm",
        tiny_vits,
        *formant,
        "--out",
        out,
    )
    assert cache("--text", text, *model, *formant, "--out", out) == 0
    assert "was made with the voice formant" in complaint(
        capsys, "speech-llm", "cache", "--text", text, *model, "--voice", tiny_vits, "--out", out
    )
    text.write_text("Yes.\n...\n")
    assert f"{text} line 2: '...' cannot be spoken" in complaint(
        capsys, "speech-llm", "cache", "--text", text, *model, *formant, "--out", out
    )
    assert cache("--text", text, *model, *formant, "--out", out, "--skip-bad") == 0
    assert f"{text} line 2" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["speech.safetensors", "text.txt"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_continues_where_a_signal_ended_it(
    tiny_audio_llm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    out, text = tmp_path / "speech.safetensors", tmp_path / "text.txt"
    sentences = (
        f"{'very ' * (i // 40)}good {'new ' * (i // 8 % 5)}{'day ' * (i % 8)}" for i in range(160)
    )
    text.write_text("\n".join(sentences))
    given = [
        "speech-llm",
        "cache",
        "--text",
        text,
        "--audio-llm",
        tiny_audio_llm,
        "--voice",
        "formant",
        "--out",
        out,
    ]
    program = [
        sys.executable,
        "-c",
        "from cortext.cli import main; main()",
        *map(str, given),
        "--workers",
        "2",
    ]
    with subprocess.Popen(
        program, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        parts = tmp_path / "speech.safetensors.parts"
        while process.poll() is None and not (parts.is_dir() and children(process.pid)):
            time.sleep(0.05)
        # The sentences take several seconds of it; on a busy machine the clock says nothing.
        until = cpu_seconds(process.pid) + 1
        while process.poll() is None and cpu_seconds(process.pid) < until:
            time.sleep(0.05)
        os.killpg(process.pid, number)  # as a terminal does, or a scheduler
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert len(said.splitlines()) == 1
    assert "interrupted" in said
    assert run([*map(str, given), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["sentences"] == 160
    (done,) = re.findall(r"after (\d+) of 160", said)
    assert facts["added"] == 160 - int(done) < 160
    assert not parts.exists()


def children(number: int) -> list[str]:
    try:
        return Path(f"/proc/{number}/task/{number}/children").read_text().split()
    except OSError:
        return []


def cpu_seconds(number: int) -> float:
    """Processor time of a process, without that of its children."""
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
