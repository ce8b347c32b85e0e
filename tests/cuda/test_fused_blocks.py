"""Fused kernels: the formulas' values, on a GPU or in Triton's interpreter."""

import pytest
import torch
from triton_interpreter import HAS_TRITON

from cortext.models.transformer import Transformer, TransformerConfig
from cortext_cuda.networks import why_not_fused

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")

needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="run `make test-triton`")


@pytest.fixture
def checks(monkeypatch):
    """The checks; the interpreter multiplies float16, not bfloat16."""
    from cortext_cuda import fused_checks

    if not ON_GPU:
        monkeypatch.setattr(fused_checks, "DTYPE", torch.float16)
        monkeypatch.setattr(fused_checks, "LENGTHS", (70, 33, 1))
    return fused_checks


CHECKS = {
    "check_attention": (2, 32),
    "check_sum_and_norm": (48,),
    "check_norm_of_rows": (200,),
    "check_gelu": (300,),
    "check_softsign": (),
}


@needs_triton
@pytest.mark.parametrize("check", CHECKS)
def test_kernels_give_the_values_and_gradients_of_the_formulas(checks, check):
    assert getattr(checks, check)(DEVICE, *CHECKS[check]) is None


@needs_triton
def test_one_kernel_augments_and_smooths_as_the_single_steps_do():
    from cortext_cuda.smooth_kernel import check_smoothing

    assert check_smoothing(DEVICE) is None


@needs_triton
def test_blocks_give_the_logits_and_gradients_of_the_plain_ones(checks, monkeypatch):
    monkeypatch.setattr(checks, "LENGTHS", (20, 7, 1))
    assert checks._check_whole(DEVICE, 48, 2, 16) is None


@needs_triton
def test_a_wrong_kernel_is_found(checks, monkeypatch):
    fused = checks.fused
    right = fused.gelu, fused.softsign, fused.attend
    monkeypatch.setattr(fused, "gelu", lambda *given: 1.05 * right[0](*given))
    monkeypatch.setattr(fused, "softsign", lambda x, s, p: right[1](x, s.flip(0), p))
    monkeypatch.setattr(fused, "attend", lambda *given: right[2](*given) * torch.nan)
    assert "GELU, tensor 0" in checks.check_gelu(DEVICE, 64)
    assert "softsign, tensor 0" in checks.check_softsign(DEVICE)
    assert "attention in chunks of 1" in checks.check_attention(DEVICE, 1, 16)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(384, 6, 64), (64, 2, 32), (192, 3, 128)])
def test_all_kernels_of_blocks_are_right_on_this_gpu(checks, sizes):
    assert checks.check_blocks(DEVICE, *sizes) is None


def test_nothing_is_fused_on_a_cpu():
    config = TransformerConfig(n_units=16, n_layers=1, n_heads=1, head_units=16)
    network = Transformer(config, n_features=4, n_days=1, n_classes=3)
    assert why_not_fused(network, torch.device("cpu")) == "the device is cpu"


def test_sizes_that_no_kernel_has_are_named():
    config = TransformerConfig(n_units=16, n_layers=1, n_heads=1, head_units=24)
    network = Transformer(config, n_features=4, n_days=1, n_classes=3)
    said = "model.head_units is 24, none of 16, 32, 64, 128"
    assert why_not_fused(network, torch.device("cuda")) == said
