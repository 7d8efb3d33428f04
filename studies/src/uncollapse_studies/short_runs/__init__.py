"""Short trainings of a small LLaMA in this process: healthy ones, and such as are made to fail by a known cause."""
