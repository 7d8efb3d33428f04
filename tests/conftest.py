"""Tests run side by side on few cores and on tiny tensors: one thread each is fastest."""

import hypothesis
import torch

# A noisy machine can stretch any example past a deadline.
hypothesis.settings.register_profile("no_deadline", deadline=None)
hypothesis.settings.load_profile("no_deadline")

torch.set_num_threads(1)
