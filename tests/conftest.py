"""Tests run side by side on few cores and on tiny tensors: one thread each is fastest."""

import hypothesis
import torch

# A noisy machine can stretch any example past a deadline. The same examples each time, so that a run that fails can be
# repeated; other ones with: pytest --hypothesis-profile=search
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile("repeatable")

torch.set_num_threads(1)
