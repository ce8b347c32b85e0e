"""The network of a speech LLM.

What it gives, what learns in it, and that padding and company change nothing.
"""

import itertools

import pytest
import torch

from cortext.errors import ConfigError
from cortext.models import TransformerConfig, build_model
from cortext.models.gru import GRUConfig, InputNetworkConfig
from cortext.models.triple_gru import TripleGRUConfig
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.config import LoRAConfig, SpeechConfig
from cortext_speechllm.network import SpeechNetwork, merge_blanks

N_FEATURES = 6
ANSWERS_OF = ("how are you today", "please call", "what do you think of it")
N_BINS_B = (60, 34, 47)


def built(llm: AudioLLM | None, encoder: torch.nn.Module | None = None, **speech) -> SpeechNetwork:
    torch.manual_seed(1)
    config = GRUConfig(n_units=16, n_layers=2, input_network=InputNetworkConfig())
    encoder = encoder or build_model(config, n_features=N_FEATURES, n_days=2, n_classes=41)
    return SpeechNetwork(encoder, SpeechConfig(**speech), 24, llm).eval()


@pytest.fixture
def llm(tiny_audio_llm) -> AudioLLM:
    return AudioLLM.load(tiny_audio_llm)


def batch(network: SpeechNetwork, rows=(0, 1, 2), padding: float = 0.0) -> dict:
    """Trials of different lengths; what lies behind a trial's bins is `padding`."""
    x_BTC = torch.randn(3, max(N_BINS_B), N_FEATURES, generator=torch.Generator().manual_seed(2))
    for row, n_bins in enumerate(N_BINS_B):
        x_BTC[row, n_bins:] = padding
    n_bins_B = torch.tensor(N_BINS_B)[list(rows)]
    x_BTC = x_BTC[list(rows), : int(n_bins_B.max())]
    return {
        "x_BTC": x_BTC,
        "day_B": torch.tensor([0, 1, 1])[list(rows)],
        "n_patches_B": network.n_patches(n_bins_B),
    }


def answers(llm: AudioLLM, rows=(0, 1, 2)) -> list[list[int]]:
    return [llm.answer(ANSWERS_OF[row]) for row in rows]


def test_patches_are_counted_as_published():
    network = built(None, alpha=1, beta=0)
    for n_bins in (14, 17, 18, 100, 544):
        assert network.n_patches(n_bins) == (n_bins - 14) // 4 + 1
    assert network.n_patches(544) == 133


def test_without_answers_it_is_its_encoder(llm):
    network = built(llm, gamma=1.0)
    given = batch(network)
    phonemes_BPV, _ = network(**given)
    assert torch.equal(phonemes_BPV, network.encoder(**given)[0])


@pytest.mark.parametrize(
    "config",
    [
        GRUConfig(n_units=16, n_layers=2, diphones=True, intermediate_layer=1),
        TransformerConfig(n_units=16, n_layers=2, n_heads=2, head_units=8, diphones=True),
    ],
)
def test_an_encoder_with_diphones_gives_phonemes(llm, config):
    encoder = build_model(config, n_features=N_FEATURES, n_days=2, n_classes=41)
    network = built(llm, encoder, merge_blanks=True)
    given = batch(network)
    read = network(**given, answers=answers(llm))
    expected = encoder(**given).logits
    for row, n_patches in enumerate(given["n_patches_B"].tolist()):
        phonemes_PV = read.phonemes_BPV[row, :n_patches]
        assert phonemes_PV.shape == (n_patches, 41)
        torch.testing.assert_close(phonemes_PV, expected[row, :n_patches])


@pytest.mark.parametrize("merged", [False, True], ids=["patches", "merged"])
def test_padding_and_other_trials_change_nothing(llm, merged):
    network = built(llm, gamma=1.0, lora=LoRAConfig(), merge_blanks=merged)
    given, wanted = batch(network), answers(llm)
    read = network(**given, answers=wanted)
    loud = network(**batch(network, padding=100.0), answers=wanted)
    for row, n_patches in enumerate(given["n_patches_B"].tolist()):
        alone = network(**batch(network, [row]), answers=[wanted[row]])
        n_tokens = len(wanted[row])
        for other, place in ((loud, row), (alone, 0)):
            torch.testing.assert_close(
                other.brain_BPA[place, :n_patches],
                read.brain_BPA[row, :n_patches],
                atol=1e-5,
                rtol=1e-4,
            )
            torch.testing.assert_close(
                other.answers[0][place, :n_tokens],
                read.answers[0][row, :n_tokens],
                atol=1e-4,
                rtol=1e-4,
            )
            for one, many in zip(other.pooled, read.pooled, strict=True):
                torch.testing.assert_close(one[place], many[row], atol=1e-5, rtol=1e-4)


def test_pooled_text_is_the_mean_of_the_sentences_own_tokens(llm):
    network = built(llm, gamma=1.0)
    pooled_BH = network(**batch(network), answers=answers(llm)).pooled[1]
    table = llm.network.get_input_embeddings().weight
    for row, sentence in enumerate(ANSWERS_OF):
        tokens = llm.tokenizer.encode(sentence, add_special_tokens=False)
        torch.testing.assert_close(pooled_BH[row], table[tokens].mean(0))


