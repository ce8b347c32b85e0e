"""Fits to a run: decoder options, and the calibration of confidences.

`search` finds options and `options` keeps them in `decoder.yaml`. `regression` fits confidences,
also on days that `drifted` simulates, `calibration` measures them, and `confidence` keeps and
chooses them (`confidence.yaml`). `fitted_file` has all that such files share: reading, writing,
taking over. `callback` fits both at the end of a training: begin there.
"""
