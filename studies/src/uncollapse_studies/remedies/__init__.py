"""What is known to help, put side by side under one protocol; our own studies, not a paper's."""
