"""The tile loops in Triton, for GPUs. Nothing here is imported before a GPU, or Triton's interpreter, is to be used."""
