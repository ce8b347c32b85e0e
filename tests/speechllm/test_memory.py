"""Estimates of memory and time against instantiated models, what torch keeps and counts, and
hand computations.
"""

from __future__ import annotations

import functools
import json
import shlex
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

pytest.importorskip("transformers")

import transformers
from tiny_speech_llm import save_tiny_audio_llm
from typer.testing import CliRunner

from cortext.errors import ConfigError, LanguageModelError
from cortext.models import build_model
from cortext.models.gru import GRUConfig
from cortext_speechllm.audio_llm.cost import (
    PUBLISHED,
    LanguageWork,
    Load,
    facts_of,
    frozen_bytes,
    layer_kept,
    lora_parameters,
    matrices,
)
from cortext_speechllm.audio_llm.generate import generate
from cortext_speechllm.audio_llm.inputs import answer_logits, teacher_forced
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.audio_llm.training import add_lora
from cortext_speechllm.commands import speech_llm_prepare
from cortext_speechllm.config import GenerationConfig, LoRAConfig, SpeechConfig, SpeechLLMConfig
from cortext_speechllm.losses.speech_loss import token_cross_entropy
from cortext_speechllm.memory import (
    GPU,
    GPUS,
    MARGIN,
    Estimate,
    check_gpu_memory,
    estimate,
    gpu_named,
    plan,
    savings,
)
from cortext_speechllm.network import SpeechNetwork

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = DOCS / "guides/speech-llm-memory.md"
TABLE = DOCS / "measured/speech-llm-memory.md"
QWEN, AERO = "Qwen/Qwen2-Audio-7B-Instruct", "lmms-lab/Aero-1-Audio-1.5B"
N_TRIALS, N_PATCHES, N_TOKENS = 6, 60, 10
PEAK_TOLERANCE = 0.06
"""Of the estimate of what is held at most, in a whole forward and backward pass or a whole
search.
"""
KEPT_TOLERANCE = 0.01
"""Of the estimate of what autograd keeps of the language model."""
CPU_DROPOUT_BYTES = 4

