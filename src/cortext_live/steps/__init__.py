"""Run a model one patch at a time: in PyTorch, in compiled code, or as an ONNX graph.

A step takes the bins of one patch and returns the logits of its frame, as they arrive. They are
those of the whole trial, up to rounding.

Begin with:

- `stepper`: the interface of all steppers, which live decoding uses.
- `stepping.open_stepper`: a stepper of a run. `single_step` makes its steps fast on a CPU.
- `onnx.export_onnx`: a model as an ONNX graph, which `onnx_stepper` runs.
- `stepped`: the error rates of a split, step by step.
"""
