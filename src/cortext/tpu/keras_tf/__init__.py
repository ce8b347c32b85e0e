"""The models in Keras 3, for TensorFlow and its TPUs.

Their weights are those of the torch models, see `convert`.

`models` and `steps` (training, evaluating, predicting) stand on `layers`, `recurrence`, `ctc`,
`loss` and `optimizer`; `records`, `pipeline`, `strategy` and `engine` train them as runs.
"""
