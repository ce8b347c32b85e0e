"""Training on TPUs.

Finding one, the same models on XLA (torchax on JAX), and their Keras twins (`keras_tf`).
"""
