"""Checks of models, losses, augmentations and tasks on made-up data, a line each.

`check_plugin` examines all that a file registers and `check_model` one model; `examine_first` makes
the cheap checks before a run is trained.
"""

from typing import TYPE_CHECKING

from cortext.extras import lazily

if TYPE_CHECKING:
    from cortext.training.checks.before import examine_first
    from cortext.training.checks.model import check_model
    from cortext.training.checks.plugin import check_plugin
    from cortext.training.checks.report import CheckReport, CheckResult

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
