"""When matrix products are in bfloat16."""

import pytest
import torch

from cortext.models.precision import uses_bf16


@pytest.mark.parametrize("kind", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize("by_torch", [True, False])
def test_what_is_asked_for_is_done(kind, by_torch):
    assert uses_bf16("bf16", kind, by_torch)
    assert not uses_bf16("fp32", kind, by_torch)


def test_auto_is_bfloat16_on_a_tpu_and_elsewhere_where_torch_has_it_natively(monkeypatch):
    for native in (True, False):
        monkeypatch.setattr(
            torch.cuda, "is_bf16_supported", lambda including_emulation, native=native: native
        )
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda native=native: native)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
        assert [uses_bf16("auto", kind) for kind in ("cpu", "cuda", "tpu")] == [
            native,
            native,
            True,
        ]
        assert [uses_bf16("auto", kind, by_torch=False) for kind in ("cpu", "cuda", "tpu")] == [
            False,
            False,
            True,
        ]
