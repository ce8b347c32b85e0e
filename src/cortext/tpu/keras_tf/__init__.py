"""The models in Keras 3, for TensorFlow and its TPUs. The weights are those of the torch models, see `convert`."""