# what the models' config.json say, and transformers' defaults for what they leave out
PUBLISHED_TEXT = {
    QWEN: dict(model_type="qwen2", intermediate_size=11008, vocab_size=156032),
    AERO: (
        dict(
            model_type="qwen2",
            hidden_size=1536,
            intermediate_size=8960,
            num_hidden_layers=28,
            num_attention_heads=12,
            num_key_value_heads=2,
            vocab_size=151936,
        )
    ),
}
LORAS = {
    "frozen": None,
    "lora": LoRAConfig(r=4),
    "lora without dropout": LoRAConfig(r=4, dropout=0.0),
    "lora on some": LoRAConfig(r=2, modules=["q_proj", "gate_proj"]),
}
each_lora = pytest.mark.parametrize("lora", LORAS)
each_checkpointing = pytest.mark.parametrize(
    "checkpointing", [False, True], ids=["kept", "checkpointing"]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_audio_llm(tmp_path_factory.mktemp("tiny"), text_width=64, audio_width=24)


@pytest.fixture(scope="module")
def deeper(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of Qwen2-Audio's proportions, a sixteenth as wide and an eighth as deep."""
    config = transformers.Qwen2AudioConfig.from_pretrained(folder)
    sizes = dict(
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        vocab_size=2000,
    )
    text = config.text_config.to_dict() | sizes | dict(num_key_value_heads=4, layer_types=None)
    config = transformers.Qwen2AudioConfig.from_dict(config.to_dict() | {"text_config": text})
    target = tmp_path_factory.mktemp("deeper")
    transformers.Qwen2AudioForConditionalGeneration(config).save_pretrained(target)
    transformers.AutoProcessor.from_pretrained(folder).save_pretrained(target)
    return target


@pytest.fixture(scope="module", params=[QWEN, AERO])
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Name, the library's own network of full size on the meta device, and the facts of its
    configuration.
    """
    tower = dict(model_type="qwen2_audio_encoder")
    config = transformers.Qwen2AudioConfig(
        audio_config=tower, text_config=PUBLISHED_TEXT[request.param]
    )
    config.save_pretrained(folder := tmp_path_factory.mktemp("published"))
    with torch.device("meta"):
        network = transformers.Qwen2AudioForConditionalGeneration(config)
    return request.param, network, facts_of(str(folder))


class Held(TorchDispatchMode):
    """Counts the bytes of all storages that operations make and that are still there.

    A network's weights are not.
    """

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known = {each.untyped_storage().data_ptr() for each in network.parameters()}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                key, n_bytes = storage.data_ptr(), storage.nbytes()
                if key and key not in self.known:
                    self.known.add(key)
                    self.now += n_bytes
                    self.most = max(self.most, self.now)
                    weakref.finalize(storage, self._gone, key, n_bytes)
        return found

    def _gone(self, key: int, n_bytes: int) -> None:
        self.known.discard(key)
        self.now -= n_bytes


@functools.lru_cache(maxsize=16)
def loaded(folder: Path, lora: str, bf16: bool) -> AudioLLM:
    """A tiny audio LLM. No test changes its weights, so those of one kind share it."""
    llm = AudioLLM.load(folder, device="cpu", bf16=bf16)
    if LORAS[lora] is not None:
        llm.add_lora(LORAS[lora])
        llm.train_lora()
    return llm


def at_work(
    folder: Path, lora: str = "frozen", checkpointing: bool = False, bf16: bool = True, **generation
):
    """A tiny audio LLM, and the shapes of a batch for it."""
    llm, lora = loaded(folder, lora, bf16), LORAS[lora]
    for weight in llm.lora.values():
        weight.grad = None
    llm.checkpointing(checkpointing)
    n_prompt = sum(map(len, llm.prompt("Write it.")))
    speech = SpeechConfig(
        lora=lora, gradient_checkpointing=checkpointing, generation=GenerationConfig(**generation)
    )
    load = Load(prompt_tokens=n_prompt, answer_tokens=N_TOKENS, bf16=bf16)
    return llm, LanguageWork(llm.facts, speech, load, N_TRIALS, N_PATCHES)


def token_loss(llm: AudioLLM, bf16: bool = True, n_trials: int = N_TRIALS) -> torch.Tensor:
    brain_BPA = torch.randn(n_trials, N_PATCHES, llm.audio_width, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        answers = [list(range(5, 5 + N_TOKENS))] * n_trials
        n_patches_B = torch.full((n_trials,), N_PATCHES)
        sequence = teacher_forced(llm, brain_BPA, n_patches_B, llm.prompt("Write it."), answers)
        return token_cross_entropy(
            answer_logits(llm, sequence), sequence.targets_BK, sequence.n_tokens_B
        ).sum()


# weights


def test_published_shapes_are_those_of_the_librarys_own_network(published):
    name, network, facts = published
    assert facts_of(name) == facts
    in_bf16 = sum(
        each.numel() * each.element_size() for each in network.to(torch.bfloat16).parameters()
    )
    assert frozen_bytes(facts, Load()) == in_bf16
    assert frozen_bytes(facts, Load(bf16=False)) == 2 * in_bf16


def test_qwen2_audio_is_as_large_as_its_published_weights():
    published_gb = 3.91 + 3.98 + 3.98 + 3.64 + 1.28  # of its five files on the Hub
    assert frozen_bytes(PUBLISHED[QWEN], Load()) / 1e9 == pytest.approx(published_gb, abs=0.025)


def test_matrices_are_those_that_the_network_has(published):
    _, network, facts = published
    layer = network.model.language_model.layers[0]
    own = {
        name.split(".")[-1]: each
        for name, each in layer.named_modules()
        if isinstance(each, torch.nn.Linear)
    }
    assert matrices(facts) == {
        name: (each.in_features, each.out_features) for name, each in own.items()
    }


def test_quantized_weights_are_counted_matrix_by_matrix(published):
    _, network, facts = published
    layers = network.model.language_model.layers
    n_matrices = sum(
        each.weight.numel() for each in layers.modules() if isinstance(each, torch.nn.Linear)
    )
    rest = 2 * (facts.n_parameters - n_matrices)
    assert frozen_bytes(facts, Load(), "8bit") == n_matrices + rest
    assert frozen_bytes(facts, Load(), "4bit") == n_matrices // 2 + n_matrices // 16 + rest


def test_lora_has_as_many_weights_as_peft_adds(published):
    pytest.importorskip("peft")
    name, network, facts = published
    config = LoRAConfig(modules=["q_proj", "k_proj", "o_proj", "up_proj", "down_proj"])
    added = add_lora(network.model.language_model, config, name)
    assert lora_parameters(config, facts) == sum(each.numel() for each in added.values())


def test_what_learns_is_counted_as_the_training_has_it(folder: Path):
    pytest.importorskip("peft")
    llm = AudioLLM.load(folder, device="cpu")
    config = SpeechLLMConfig(
        model=GRUConfig(n_units=16, n_layers=2),
        speech=SpeechConfig(audio_llm=str(folder), lora=LoRAConfig(r=3)),
    )
    encoder = build_model(config.model, n_features=20, n_days=3, n_classes=41)
    network = SpeechNetwork(encoder, config.speech, llm.audio_width, llm)
    n_learns = sum(each.numel() for each in network.parameters())
    found = estimate(config, llm.facts, Load(n_features=20, n_days=3))
    assert found.training["what learns, with AdamW"] == 18 * n_learns
    most = estimate(config, llm.facts, Load(n_features=20, n_days=3, n_classes=250))
    # 209 tokens more, each with a weight for each of 16 units and a bias
    difference = most.training["what learns, with AdamW"] - 18 * n_learns
    assert difference == 18 * 209 * (16 + 1)


# what is kept, and what is held at most


def test_what_a_layer_keeps_by_hand():
    # Qwen2-Audio, 100 positions a trial: two norms of 4096 in float32 and their scales; queries,
    # keys, values and result of 4096 in bfloat16; a row of the mask; a sum for each of 32 heads;
    # gate, its activation and up of 11008.
    frozen = 2 * (4 * 4096 + 4) + 4 * 2 * 4096 + 2 * 100 + 4 * 32 + 3 * 2 * 11008
    assert layer_kept(PUBLISHED[QWEN], None, 100, Load()) == frozen
    # LoRA on the query: its input in bfloat16, a byte for what is dropped of it, and 8 numbers
    # between its matrices.
    lora = LoRAConfig(r=8, modules=["q_proj"])
    assert layer_kept(PUBLISHED[QWEN], lora, 100, Load()) == frozen + 3 * 4096 + 2 * 8


@each_lora
@each_checkpointing
def test_what_is_kept_is_what_autograd_saves(folder: Path, lora, checkpointing):
    llm, work = at_work(folder, lora, checkpointing)
    saved = []
    # The difference leaves out what does not depend on the batch.
    for n_trials in (
        N_TRIALS,
        2 * N_TRIALS,
    ):
        kept: dict[int, torch.Tensor] = {}

        def pack(tensor: torch.Tensor, kept: dict[int, torch.Tensor] = kept) -> torch.Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        embeds_BSH = torch.randn(n_trials, work.n_positions, llm.text_width, requires_grad=True)
        mask_BS = torch.ones(n_trials, work.n_positions, dtype=torch.long)
        mask_BS[0, 50:] = 0
        with (
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            torch.autocast("cpu", dtype=torch.bfloat16),
        ):
            result = llm.hidden(embeds_BSH, mask_BS)
        saved.append(sum(tensor.untyped_storage().nbytes() for tensor in kept.values()))
        del result
    assert saved[1] - saved[0] == pytest.approx(work.kept(CPU_DROPOUT_BYTES), rel=KEPT_TOLERANCE)


@each_checkpointing
@pytest.mark.parametrize("lora", ["frozen", "lora", "lora without dropout"])
def test_most_that_is_held_in_training_is_as_estimated(deeper: Path, lora, checkpointing):
    estimated, held = most_in_training(deeper, lora, checkpointing, bf16=True)
    assert estimated == pytest.approx(held, rel=PEAK_TOLERANCE)


@pytest.mark.slow
@each_lora
@each_checkpointing
@pytest.mark.parametrize(("bf16", "most"), [(True, 1.15), (False, 1.4)], ids=["bf16", "fp32"])
def test_no_more_is_held_in_training_than_estimated(deeper: Path, lora, checkpointing, bf16, most):
    estimated, held = most_in_training(deeper, lora, checkpointing, bf16)
    assert 0.98 * held < estimated < most * held


def most_in_training(folder: Path, lora, checkpointing: bool, bf16: bool) -> tuple[int, int]:
    """Bytes as estimated and as held."""
    llm, work = at_work(folder, lora, checkpointing, bf16)
    with Held(llm.network) as held:
        token_loss(llm, bf16).backward()
    parts = work.training_parts() | {"kept of the language model": work.kept(CPU_DROPOUT_BYTES)}
    if "a layer computed again" in parts:
        parts["a layer computed again"] = work.layer_kept(CPU_DROPOUT_BYTES)
    return sum(parts.values()), held.most


@pytest.mark.parametrize("beams", [1, 4])
def test_most_that_is_held_while_writing_is_as_estimated(deeper: Path, beams):
    llm, work = at_work(deeper, beams=beams, max_length=12)
    write = sentences(llm, beams, 12)
    write()  # what is made once is made
    with Held(llm.network) as held:
        write()
    assert sum(work.generation_parts().values()) == pytest.approx(held.most, rel=PEAK_TOLERANCE)


def sentences(llm: AudioLLM, beams: int, length: int):
    """Writes sentences that are all as long as may be."""
    brain_BPA, n_patches_B = (
        torch.randn(N_TRIALS, N_PATCHES, llm.audio_width),
        torch.full((N_TRIALS,), N_PATCHES),
    )
    prompt = llm.prompt("Write it.")
    return lambda: generate(
        llm, brain_BPA, n_patches_B, prompt, beams=beams, max_length=length, min_length=length - 1
    )


# operations and time


@each_lora
@each_checkpointing
def test_operations_of_training_are_those_that_torch_counts(folder: Path, lora, checkpointing):
    llm, work = at_work(folder, lora, checkpointing)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        token_loss(llm).backward()
    # This kernel keeps attention's weights instead of computing them a second time: four products
    # for two.
    tokens = N_TRIALS * work.n_positions
    second = (
        2 * work.n_positions * llm.facts.heads * llm.facts.head_width * tokens * llm.facts.layers
    )
    assert work.training_flops() - second == pytest.approx(counter.get_total_flops(), rel=0.005)


@pytest.mark.parametrize("beams", [1, 3])
def test_operations_of_writing_are_those_that_torch_counts(folder: Path, beams):
    llm, work = at_work(folder, beams=beams, max_length=12)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        sentences(llm, beams, 12)()
    assert work.generation_flops() == pytest.approx(counter.get_total_flops(), rel=0.005)


def test_time_by_hand():
    gpu = GPU("of a thousand TFLOPS", flops_s=1e15, bandwidth_bytes_s=1e12)
    found = Estimate(
        {}, {}, training_flops=1e15, generation_flops=5e14, step_bytes=10**10, steps=50
    )
    assert found.training_hours(1800, gpu, share=0.5) == pytest.approx(1.0)  # 2 s a batch
    assert found.generation_s(gpu, share=0.5) == pytest.approx((0.5 + 50 * 0.01) / 0.5)


def test_accumulation_takes_less_memory_and_as_many_operations():
    whole, pieces = (
        estimate(settings(gradient_accumulation_steps=n), PUBLISHED[AERO]) for n in (1, 4)
    )
    assert (
        pieces.training["kept of the language model"]
        == whole.training["kept of the language model"] // 4
    )
    assert pieces.training_flops == whole.training_flops


# whether it fits


def settings(speech: dict | None = None, **changes) -> SpeechLLMConfig:
    return SpeechLLMConfig(speech=SpeechConfig(**(speech or {})), **changes)


def test_a_training_that_fits_is_let_through():
    found = check_gpu_memory(settings(), PUBLISHED[AERO], free_bytes=80e9)
    assert found == estimate(settings(), PUBLISHED[AERO])


@pytest.mark.parametrize("name", [QWEN, AERO])
@pytest.mark.parametrize("free_gb", [79.0, 40.0, 24.0])
@pytest.mark.parametrize("lora", [None, LoRAConfig()], ids=["frozen", "lora"])
def test_what_is_advised_lowers_it_most_and_then_fits(name, free_gb, lora):
    config = settings({"lora": lora, "audio_llm": name})
    facts, free = PUBLISHED[name], free_gb * 1e9
    needed = MARGIN * estimate(config, facts).needed_bytes
    if needed <= free:
        check_gpu_memory(config, facts, "cuda:0", free_bytes=free)
        return
    with pytest.raises(LanguageModelError) as caught:
        check_gpu_memory(config, facts, "cuda:0", free_bytes=free)
    line = str(caught.value)
    assert line.startswith(
        f"{name}: not enough GPU memory: about {needed / 1e9:.1f} GB are needed, and cuda:0 has"
    )
    assert "\n" not in line
    after = {
        setting: MARGIN * estimate(other, facts).needed_bytes for setting, other in savings(config)
    }
    best = min(after, key=after.__getitem__)
    assert f"{best} lowers it most, to {after[best] / 1e9:.1f} GB" in line
    for setting in line.rpartition("; ")[2].split() if " together to " in line else [best]:
        if "=" in setting:
            config = with_setting(config, setting)
    check_gpu_memory(config, facts, free_bytes=free)


def with_setting(config: SpeechLLMConfig, setting: str) -> SpeechLLMConfig:
    key, value = setting.split("=")
    if key == "gradient_accumulation_steps":
        return replace(config, gradient_accumulation_steps=int(value))
    if key == "speech.generation.beams":
        return replace(
            config, speech=replace(config.speech, generation=GenerationConfig(beams=int(value)))
        )
    change = {"true": True}.get(value, value)
    return replace(config, speech=replace(config.speech, **{key.removeprefix("speech."): change}))


def test_where_no_setting_is_enough_a_smaller_model_is_advised():
    with pytest.raises(LanguageModelError, match=r"use a smaller audio LLM$"):
        check_gpu_memory(settings(), PUBLISHED[QWEN], free_bytes=3e9)


def test_alignment_alone_needs_no_language_model():
    found = estimate(settings({"beta": 0.0}), PUBLISHED[QWEN])
    assert found.generation == {}
    assert found.training["frozen weights"] == 0
    assert found.training_bytes < 3e9
    assert found.training_flops == 0


def test_lora_on_unknown_matrices_is_an_error():
    with pytest.raises(ConfigError, match=r"speech\.lora\.modules names c_attn"):
        estimate(settings({"lora": LoRAConfig(modules=["c_attn"])}), PUBLISHED[QWEN])


def test_a_trial_shorter_than_a_patch_is_an_error():
    with pytest.raises(
        ConfigError, match="13 bins are not one patch of 14; give --n-bins 14 or more"
    ):
        plan("speech_llm", GPUS["h100"], load=Load(n_bins=13))


def test_every_stage_of_the_recipes_is_planned():
    stages = plan("speech_llm_best", GPUS["h100"])
    assert [each.estimate.training["frozen weights"] > 0 for each in stages][-1]
    assert all(each.problem is None for each in stages)
    (single,) = plan("speech_llm", GPUS["h100"], audio_llm=AERO)
    assert single.estimate == estimate(settings({"audio_llm": AERO}), PUBLISHED[AERO])


def test_a_directory_is_read_for_its_shapes(folder: Path):
    assert facts_of(str(folder)) == AudioLLM.check(folder)


def test_an_unknown_gpu_is_an_error():
    with pytest.raises(ConfigError, match="did you mean 'h100'"):
        gpu_named("h10")


def test_the_command_prints_tables_or_json():
    app = typer.Typer()
    app.command("memory")(speech_llm_prepare.memory)
    app.command()(lambda: None)
    arguments = [
        "memory",
        "--config",
        "speech_llm",
        "--audio-llm",
        AERO,
        "--gpu",
        "a100",
        "--share",
        "0.5",
    ]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "estimated from shapes" in shown.output
    assert "estimated, not measured" in shown.output
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)
    (stage,) = found["stages"]
    expected = estimate(settings({"audio_llm": AERO}), PUBLISHED[AERO])
    assert stage["training_bytes"]["all"] == expected.training_bytes
    assert stage["training_hours"] == pytest.approx(
        expected.training_flops * 120_000 / (0.5 * 312e12) / 3600
    )
    assert not found["measured"]


# the page


def test_the_pages_tables_are_what_is_estimated():
    names = {f"**{name.split('/')[1]}**": facts for name, facts in PUBLISHED.items()}
    rows = []
    for line in map(str.strip, TABLE.read_text().splitlines()):
        if line in names:
            facts = names[line]
        elif line.startswith(("| frozen |", "| LoRA |")):
            rows.append((facts, *(cell.strip() for cell in line.strip("|").split("|"))))
    assert len(rows) == 24
    for facts, trained, changes, *figures in rows:
        config = settings({"lora": LoRAConfig() if trained == "LoRA" else None})
        for setting in changes.strip("`").split():
            config = with_setting(config, setting)
        found = estimate(config, facts)
        bytes_ = (found.training["frozen weights"], found.training_bytes, found.generation_bytes)
        hours = (found.training_hours(120_000, GPUS[name], 0.4) for name in ("h100", "a100"))
        assert figures == [f"{each / 1e9:.1f}" for each in bytes_] + [
            f"{each:.0f}" for each in hours
        ]


def test_the_pages_commands_run_and_its_line_is_what_is_said():
    app = typer.Typer()
    app.command("memory")(speech_llm_prepare.memory)
    app.command()(lambda: None)
    commands = [
        line
        for line in GUIDE.read_text().splitlines()
        if line.startswith("cortext speech-llm memory")
    ]
    assert len(commands) == 3
    for command in commands:
        done = CliRunner().invoke(app, shlex.split(command)[2:])
        assert done.exit_code == 0, done.output
    with pytest.raises(LanguageModelError) as caught:
        check_gpu_memory(
            settings({"lora": LoRAConfig()}), PUBLISHED[QWEN], "cuda:0", free_bytes=84e9
        )
    assert f"\n{caught.value}\n" in GUIDE.read_text()
