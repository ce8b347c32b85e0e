"""The page on the speed of training a speech LLM has the figures of the kept result."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
RESULT = json.loads((ROOT / "benchmarks/results/speech-llm-cpu.json").read_text())
PAGE = (ROOT / "docs/measured/speech-llm-speed.md").read_text()
LINES = PAGE.splitlines()


def rows(result: dict) -> list[str]:
    """The rows of both tables."""
    found = []
    for name, one in result["settings"].items():
        low, high = one["ms_10_90"]
        cells = [name, f"{one['ms']:,.0f}", f"{low:,.0f} to {high:,.0f}", f"{one['cpu_ms']:,.0f}"]
        cells += [
            f"{one['targets_ms']:,.1f}",
            f"{one['peak_mb']:,.0f}",
            f"{one['process_mb']:,.0f}",
        ]
        found.append(f"| {' | '.join(cells)} |")
    for name, one in result["ratios"].items():
        if one is not None:
            times = [f"{one[kind]:.2f}" for kind in ("times_faster", "times_faster_cpu")]
            found.append(
                f"| {name} | {' | '.join(times)} | {100 * one['less_memory']:.0f} % |".replace(
                    "-", "−"
                )
            )
    return found


def said(held: bool) -> str:
    return "as claimed" if held else "not as claimed"


def verdicts(result: dict) -> list[str]:
    """What the page says of the claim."""
    return [
        f"- {name}: time {said(held['times_faster'])}, memory {said(held['less_memory'])}."
        for name, held in result["claim"]["holds"].items()
    ]


@pytest.mark.parametrize("make", [rows, verdicts])
def test_every_line_is_the_kept_result_s(make):
    for line in make(RESULT):
        assert line in LINES


def test_the_page_says_what_was_measured_where():
    llm = next(iter(RESULT["settings"].values()))["audio_llm"]
    assert f"{llm['n_tower_parameters'] / 1e6:.1f} million parameters in its audio tower" in PAGE
    assert f"{llm['n_language_parameters'] / 1e6:.1f} million in its language model" in PAGE
    assert f"batches of {RESULT['batch']}" in PAGE
    assert f"measured {RESULT['provenance']['created'][:10]}" in PAGE
    assert f"The cache took {RESULT['input']['cache']['seconds']:.0f} s" in PAGE
    assert f"after {RESULT['cache_pays_after_steps']:.0f} steps" in PAGE
    assert f"torch threads: {next(iter(RESULT['settings'].values()))['threads']}," in PAGE
    assert not RESULT["provenance"]["commit"].endswith("-dirty")
    assert not RESULT["missing"]


def test_what_is_computed_for_published_models_is_what_the_shapes_say():
    pytest.importorskip("transformers")
    from cortext_speechllm.audio_llm.cost import facts_of
    from cortext_speechllm.config import read_speech_config
    from cortext_speechllm.memory import estimate

    found = {}
    for name in ("Qwen/Qwen2-Audio-7B-Instruct", "lmms-lab/Aero-1-Audio-1.5B"):
        facts, config = (
            facts_of(name),
            read_speech_config("speech_llm", [f"speech.audio_llm={name}"]),
        )
        language_model = estimate(config, facts).training_flops / config.dataset.batch_size
        # 1500 positions, 32 layers (Whisper large-v3's encoder): weights, and attention's two
        # products
        tower = 2 * facts.n_tower_parameters * 1500 + 4 * 32 * 1500**2 * facts.audio_width
        found[name] = f"{1 + tower / language_model:.1f}"
    assert f"Qwen2-Audio-7B {found['Qwen/Qwen2-Audio-7B-Instruct']} times faster" in PAGE
    assert (
        f"Aero-1-Audio-1.5B {found['lmms-lab/Aero-1-Audio-1.5B']} times, the voice not counted"
        in PAGE
    )
