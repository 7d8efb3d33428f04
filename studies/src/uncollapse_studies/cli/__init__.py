"""The command `uncollapse reproduce`, one file for each of its commands."""
