"""The compiled decode step: weights in panels, and one call for all layers of a step.

`library` loads what the installation compiled, `packed` holds weights as the kernels read them, `stack` runs decoder
layers. Where nothing was compiled, or for a device or dtype that the kernels do not take, callers use torch.
"""
