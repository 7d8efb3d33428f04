"""Retrofit: what a remedy does to a model that is trained already, at once and after some updates."""
