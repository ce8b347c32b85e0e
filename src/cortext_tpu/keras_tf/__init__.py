"""The models in Keras 3, for TensorFlow and its TPUs.

Their weights are those of the torch models, see `convert`.

`models` and `steps` (training, evaluating, predicting) use `layers`, `recurrence`, `ctc`, `loss`
and `optimizer`. `pipeline`, `strategy` and `backend` train them as runs, from trials or from
TFRecord files (`cortext_tpu.tfrecords`).
"""
