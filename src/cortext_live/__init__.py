"""Live decoding and daily use: bins of neural features in, words out, while a person speaks.

Stands on `cortext`, `cortext_lm` (a large model, live) and `cortext_data` (simulated input).

Begin with:

- `steps.stepping`: a model that reads one patch at a time.
- `adapt.adapt`: a model learns a new day from labelled trials.
- `core.pipeline`: from bins to words, without files or sockets. All servers use it.
- `page.server`: the web page of `cortext serve`; `page.decoding_thread` decodes for it.
- `brand.process` and `lm_server.server`: the servers on Redis, for rigs.
- `usage.writer`: the log of daily use; `usage.drift` reports what has changed in the recordings.
- `recalibration.service`: a model that learns from what it decoded, under checks.
- `casing` and `voices`: text as it is shown, and spoken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cortext.extras import lazily

if TYPE_CHECKING:
    from cortext_live.core.pipeline import Pipeline

__all__ = ["Pipeline"]
# The commands of this package are listed without waiting for torch.
__getattr__ = lazily(__name__, {"Pipeline": ".core.pipeline"})
