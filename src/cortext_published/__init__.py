"""Published data, checkpoints and results, fetched, read and compared with published numbers.

Stands on `cortext`, `cortext_checks` (outcomes of checks), `cortext_data` (readers) and
`cortext_live` (FALCON decodes live, ONNX).

Begin with:

- `downloads.fetch`: published files, downloaded, checked and unpacked.
- `release.exchange`: checkpoints of the public T15 code as runs, and back.
- `verification.t15`: checks of your copy of the T15 data, in order.
- `t15_analyses`: the published analyses of participant T15; `figures` draws numbers from them.
- `falcon`: a decoder for the evaluator of the FALCON challenge.
"""

import cortext  # noqa: F401  # it prepares the threads of libraries loaded later
