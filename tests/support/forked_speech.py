"""What a process of several trains; see `forked_training`."""

from pathlib import Path

from cortext_speechllm.stages import train_speech_llm


def run(config: Path, data: Path, out: Path, cache: Path) -> None:
    """To the end."""
    train_speech_llm(config, data, out, cache=cache, progress=False)
