"""The words that every n-gram model has, and limits of the format."""

import math

UNK, BOS, EOS = "<unk>", "<s>", "</s>"
SPECIAL = (UNK, BOS, EOS)
UNK_ID, BOS_ID, EOS_ID = range(3)
MAX_ORDER = 6
LN10 = math.log(10.0)
"""Files hold log10, everything else natural logs."""
