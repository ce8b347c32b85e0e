import numpy as np
import pytest

from cortext.errors import TextError
from cortext.text import LM, RELEASE, Inventory, get_inventory


def test_both_published_orders_number_41_tokens_with_the_blank_first():
    assert len(RELEASE) == len(LM) == 41
    assert RELEASE.blank == LM.blank == 0
    assert (RELEASE.sil, LM.sil) == (40, 1)
    assert (RELEASE.symbols[1], RELEASE.symbols[39]) == ("AA", "ZH")
    assert (LM.symbols[2], LM.symbols[40]) == ("AA", "ZH")


def test_reordering_moves_the_silence_as_the_release_does():
    release_order = np.arange(41)
    np.testing.assert_array_equal(release_order[LM.order_from(RELEASE)], [0, 40, *range(1, 40)])
    np.testing.assert_array_equal(
        release_order[LM.order_from(RELEASE)][RELEASE.order_from(LM)], release_order
    )


def test_ids_and_names_undo_each_other():
    assert RELEASE.names(RELEASE.ids(["K", "AE", "T", "SIL"])) == ["K", "AE", "T", "SIL"]
    assert RELEASE.ids([]).dtype == np.int64


def test_unknown_symbols_and_names_suggest_the_nearest():
    with pytest.raises(TextError, match="unknown phoneme 'AEE'; did you mean 'AE'"):
        RELEASE.ids(["AEE"])
    with pytest.raises(TextError, match="unknown inventory 'releas'; did you mean 'release'"):
        get_inventory("releas")
    assert get_inventory("lm") is LM
    assert get_inventory(RELEASE) is RELEASE


def test_inventories_of_other_tokens_cannot_be_reordered():
    with pytest.raises(TextError, match="do not hold the same tokens"):
        RELEASE.order_from(Inventory("small", ("BLANK", "SIL")))