def test_only_encoder_projector_and_lora_learn_and_are_saved(llm):
    network = built(llm, gamma=1.0, lora=LoRAConfig())
    parts = {name.partition(".")[0] for name in network.state_dict()}
    assert parts == {"encoder", "projector", "lora"}
    for (
        name,
        weight,
    ) in network.lora.items():  # what begins as zero has no effect, and then its factor no gradient
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    read = network.train()(**batch(network), answers=answers(llm))
    (read.answers[0].square().mean() + read.pooled[0].square().mean()).backward()
    without = {
        name
        for name, parameter in network.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    }
    assert without == {"encoder.out.weight", "encoder.out.bias"}
    own = set(map(id, network.parameters()))
    assert not any(
        weight.requires_grad for weight in llm.network.parameters() if id(weight) not in own
    )


def test_what_no_loss_reads_is_not_computed():
    read = built(None, alpha=1, beta=0)(**batch(built(None, alpha=1, beta=0)), answers=[[], [], []])
    assert read.answers is None
    assert read.pooled is None
    assert read.brain_BPA.shape[-1] == 24


def test_lora_is_dropped_out_in_training_only(llm):
    network = built(llm, lora=LoRAConfig(dropout=0.5))
    for weight in network.lora.values():
        torch.nn.init.normal_(weight, std=0.1)
    given, wanted = batch(network), answers(llm)
    for module in (network.encoder, network.projector):
        module.train = lambda mode, module=module: module  # only the dropout of LoRA is to be seen

    def logits() -> torch.Tensor:
        return network(**given, answers=wanted).answers[0]

    network.train()
    assert not torch.equal(logits(), logits())
    network.eval()
    assert torch.equal(logits(), logits())


def test_the_three_networks_can_be_the_encoder_too(llm):
    config = TripleGRUConfig(
        noise_units=8, noise_layers=1, clean_units=12, clean_layers=1, noisy_units=8, noisy_layers=1
    )
    encoder = build_model(config, n_features=N_FEATURES, n_days=2, n_classes=41)
    network = built(llm, encoder)
    given = batch(network)
    torch.testing.assert_close(network(**given)[0], encoder(**given)[0])
    assert network(**given, answers=answers(llm)).brain_BPA.shape == (3, 12, 24)


def test_a_model_without_hidden_units_is_one_line():
    encoder = torch.nn.Linear(3, 3)
    encoder.config = GRUConfig()
    with pytest.raises(
        ConfigError,
        match="model 'gru' gives out no hidden units; use kind gru or triple_gru, or add",
    ):
        SpeechNetwork(encoder, SpeechConfig(), 24, None)


def merged_by_a_loop(x_PA: torch.Tensor, tokens: list[int]) -> list[torch.Tensor]:
    runs, start = [], 0
    for token, run in itertools.groupby(tokens):
        end = start + len(list(run))
        if token:
            runs.append(x_PA[start:end].mean(0))
        start = end
    return runs or [x_PA[: len(tokens)].mean(0)]


def test_runs_are_merged_as_by_hand():
    x_BPA = torch.tensor([[[1.0], [2.0], [4.0], [8.0], [16.0], [32.0]]])
    tokens_BP = torch.tensor([[0, 5, 5, 0, 5, 7]])
    merged_BQA, n_B = merge_blanks(x_BPA, tokens_BP, torch.tensor([6]))
    assert n_B.tolist() == [3]
    assert merged_BQA[0, :, 0].tolist() == [3.0, 16.0, 32.0]  # a blank sets equal tokens apart


def test_merging_is_the_loop_in_any_batch_and_padding_changes_nothing():
    generator = torch.Generator().manual_seed(0)
    x_BPA = torch.randn(6, 30, 4, generator=generator)
    tokens_BP = torch.randint(0, 3, (6, 30), generator=generator)
    lengths = [30, 1, 7, 29, 12, 5]
    tokens_BP[4] = 0  # silence
    n_patches_B = torch.tensor(lengths)
    for row, length in enumerate(lengths):
        x_BPA[row, length:] = torch.nan
    merged_BQA, n_B = merge_blanks(x_BPA, tokens_BP, n_patches_B)
    assert merged_BQA.isfinite().all()
    for row, length in enumerate(lengths):
        expected = merged_by_a_loop(x_BPA[row], tokens_BP[row, :length].tolist())
        assert int(n_B[row]) == len(expected)
        torch.testing.assert_close(merged_BQA[row, : len(expected)], torch.stack(expected))
        assert (merged_BQA[row, len(expected) :] == 0).all()


def test_the_gradient_of_merging_reaches_the_patches_of_runs_only():
    x_BPA = torch.ones(1, 4, 2, requires_grad=True)
    merged_BQA, _ = merge_blanks(x_BPA, torch.tensor([[0, 3, 3, 0]]), torch.tensor([4]))
    merged_BQA.sum().backward()
    assert x_BPA.grad is not None
    assert x_BPA.grad[0, :, 0].tolist() == [0.0, 0.5, 0.5, 0.0]
