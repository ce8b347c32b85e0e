"""Check models, losses, augmentations and tasks of your own on made-up data, a line each.

It examines their shapes, padding, gradients, random numbers and files: what training and decoding
require, and what shipped ones are tested for, too. Stands on `cortext` and `cortext_live` (steps).
A training of the core asks for `before.examine_first` by an entry point.

Begin with:

- `plugin.check_plugin`: all that a file registers.
- `model.check_model`: one model. `network`, `loss` and `augmentation` have checks, too.
- `before.examine_first`: the cheap ones, before a run is trained.
- `report`: a check, and how its outcome is printed.
"""

from typing import TYPE_CHECKING

from cortext.extras import lazily

if TYPE_CHECKING:
    from cortext_checks.before import examine_first
    from cortext_checks.model import check_model
    from cortext_checks.plugin import check_plugin
    from cortext_checks.report import CheckReport, CheckResult

__all__ = ["CheckReport", "CheckResult", "check_model", "check_plugin", "examine_first"]

# A training loads `before` alone.
__getattr__ = lazily(
    __name__,
    {
        "CheckReport": ".report",
        "CheckResult": ".report",
        "check_model": ".model",
        "check_plugin": ".plugin",
        "examine_first": ".before",
    },
)
