"""Training on TPUs: torch models on XLA (torchax on JAX), and their Keras twins on TensorFlow.

Only this package imports JAX and TensorFlow. Stands on `cortext`.

Begin with:

- `backend`: the backend that training calls; `keras_tf.backend` is the one of Keras.
- `step`: one training step as a program of XLA. Its parts are `layers`, `recurrence`, `products`,
  `ctc`, `augment` and `optimizer`.
- `shapes` and `mesh`: the few lengths that it is compiled for, and the cores that share it.
- `find` and `system`: the search for a TPU; `probe` and `versions` try the one that was found.
- `tfrecords`: packed recordings that TensorFlow reads.
- `compile`: the step compiled without a TPU. `hlo`, `cost` and `roofline` estimate its time.
"""

import cortext  # noqa: F401  # it prepares the threads of libraries loaded later
