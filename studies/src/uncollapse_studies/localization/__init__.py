"""The second paper: Bao, Hataya and Karakida, on localisation and the QK eigenspectrum."""
