"""Training on TPUs: finding one, the same models on XLA (torchax on JAX), and their Keras twins (`keras_tf`)."""
