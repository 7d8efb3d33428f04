"""Rescue: what is done at the first warning of a run that fails, how often it helps, and what it costs healthy runs."""
