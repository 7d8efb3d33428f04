"""Tests run side by side on few cores and on tiny tensors: one thread each is fastest."""

import torch

torch.set_num_threads(1)
