"""Training on TPUs: torch models on XLA (torchax on JAX), and their Keras twins (`keras_tf`).

Only this package imports JAX and TensorFlow. `backend` takes the training steps; `step` is one step
as a program of XLA. `layers`, `recurrence`, `products`, `ctc`, `augment` and `optimizer` are its
parts, `shapes` the few lengths that it is compiled for, `mesh` the cores that share it. `find` and
`system` look for a TPU. `doctor` reports on a machine, with `probe` and `versions`. `compile`,
`hlo`, `cost` and `roofline` estimate the cost of a step on a TPU without having one.
"""

import cortext  # noqa: F401  # it prepares the threads of what is loaded after it
